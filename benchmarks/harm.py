"""Measurement of harm: run each rule's bad and good example on the CPU, and write the table that `explain` quotes.

    python benchmarks/harm.py            measures, and writes pytest_amp_check/protocol/measured_harm.py
    python benchmarks/harm.py AMP201     measures some rules, and prints the sentences

Each example runs unchanged, with its own seed. The measurement needs no recorder: hooks of torch's optimizers see each
step that is really taken, its gradients and the movement of the parameters. Without a difference, no harm is claimed.
consequences.py has programs for effects that an example is too short to show.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import math
import os
import random
import runpy
import sys
import tempfile
import textwrap
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import consequences
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from pytest_amp_check.protocol.rules import RULES

TABLE = Path(__file__).resolve().parents[1] / "pytest_amp_check" / "protocol" / "measured_harm.py"
#: Lines of an example's output that are quoted, and the maximum length of a quoted line in characters.
LINES, LENGTH = 4, 90
#: The longest line that the formatter allows, in characters.
LINE = 120
#: Smallest ratio of two figures that counts as a difference.
TELLING = 1.02


class Steps:
    """The steps of one optimizer.

    ``norms`` are the norms of the gradients that each step saw (float32), ``zeros`` the shares of gradients that were
    exactly zero, ``moved`` the norm of the parameter change over all steps.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._first = {p: p.detach().clone() for group in optimizer.param_groups for p in group["params"]}
        self.norms: list[float] = []
        self.zeros: list[float] = []

    def saw(self) -> None:
        gradients = [p.grad.detach().float() for p in self._first if p.grad is not None]
        if gradients:
            self.norms.append(float(torch.stack([g.norm() for g in gradients]).norm()))
            self.zeros.append(sum(int((g == 0).sum()) for g in gradients) / sum(g.numel() for g in gradients))

    @property
    def moved(self) -> float:
        return math.sqrt(sum(float((p.detach().float() - q.float()).pow(2).sum()) for p, q in self._first.items()))

    @property
    def broken(self) -> bool:
        return any(not bool(p.detach().isfinite().all()) for p in self._first)


