"""The report: what is in it, that nothing in it runs or loads, and that a browser shows it."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_amp_check.faces import figures, html
from pytest_amp_check.protocol.rules import RULES

pytest.importorskip("plotly", reason="a report needs plotly")

MIB = 2**20
VOID = {"meta", "input", "br"}


def counts(center: int, *, zero: int = 0, inf: int = 0, nan: int = 0) -> dict[str, Any]:
    """4,000 gradient values around two to the power of ``center``, and those that have no exponent."""
    histogram = {str(exponent): 1000 for exponent in range(center - 2, center + 2)}
    bands = {"lost": 0, "subnormal": 0, "normal": 0, "above": 0}
    for exponent in map(int, histogram):
        name = "lost" if exponent < -25 else "subnormal" if exponent < -14 else "normal" if exponent < 16 else "above"
        bands[name] += 1000
    return {"zero": zero, **bands, "inf": inf, "nan": nan, "histogram": histogram}


def example_run(title: str = "examples/train.py", *, steps: int = 200, **parts: Any) -> dict[str, Any]:
    """A run with everything in it: four skips, underflow, a budget, layers of two dtypes, and a finding."""
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
            "lost_without_scaling": 0.25,
            "samples": 4,
        },
        "memory": {
            "how": "storages of tensors",
            "device": "cpu",
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
    return example_run(title, numerics=None, memory=None, dtypes=None, findings=[], **parts)


class Page(HTMLParser):
    """A report, parsed: its elements, its text below each section, the data of its charts, and its scripts."""

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


def page(*runs: dict[str, Any], title: str = html.TITLE) -> Page:
    return Page(html.render(runs, title))


def figure(page: Page, name: str) -> dict[str, Any]:
    found: dict[str, Any] = page.data[f"{name}-data"]
    return found


# What is in it.


def test_the_parts_refer_to_each_other() -> None:
    found = page(example_run(), bare_run())
    ids = found.values("id")
    assert len(ids) == len(set(ids))
    assert {value.removeprefix("#") for value in found.values("href")} <= set(ids)
    assert set(found.values("data-figure")) == {
        "run-1-steps-data",
        "run-1-gradients-data",
        "run-1-memory-data",
        "run-2-steps-data",
    }
    assert set(found.values("data-figure")) | {"template"} == set(found.data)
    assert [value for value in found.values("href") if value.startswith("#run")] == ["#run-1", "#run-2"] * 2
    assert list(found.sections) == ["overview", "run-1", "run-2"]


def test_the_overview() -> None:
    shown = page(example_run(), bare_run(steps=10)).text("overview")
    assert shown.startswith(
        "Overview Runs 2 1 without findings Findings 1 1 error Skipped steps 7 of 210 steps "
        "Final loss scale 8,192 to 32,768 Highest memory peak 500.00 MiB Runs"
    )
    assert "examples/train.py ✕ 1 error: AMP201 200 4 32,768 25.0 % 500.00 MiB of 600.00 MiB" in shown
    assert "bare ✓ no findings: none 10 3 8,192 \u2013 \u2013" in shown


def test_a_rule_that_was_broken_is_explained_once() -> None:
    found = page(example_run(), example_run())
    assert found.values("id").count("rule-AMP201") == 1
    assert found.values("href").count("#rule-AMP201") == 2
    assert " ".join(RULES["AMP201"].fix.replace("`", "").split()) in found.text("overview")


def test_a_finding_and_its_witness() -> None:
    uncertain = finding(severity="warning", certain=False, condition="when use_amp is true", cell=3, code="AMP999")
    shown = page(example_run(findings=[uncertain, finding()])).text("run-1")
    error = (
        "✕ error AMP201 clip-before-unscale clip_grad_norm_ limits gradients that are multiplied by scaler's scale: "
        "unscale first examples/train.py:36 How it comes about examples/train.py:33 : backward() scales them "
        "examples/train.py:36 : clip_grad_norm_()"
    )
    assert f"Findings {error} ! warning AMP999" in shown
    assert "examples/train.py:cell 3:36 Only on some paths: when use_amp is true." in shown


def test_the_loss_scale_in_words_and_in_a_chart() -> None:
    found = page(example_run())
    assert "scaler: 65,536 at first, 32,768 at last, 8,192 at the lowest. 4 of 200 steps skipped." in found.text(
        "run-1"
    )
    scale, skips, loss, norm, wild = figure(found, "run-1-steps")["data"]
    assert scale["x"] == list(range(201))
    assert scale["y"][:5] == [16, 15, 14, 13, 13]
    assert (skips["x"], skips["y"]) == ([0, 1, 2, 150], [16, 15, 14, 15])
    assert skips["customdata"][3] == (
        "<b>optimizer skipped</b>: inf or NaN in the gradient, scale 32768 → 16384<br>train.py:31"
    )
    assert loss["y"][0] == 2.3
    assert norm["y"][:4] == [None, None, None, 1.25]
    assert wild["x"] == [0, 1, 2, 150]


def test_a_loss_that_is_not_finite_is_said_and_marked() -> None:
    run = bare_run(steps=5)
    run["steps"][3]["loss"] = math.nan
    found = page(run)
    assert "The loss is not finite at 1 step, first at 3." in found.text("run-1")
    loss, wild = (trace for trace in figure(found, "run-1-steps")["data"] if trace["name"].startswith("loss"))
    assert loss["y"][3] is None
    assert (wild["x"], wild["customdata"]) == ([3], ["nan"])


def test_dropped_steps_are_said() -> None:
    run = bare_run()
    run["steps"] = run["steps"][100:]
    assert "The record kept the last 100 steps." in page(run).text("run-1")


def test_the_histogram_and_its_bands() -> None:
    found = page(example_run())
    drawn = figure(found, "run-1-gradients")
    before, zero, ends = drawn["data"][:3]
    # 5,000 values, 1,000 in each bin, which reaches from its power of two to the next.
    assert (before["x"], before["y"]) == ([-26.5, -25.5, -24.5, -23.5], [20, 20, 20, 20])
    assert before["customdata"] == [
        "from 2<sup>-27</sup> to 2<sup>-26</sup> (1,000, rounded to zero in float16)",
        "from 2<sup>-26</sup> to 2<sup>-25</sup> (1,000, rounded to zero in float16)",
        "from 2<sup>-25</sup> to 2<sup>-24</sup> (1,000, subnormal in float16)",
        "from 2<sup>-24</sup> to 2<sup>-23</sup> (1,000, subnormal in float16)",
    ]
    assert (zero["x"], zero["y"]) == (["0"], [20])
    assert (ends["x"], ends["y"]) == (["inf", "NaN"], [None, None])
    assert drawn["data"][5]["y"] == [0.06, 0.02]
    edges = [(shape["x0"], shape["x1"]) for shape in drawn["layout"]["shapes"]]
    assert [edges[0][1], *edges[1], edges[2][0]] == [-25, -25, -14, 16]
    shown = found.text("run-1")
    assert "In float16 Before After zero already 20.0 % 19.9 % rounded to zero 40.0 % 0 % subnormal 40.0 % 0 %" in shown
    # The worst first.
    names = re.findall(r"(?:layers\.\d|head)\.weight (?=[\d.]+ %)", shown)
    assert names == ["layers.0.weight ", "layers.1.weight ", "head.weight "]


def test_memory_over_time_and_its_budget() -> None:
    found = page(example_run())
    assert (
        "500.00 MiB at the peak, 100.00 MiB below the budget of 600.00 MiB. Counted on cpu: storages of tensors."
        in found.text("run-1")
    )
    drawn = figure(found, "run-1-memory")
    assert [trace["name"] for trace in drawn["data"]] == ["parameters", "gradients", "activations", "total"]
    # The last moment is as wide as the others.
    assert drawn["data"][-1]["x"] == [0, 1, 2, 3, 4]
    assert drawn["data"][-1]["y"] == [400, 500, 200, 200, 200]
    assert drawn["layout"]["shapes"][0]["y0"] == 600
    assert "activations 300.00 MiB 60.0 %" in found.text("run-1")


def test_memory_over_its_budget() -> None:
    run = example_run()
    run["memory"]["budget"] = 400 * MIB
    assert "500.00 MiB at the peak, 100.00 MiB over the budget of 400.00 MiB." in page(run).text("run-1")


def test_the_dtype_map_folds_layers_that_are_alike() -> None:
    shown = page(example_run()).text("run-1")
    assert (
        "Dtypes Loss float32 · Optimizer state float32 Module Output Parameters Gradients "
        "(model) float32 float32 bfloat16 float32 bfloat16 layers float16 float32 float32 "
        "0-5 float16 float32 float32 head bfloat16 bfloat16 bfloat16 Operators" in shown
    )
    run = example_run()
    run["dtypes"]["modules"]["layers.3"] = "float32"
    assert "0-2 float16 float32 float32 3 float32 float32 float32 4-5 float16 float32 float32 head" in page(run).text(
        "run-1"
    )


def test_what_was_not_recorded_is_one_line_that_says_how() -> None:
    shown = page(bare_run()).text("run-1")
    assert "No AMP mistakes were found in this run." in shown
    for argument in ("numerics", "memory", "dtypes"):
        assert shown.count(f"Not recorded: record(model, {argument}=True) shows ") == 1


def test_runs_in_which_nothing_happened() -> None:
    empty = counts(0) | {"normal": 0, "histogram": {}}
    run = example_run(
        steps=0,
        numerics={
            "exponents": [],
            "before": empty,
            "after": empty,
            "parameters": {},
            "lost_without_scaling": 0.0,
            "samples": 0,
        },
        memory={"how": "x", "device": "cpu", "peak": {"total": 0}, "timeline": [], "budget": None},
        dtypes={"modules": {}, "parameters": {}, "gradients": {}, "loss": None, "optimizer state": {}, "ops": None},
    )
    shown = page(run).text("run-1")
    for sentence in (
        "No optimizer step was recorded.",
        "No gradient was seen.",
        "0 B at the peak.",
        "No module was called.",
    ):
        assert sentence in shown
    assert "No run was recorded." in page().text("overview")


def test_a_run_without_a_title_has_a_number() -> None:
    found = page(bare_run("named"), bare_run(""))
    assert found.text("run-2").startswith("Run 2 torch 2.13.0")
    assert "Run 2 ✓ no findings: none" in found.text("overview")


def test_without_a_scaler() -> None:
    run = bare_run(steps=3)
    for step in run["steps"]:
        step |= {"scaler": None, "scale_before": None, "scale_after": None, "skipped": False, "grad_norm": None}
    found = page(run | {"skipped_total": 0})
    assert "No GradScaler was used. 0 of 3 steps skipped." in found.text("run-1")
    assert [trace["name"] for trace in figure(found, "run-1-steps")["data"]] == ["loss"]


def test_scalers_and_optimizers_have_lines_and_colours_of_their_own() -> None:
    run = bare_run(steps=6)
    for step in run["steps"][::2]:
        step |= {"scaler": "scaler_d", "optimizer": "optimizer_d"}
    found = page(run)
    lines = [trace for trace in figure(found, "run-1-steps")["data"] if trace["mode"] == "lines"]
    assert [trace["name"] for trace in lines] == [
        "scaler_d",
        "scaler",
        "loss (optimizer_d)",
        "loss (optimizer)",
        "gradient norm (optimizer_d)",
        "gradient norm (optimizer)",
    ]
    assert [trace["line"]["color"] for trace in lines] == ["var(--line-0)", "var(--line-1)"] * 3


def test_plotly_knows_every_property() -> None:
    import plotly.graph_objects as go

    found = page(example_run(), bare_run())
    template = found.data.pop("template")
    for each in found.data.values():
        drawn = go.Figure(each, layout_template=template)
        assert len(drawn.data) == len(each["data"])


def test_every_colour_has_a_value_in_both_schemes() -> None:
    source = html.render([example_run()])
    css = source[source.index("<style>") : source.index("</style>")]
    light, dark = css.split("@media (prefers-color-scheme: dark)", 1)
    used = set(re.findall(r"var\((--[\w-]+)\)", source)) - {"--x", "--chip"}
    defined = set(re.findall(r"(--[\w-]+):", light))
    assert used <= defined
    # What must be seen against the background has a value for each of the two.
    needed = {"--background", "--text", "--muted", "--bad", "--line-0", "--before", "--after", "--band-lost"}
    assert needed <= set(re.findall(r"(--[\w-]+):", dark))


# Nothing in it runs, nothing is loaded, and it is always the same.

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&amp;<a href='https://example.com'>\u2028"


def hostile_run() -> dict[str, Any]:
    """A run in which every text is an attack."""

    def attacked(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            named = key in ("parameters", "modules", "gradients", "optimizer state", "bytes", "peak", "ops")
            return {
                (name + EVIL if named and name != "total" else name): attacked(each, name)
                for name, each in value.items()
            }
        if isinstance(value, list):
            return [attacked(each, key) for each in value]
        return value + EVIL if isinstance(value, str) and key != "severity" else value

    run: dict[str, Any] = attacked(example_run())
    return run


def test_text_stays_text() -> None:
    tame, hostile = page(example_run()), page(hostile_run(), title=EVIL)
    plain = [tag for tag, _ in tame.elements]
    # An unknown code has no rule to link to, and the rule no text; and each name has a dtype of its own.
    assert {tag for tag, _ in hostile.elements} <= set(plain)
    assert [tag for tag, _ in hostile.elements].count("script") == plain.count("script")
    assert "img" not in plain
    assert not [name for _, found in hostile.elements for name in found if name.startswith("on")]
    assert not [value for value in hostile.values("href") if not value.startswith("#")]
    shown = hostile.text("run-1")
    assert shown.count("<script>alert(1)</script>") > 20


def test_charts_get_no_markup_from_names() -> None:
    def texts(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            for each in value.values():
                yield from texts(each)
        elif isinstance(value, list):
            for each in value:
                yield from texts(each)
        elif isinstance(value, str):
            yield value

    found = page(hostile_run()).data
    shown = [text for text in texts(found) if "alert" in text]
    # The optimizer and its place in the skips, categories, labels of moments.
    assert len(shown) > 10
    assert not [text for text in shown if re.search("<(?!/?b>|br>)", text.replace("<extra></extra>", ""))]


def test_nothing_is_loaded() -> None:
    source = html.render([example_run()])
    found = Page(source)
    assert found.values("src") == []
    assert all(value.startswith("#") for value in found.values("href"))
    assert not {"link", "iframe", "object", "embed", "img", "base", "form"} & {tag for tag, _ in found.elements}
    css = source[source.index("<style>") : source.index("</style>")]
    assert not re.search(r"url\(|@import|@font-face|https?:", css)


def test_only_its_own_two_scripts_may_run() -> None:
    found = page(example_run())
    policy = next(each["content"] for _, each in found.elements if "http-equiv" in each)
    allowed = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    hashes = [
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in found.scripts
    ]
    assert len(hashes) == 2
    assert allowed == {
        "default-src": "'none'",
        "script-src": " ".join(hashes),
        "style-src": "'unsafe-inline'",
        "img-src": "data: blob:",
        "base-uri": "'none'",
    }


def test_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    html.write([example_run(), bare_run()], str(tmp_path / "a.html"))
    html.write([example_run(), bare_run()], str(tmp_path / "b.html"))
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_long_runs_do_not_make_long_files() -> None:
    run = example_run(steps=20_000)
    moments = [
        {"label": f"step {n}", "bytes": {"parameters": n % 7 * MIB, "activations": n % 11 * MIB}} for n in range(50_000)
    ]
    run["memory"]["timeline"] = moments
    found = page(run)
    for each in found.data.values():
        for trace in each.get("data", ()):
            assert len(trace["x"]) <= html.MOST_POINTS + 1
    small, large = len(html.render([example_run()])), len(html.render([run]))
    assert large - small < 600_000
    # What stands out stays: the skip at 150 and the highest moment.
    assert figure(found, "run-1-steps")["data"][1]["x"] == [0, 1, 2, 150]
    assert max(figure(found, "run-1-memory")["data"][-1]["y"]) == 16


def test_large_models_are_cut_and_say_so() -> None:
    run = example_run()
    each = run["numerics"]["parameters"]["head.weight"]
    run["numerics"]["parameters"] = {f"p{number:04}": each | {"lost": number / 1000} for number in range(1000)}
    run["dtypes"]["modules"] = {f"m{number:04}": "float16" for number in range(1000)}
    run["dtypes"]["parameters"] = run["dtypes"]["gradients"] = {}
    run["findings"] = [finding(message=f"mistake {number}.") for number in range(500)]
    shown = page(run).text("run-1")
    assert "p0999" in shown
    assert "p0699" not in shown
    assert "700 more parameters that lose less are not shown." in shown
    assert "m0298" in shown
    assert "m0299" not in shown
    assert "701 more modules are not shown." in shown
    assert "mistake 199." in shown
    assert "mistake 200." not in shown
    assert "300 more findings are not shown." in shown


@given(
    st.lists(st.one_of(st.none(), st.integers(-50, 50)), min_size=1, max_size=400),
    st.integers(8, 100),
)
def test_decimation_keeps_what_stands_out(values: list[int | None], limit: int) -> None:
    kept = figures.decimate(values, limit)
    assert kept == sorted(set(kept))
    assert len(kept) <= max(limit, 1)
    assert kept[0] == 0
    assert kept[-1] == len(values) - 1
    known = [value for value in values if value is not None]
    if known:
        shown = [value for n in kept if (value := values[n]) is not None]
        assert (min(shown), max(shown)) == (min(known), max(known))
    if None in values:
        assert None in [values[n] for n in kept]
    if len(values) <= limit:
        assert kept == list(range(len(values)))


# When there can be none.


def test_without_plotly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "plotly"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "plotly", None)
    path = tmp_path / "report.html"
    sentence = r"^a report needs plotly, which is not installed: pip install 'pytest-amp-check\[report\]'$"
    with pytest.raises(html.ReportUnavailable, match=sentence):
        html.write([], str(path))
    with pytest.raises(html.ReportUnavailable, match=sentence):
        html.ready(str(path))
    assert not path.exists()


def test_where_it_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, reason in (
        (str(tmp_path), "Is a directory"),
        (str(tmp_path / "file" / "report.html"), "File exists|Not a directory"),
    ):
        sentence = f"^the report cannot be written to {re.escape(path)}: ({reason}): name another file$"
        with pytest.raises(html.ReportUnavailable, match=sentence):
            html.write([], path)
    with pytest.raises(html.ReportUnavailable, match=r"it is a folder: name a file in it$"):
        html.ready(str(tmp_path))
    html.ready(str(tmp_path / "new" / "report.html"))
    assert not (tmp_path / "new").exists()


def test_folders_on_the_way_are_made_and_any_path_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "report.html"
    html.write([example_run("caf\udce9.py")], str(path))
    assert "caf\\udce9.py" in path.read_text(encoding="utf-8")


# In a browser.

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """Headless Chromium without a network, spoken to over the pipe of its DevTools protocol."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()
        command = [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--proxy-server=127.0.0.1:9",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
            "about:blank",
        ]
        # Chromium reads commands from descriptor 3 and answers on 4.
        shell = ["sh", "-c", f'exec "$@" 3</dev/fd/{commands} 4>/dev/fd/{answers}', "sh", *command]
        silent = subprocess.DEVNULL
        self._process = subprocess.Popen(shell, pass_fds=(commands, answers), stdout=silent, stderr=silent)
        os.close(commands)
        os.close(answers)
        self._buffer = b""
        self._number = 0
        self._session: dict[str, str] = {}
        self.events: list[dict[str, Any]] = []

    def start(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def _message(self) -> dict[str, Any]:
        until = time.monotonic() + 60
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(until - time.monotonic(), 0))
            part = os.read(self._read, 1 << 16) if ready else b""
            assert part, "Chromium has ended or does not answer"
            self._buffer += part
        line, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        return message

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters, **self._session}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def open(self, url: str) -> None:
        self.events.clear()
        self.call("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._message())

    def view(self, width: int, scheme: str) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def value(self, expression: str) -> Any:
        # The answer of two frames later: what a change of the page leads to has happened by then.
        frames = f"new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done({expression}))))"
        answer = self.call("Runtime.evaluate", expression=frames, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, expression: str, expected: object) -> None:
        """Waits until the page has come to a value."""
        until = time.monotonic() + 30
        while (value := self.value(expression)) != expected:
            assert time.monotonic() < until, f"{expression} stays {value!r}, not {expected!r}"

    def complaints(self) -> list[str]:
        """Errors and messages on the console, and requests for anything but the file and what it holds."""
        found = []
        for event in self.events:
            method, parameters = event.get("method"), event.get("params", {})
            if method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
                found.append(json.dumps(parameters))
            if method == "Network.requestWillBeSent":
                url = parameters["request"]["url"]
                if not url.startswith(("file:", "data:", "blob:", "about:")):
                    found.append(url)
        return found

    def close(self) -> None:
        os.close(self._write)
        os.close(self._read)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no chromium is installed")
    started = Browser(tmp_path_factory.mktemp("profile"))
    try:
        started.start()
        yield started
    finally:
        started.close()


def opened(browser: Browser, folder: Path, runs: Sequence[dict[str, Any]], place: str = "") -> None:
    path = folder / "report.html"
    html.write(runs, str(path))
    browser.open(path.as_uri() + place)


@pytest.fixture(scope="module")
def report(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Browser:
    """A browser with a report of an example and twelve other runs, opened on a narrow window."""
    browser.view(420, "dark")
    runs = [example_run(), *(bare_run(f"test_{number}", steps=3) for number in range(12))]
    opened(browser, tmp_path_factory.mktemp("report"), runs)
    return browser


VISIBLE = "[...document.querySelectorAll('main > section')].filter(e => e.checkVisibility()).map(e => e.id)"
#: Charts that are seen: their names, and whether they have drawn something that is no wider than its place.
CHARTS = (
    "[...document.querySelectorAll('.chart')].filter(e => e.checkVisibility()).map(e => [e.id, "
    "e.querySelectorAll('.cartesianlayer path').length > 0 && "
    "e.querySelector('.main-svg').clientWidth <= e.parentNode.clientWidth])"
)


@pytest.mark.parametrize(("width", "scheme"), [(420, "dark"), (420, "light"), (1400, "light"), (1400, "dark")])
def test_a_browser_shows_every_part(report: Browser, width: int, scheme: str) -> None:
    report.view(width, scheme)
    assert report.value("getComputedStyle(document.documentElement).backgroundColor") == (
        "rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 23, 27)"
    )
    for section, charts in (
        ("overview", []),
        ("run-1", ["run-1-steps", "run-1-gradients", "run-1-memory"]),
        ("run-2", ["run-2-steps"]),
    ):
        report.value(f"location.hash = '#{section}'")
        assert report.value(VISIBLE) == [section]
        report.until(CHARTS, [[name, True] for name in charts])
        # Nothing but a table in its own frame is scrolled sideways.
        assert report.value("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    assert report.complaints() == []


def test_charts_follow_a_change_of_the_scheme(report: Browser) -> None:
    report.view(1400, "light")
    report.value("location.hash = '#run-1'")
    line = "getComputedStyle(document.querySelector('#run-1-steps .scatterlayer .js-line')).stroke"
    report.until(line, "rgb(0, 114, 178)")
    report.view(1400, "dark")
    report.until(line, "rgb(86, 180, 233)")
    assert report.complaints() == []


def test_the_shares_can_be_shown_linearly(report: Browser) -> None:
    report.view(1400, "light")
    report.value("location.hash = '#run-1'")
    kind = "document.getElementById('run-1-gradients').layout.yaxis.type"
    press = f"(document.querySelector('button[data-chart]').click(), {kind})"
    assert [report.value(press) for _ in range(4)] == ["linear", "log", "linear", "log"]
    assert report.complaints() == []


@pytest.mark.parametrize("before", ["overview", "run-1"])
def test_choosing_a_run_on_a_narrow_page_folds_the_list_and_moves_on_to_the_run(report: Browser, before: str) -> None:
    report.view(420, "light")
    report.value(f"location.hash = '#{before}'")
    report.until(VISIBLE, [before])
    report.value("(document.querySelector('.side details').open = true, document.querySelector('#runs a').focus())")
    for kind in ("rawKeyDown", "char", "keyUp"):
        report.call("Input.dispatchKeyEvent", type=kind, key="Enter", text="\r", windowsVirtualKeyCode=13)
    report.until(VISIBLE, ["run-1"])
    assert report.value("document.querySelector('.side details').open") is False
    assert report.value("document.activeElement.textContent") == "examples/train.py"
    assert report.complaints() == []


def test_a_chart_can_be_saved_as_a_picture(report: Browser) -> None:
    report.view(1400, "light")
    report.value("location.hash = '#run-1'")
    picture = "Plotly.toImage('run-1-steps', {format: 'png', width: 400, height: 300})"
    assert report.value(picture).startswith("data:image/png;base64,")
    assert report.complaints() == []


def test_runs_are_found_by_their_names(report: Browser) -> None:
    report.view(1400, "light")
    report.value("document.getElementById('filter').focus()")
    report.call("Input.insertText", text="TEST_1")
    shown = "[...document.querySelectorAll('#runs > li')].filter(e => e.checkVisibility()).map(e => e.textContent)"
    assert report.value(shown) == [f"✓no findings: test_{number}" for number in (1, 10, 11)]
    assert report.complaints() == []


def test_a_hostile_run_does_nothing(browser: Browser, tmp_path: Path) -> None:
    browser.view(1400, "light")
    opened(browser, tmp_path, [hostile_run()], "#run-1")
    names = ["run-1-steps", "run-1-gradients", "run-1-memory"]
    browser.until(CHARTS, [[name, True] for name in names])
    assert browser.value("document.querySelectorAll('a:not([href^=\"#\"])[href], img, svg a').length") == 0
    # A dialog of alert() would be an event of the page.
    assert not [event for event in browser.events if event.get("method") == "Page.javascriptDialogOpening"]
    assert browser.complaints() == []
