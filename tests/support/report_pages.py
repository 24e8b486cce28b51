"""Example runs with every feature of a report, and a parser for report pages."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Any

from pytest_amp_check.frontends import html

MIB = 2**20
VOID = {"meta", "input", "br"}


def counts(center: int, *, zero: int = 0, inf: int = 0, nan: int = 0, flushed: int = 0) -> dict[str, Any]:
    """Return 4,000 gradient values around two to the power of ``center``, and counts of values without an exponent."""
    histogram = {str(exponent): 1000 for exponent in range(center - 2, center + 2)}
    bands = {"lost": 0, "subnormal": 0, "normal": 0, "above": 0}
    for exponent in map(int, histogram):
        name = "lost" if exponent < -25 else "subnormal" if exponent < -14 else "normal" if exponent < 16 else "above"
        bands[name] += 1000
    return {"zero": zero, "flushed": flushed, **bands, "inf": inf, "nan": nan, "histogram": histogram}


def example_run(title: str = "examples/train.py", *, steps: int = 200, **parts: Any) -> dict[str, Any]:
    """Return a run with every feature: four skips, underflow, a budget, layers of two dtypes, and a finding.

    The gradients are clipped while scaled in the first ten steps, and unscaled from then on.
    """
    scale = 65536.0
    records: list[dict[str, Any]] = []
    history: list[list[float]] = [[0, scale]]
    for index in range(steps):
        skipped, before = index in (0, 1, 2, 150), scale
        scale = scale / 2 if skipped else scale * 2 if index % 60 == 59 else scale
        if scale != before:
            history.append([index + 1, scale])
        records.append(
            {
                "index": index,
                "optimizer": "optimizer",
                "scaler": "scaler",
                "loss": 2.3 * math.exp(-index / 80),
                "scale_before": before,
                "scale_after": scale,
                "growth_tracker": index % 60,
                "skipped": skipped,
                "found_inf": skipped,
                "grad_norm": math.inf if skipped else 1.0 + 1.0 / (index + 1),
                "site": "train.py:31",
            }
        )
    layers = [f"layers.{number}" for number in range(6)]
    parameters = {f"{layer}.weight": "float32" for layer in layers} | {"head.weight": "bfloat16"}
    return {
        "title": title,
        "torch": "2.13.0",
        "device": "cpu",
        "platform": "Linux",
        "steps": records,
        "steps_total": steps,
        "skipped_total": sum(record["skipped"] for record in records),
        "scale_history": history,
        "numerics": {
            "exponents": list(range(-126, 128)),
            "before": counts(-25, zero=1000),
            "after": counts(-9, zero=996, inf=3, nan=1),
            "parameters": {
                "head.weight": {"before": counts(-10), "after": counts(6), "lost": 0.0},
                "layers.0.weight": {"before": counts(-30), "after": counts(-14), "lost": 1.0},
                "layers.1.weight": {"before": counts(-26), "after": counts(-10), "lost": 0.75},
            },
            "lost_without_scaling": 0.5,
            "samples": 4,
        },
        "grad_norm": "at the step",
        "headroom": {"outputs": {"head": math.inf, "layers.0": 32752.0}, "products": {"layers.1": 2047.0}},
        "states": {
            "optimizers": [
                {
                    "name": "optimizer",
                    "spans": [
                        [0, 9, ["clean", "scaled", "stepped"]],
                        [10, steps - 1, ["clean", "scaled", "unscaled", "stepped"]],
                    ],
                }
            ],
            "violations": [
                {
                    "code": "AMP201",
                    "filename": "/home/me/examples/train.py",
                    "row": 36,
                    "optimizer": 0,
                    "state": "scaled",
                    "spans": [[0, 9]],
                    "steps": 10,
                }
            ],
        },
        "memory": {
            "how": "storages of tensors",
            "device": "cpu",
            "contributors": [["activations", "layers.0", 200 * MIB], ["gradients", "head.weight", 100 * MIB]],
            "peak": {"parameters": 100 * MIB, "gradients": 100 * MIB, "activations": 300 * MIB, "total": 500 * MIB},
            "timeline": [
                {"label": "forward", "bytes": {"parameters": 100 * MIB, "activations": 300 * MIB}},
                {
                    "label": "peak",
                    "bytes": {"parameters": 100 * MIB, "activations": 300 * MIB, "gradients": 100 * MIB},
                },
                {"label": "backward", "bytes": {"parameters": 100 * MIB, "gradients": 100 * MIB}},
                {"label": "step", "bytes": {"parameters": 100 * MIB, "gradients": 100 * MIB}},
            ],
            "budget": 600 * MIB,
        },
        "dtypes": {
            "modules": {"": "float32", "layers": "float16", **dict.fromkeys(layers, "float16"), "head": "bfloat16"},
            "parameters": parameters,
            "gradients": dict(parameters),
            "loss": "float32",
            "optimizer state": {"layers.0.weight": "float32"},
            "ops": {"aten.mm": {"float16": 12, "float32": 2}},
        },
        "findings": [finding()],
    } | parts


def finding(**more: Any) -> dict[str, Any]:
    return {
        "code": "AMP201",
        "name": "clip-before-unscale",
        "severity": "error",
        "message": "`clip_grad_norm_` limits gradients that are multiplied by scaler's scale: unscale first",
        "filename": "examples/train.py",
        "cell": None,
        "location": {"row": 36, "column": 13},
        "end_location": {"row": 36, "column": 60},
        "certain": True,
        "condition": None,
        "witness": [
            {"filename": "examples/train.py", "location": {"row": 33, "column": 13}, "text": "backward() scales them"},
            {"filename": "examples/train.py", "location": {"row": 36, "column": 13}, "text": "clip_grad_norm_()"},
        ],
        "fix": None,
        "url": None,
    } | more


def bare_run(title: str = "bare", **parts: Any) -> dict[str, Any]:
    nothing: dict[str, Any] = {"optimizers": [], "violations": []}
    run = example_run(title, numerics=None, memory=None, dtypes=None, findings=[], states=nothing, **parts)
    del run["headroom"]
    return run


class Page(HTMLParser):
    """A parsed report: elements, text below each section, data of the charts, and scripts."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.data: dict[str, Any] = {}
        self.scripts: list[str] = []
        self.sections: dict[str, list[str]] = {}
        self._open: list[tuple[str, dict[str, str]]] = []
        self.feed(source)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.elements.append((tag, found))
        if tag not in VOID:
            self._open.append((tag, found))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        tag, attributes = self._open[-1] if self._open else ("", {})
        if tag == "script":
            if attributes.get("type") == "application/json":
                self.data[attributes["id"]] = json.loads(data)
            else:
                self.scripts.append(data)
        elif tag != "style":
            for name, found in self._open:
                if name == "section":
                    self.sections.setdefault(found["id"], []).append(data)

    def text(self, section: str) -> str:
        return " ".join(" ".join(self.sections[section]).split())

    def values(self, attribute: str) -> list[str]:
        return [found[attribute] for _, found in self.elements if attribute in found]


def page(*runs: dict[str, Any], title: str = html.TITLE, others: Sequence[dict[str, Any]] = ()) -> Page:
    return Page(html.render_report(runs, title, others))


def panel(page: Page, name: str, title: str = "") -> dict[str, Any]:
    """Return the first panel of a chart whose title begins with ``title``."""
    found: dict[str, Any] = next(
        each for each in page.data[f"{name}-data"]["panels"] if each["title"].startswith(title)
    )
    return found