class Figures:
    """The results of one run of an example.

    ``taken`` and ``skipped`` count optimizer steps, ``scale`` is the loss scale after the last update, ``open`` is True
    if autocast was still enabled at the end, ``error`` is the exception that ended the run, ``printed`` the output
    lines.
    """

    def __init__(self) -> None:
        self.taken = 0
        self.skipped = 0
        self.scale: float | None = None
        self.open = False
        self.error = ""
        self.warned = 0
        self.printed: list[str] = []
        self.steps: dict[torch.optim.Optimizer, Steps] = {}

    def before(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if optimizer not in self.steps:
            self.steps[optimizer] = Steps(optimizer)
        self.steps[optimizer].saw()

    def after(self, *_: Any) -> None:
        self.taken += 1

    @property
    def broken(self) -> bool:
        return any(steps.broken for steps in self.steps.values())


@contextlib.contextmanager
def watched(figures: Figures) -> Iterator[None]:
    """Record each step by torch's own hooks, and each update of the scale by a wrapper."""
    update = torch.amp.GradScaler.update

    @functools.wraps(update)
    def updated(self: torch.amp.GradScaler, new_scale: Any = None) -> None:
        before = self.get_scale()
        update(self, new_scale)
        figures.scale = self.get_scale()
        figures.skipped += new_scale is None and figures.scale < before

    hooks = [
        register_optimizer_step_pre_hook(figures.before),
        register_optimizer_step_post_hook(figures.after),
    ]
    torch.amp.GradScaler.update = updated  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.amp.GradScaler.update = update  # type: ignore[method-assign]
        for hook in hooks:
            hook.remove()


def run(source: str, around: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext) -> Figures:
    """Run an example in a separate thread and folder, inside the context manager ``around``, and return its figures."""
    figures = Figures()

    def go() -> None:
        shown = io.StringIO()
        with (
            around(),
            watched(figures),
            contextlib.redirect_stdout(shown),
            warnings.catch_warnings(record=True) as said,
        ):
            warnings.simplefilter("always")
            try:
                runpy.run_path("example.py", run_name="__main__")
            except Exception as error:  # noqa: BLE001 - what torch raises is a result
                figures.error = f"{type(error).__name__}: {' '.join(str(error).split())}"
            figures.open = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
            figures.warned = len(said)
        figures.printed = shown.getvalue().splitlines()

    here, compiler, arguments = os.getcwd(), torch.compile, sys.argv
    torch.compile = functools.partial(torch.compile, backend="aot_eager")
    sys.argv = ["example.py"]
    try:
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as pool:
            os.chdir(folder)
            Path("example.py").write_text(source)
            torch.manual_seed(0)
            random.seed(0)
            pool.submit(go).result()
            os.chdir(here)
    finally:
        os.chdir(here)
        torch.compile, sys.argv = compiler, arguments
        torch.clear_autocast_cache()
    return figures


def times(bad: float, good: float, more: str, less: str) -> str:
    """Format the ratio of two figures; an empty string if the figures do not differ."""
    if not (math.isfinite(bad) and math.isfinite(good)) or good <= 0 or bad <= 0:
        return ""
    ratio = bad / good
    if 1 / TELLING < ratio < TELLING:
        return ""
    number, word = (ratio, more) if ratio > 1 else (1 / ratio, less)
    shown = f"{number:.2f}" if number < 10 else f"{number:,.0f}" if number < 1e6 else f"{number:.1e}"
    return f"{shown} times {word}"


def middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else math.nan


def of_steps(bad: Steps, good: Steps) -> list[str]:
    """Return phrases about the differences for one optimizer."""
    said: list[str] = []
    gradients = times(middle(bad.norms), middle(good.norms), "larger", "smaller")
    if gradients:
        said.append(f"the gradients that the optimizer sees are {gradients} in the median step")
    elif middle(bad.norms) == 0 < middle(good.norms):
        said.append("the gradients that the optimizer sees are zero in the median step")
    zeros, others = middle(bad.zeros), middle(good.zeros)
    if bad.norms and zeros - others > 0.02 and zeros < 1:
        said.append(f"{zeros:.0%} of the gradients are exactly zero, not {others:.0%}")
    if bad.moved == 0 < good.moved:
        said.append("the parameters do not move at all")
    moved = times(bad.moved, good.moved, "further", "less far")
    if moved:
        said.append(f"the parameters move {moved}")
    return said


def sentence(bad: Figures, good: Figures) -> str:
    """Return a sentence about the measurable effects of the mistake; an empty string without a difference."""
    said: list[str] = []
    if bad.error and bad.error != good.error:
        text = bad.error if len(bad.error) <= 160 else bad.error[:157] + "..."
        said.append(f"it ends with `{text}`")
    if bad.broken and not good.broken:
        said.append("parameters end as values that are not finite")
    if bad.open and not good.open:
        said.append("autocast is still enabled when it is over")
    if not bad.error:
        if (bad.taken, bad.skipped) != (good.taken, good.skipped):
            said.append(
                f"steps taken are {bad.taken} and skipped {bad.skipped}, where they would be {good.taken} and "
                f"{good.skipped}"
            )
        # With several optimizers, the optimizer with the most differences is described.
        each = [of_steps(*pair) for pair in zip(bad.steps.values(), good.steps.values(), strict=False)]
        telling: list[str] = max(each, key=len, default=[])
        said += telling
        if bad.scale is not None and good.scale is not None and bad.scale != good.scale:
            said.append(f"the loss scale ends at {bad.scale:g}, not {good.scale:g}")
    if bad.printed and bad.printed != good.printed:
        many = max(len(bad.printed), len(good.printed)) > LINES
        # If both runs print equally many lines, the last line shows the effect.
        part = slice(-1, None) if len(bad.printed) == len(good.printed) else slice(1)
        shown, other = (quoted(each.printed[part] if many else each.printed) for each in (bad, good))
        said.append(f"it prints {shown}" + (f", where the good example prints {other}" if other else ""))
    if bad.warned > good.warned:
        said.append(f"warnings: {bad.warned}, where the good example gives {good.warned or 'none'}")
    return "; ".join(said)


def quoted(lines: list[str]) -> str:
    """Format printed lines as code."""
    short = (line if len(line) <= LENGTH else line[: LENGTH - 3] + "..." for line in dict.fromkeys(lines))
    return ", ".join(f"`{line.replace('`', chr(39))}`" for line in short)


def measure(code: str) -> str:
    rule = RULES[code]
    return sentence(run(rule.bad_example), run(rule.good_example))


def main() -> None:
    torch.set_num_threads(1)
    found: dict[str, str] = {}
    made: dict[str, str] = {}
    for code in sys.argv[1:] or RULES:
        found[code] = "" if code in consequences.NOT_HERE else measure(code)
        made[code] = consequences.measure(code) if code in consequences.SHOWN else ""
        for text in filter(None, (found[code], made[code], consequences.NOT_HERE.get(code))):
            print(f"{code}: {text}", flush=True)
    if sys.argv[1:]:
        return
    lines = [
        '"""Measured effects of each rule\'s mistake, written by benchmarks/harm.py."""',
        "",
        "#: Version of torch for the measurements, on the CPU.",
        f'TORCH = "{torch.__version__.partition("+")[0]}"',
        *table("MEASURED", "measured difference between the bad example and the good example", found),
        *table("SHOWN", "measured difference of a demonstration program with and without the mistake", made),
        *table("NOT_HERE", "reason for a missing measurement", consequences.NOT_HERE),
    ]
    TABLE.write_text("\n".join(lines) + "\n")


def table(name: str, what: str, texts: dict[str, str]) -> list[str]:
    """Return the source lines of one table."""
    entries = [entry for code, text in texts.items() if text for entry in written(code, text)]
    return [f"#: Rule code -> {what}.", f"{name} = {{", *entries, "}"]


def written(code: str, text: str) -> list[str]:
    """Return the source lines of one entry of the table."""
    parts = [json.dumps(part, ensure_ascii=False) for part in split_text(text)]
    line = f'    "{code}": {parts[0]},'
    if len(parts) == 1 and len(line) <= LINE:
        return [line]
    return [f'    "{code}": (', *(f"        {part}" for part in parts), "    ),"]


def split_text(text: str) -> list[str]:
    """Split a text into parts of one line each. A text that fits into a line is not split."""
    if len(json.dumps(text, ensure_ascii=False)) + 8 <= LINE:
        return [text]
    lines = textwrap.wrap(text, 100, break_long_words=False, break_on_hyphens=False)
    return [line + " " for line in lines[:-1]] + lines[-1:]


if __name__ == "__main__":
    main()
