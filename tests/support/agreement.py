"""Comparison of analyzer and recorder: both check the same program, and the module lists their disagreements."""

from __future__ import annotations

import contextlib
import io
import itertools
import linecache
import random
import re
import runpy
import sys
import traceback
import types
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from marks import MISTAKES, Places, marks, places, shown

from pytest_amp_check import record
from pytest_amp_check.protocol.finding import Finding
from pytest_amp_check.protocol.rule import BOTH
from pytest_amp_check.protocol.rules import RULES
from pytest_amp_check.runtime.record.source.conditions import is_conditional
from pytest_amp_check.runtime.run import Run
from pytest_amp_check.static.engine import check_source
from pytest_amp_check.static.settings import Settings

#: Violations that a run may find although the source does not show them, and the reason.
SEEN_BY_RUNS = {
    "scaler:off-in-float16": "the value of `enabled` is often known to the run alone",
    "backward:no-scaler": "a source with a scaler in it is taken to know which of its optimizers go without",
    "scheduler:skipped": "a source takes any condition of a scheduler for one that asks whether the step was skipped",
    "size:rows": "a source does not know the sizes of batches",
    "scheduler:micro-batch": "a source knows a window by its count, a run by the gradients that wait for a step",
}
#: Violations that the source may show although not every run does: the reason, and a function that returns True if this
#: run should show the violation.
SEEN_IN_SOURCE: dict[str, tuple[str, Callable[[Run, Finding], bool]]] = {
    "scale@outside-autocast": (
        "a run that enters autocast anywhere is taken to mean float32 where it does not",
        lambda *_: False,
    ),
    "save:no-scaler": (
        "a run tells of a checkpoint only where it has stepped, through the scaler, the optimizer that is saved",
        lambda run, _: any(step.scaler is not None for step in run.steps),
    ),
    "plain-step@unscaled": (
        "a run does not know of whose gradients the number was made that a condition asks for",
        lambda _, finding: not is_conditional(finding.site),
    ),
    "window:off-by-one": ("a run tells of it where the windows after the first are all of one size", lambda *_: False),
    "window:left-over": ("a run does not know that no more micro-batches come", lambda *_: False),
    "scheduler:skipped": (
        "a source tells that a step may be skipped, a run that it was",
        lambda run, finding: any(step.skipped and step.optimizer == finding.names["optimizer"] for step in run.steps),
    ),
}
#: One mistake with two codes: gradients are unscaled, and a backward follows. The analyzer derives from conditions if
#: an accumulation window was open, and a run from its history.
SAME = {"AMP303": "AMP209"}
#: The version of torch, and codes of mistakes that are impossible in that version.
TORCH = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
IMPOSSIBLE = {"AMP109"} if TORCH >= (2, 11) else set()
#: A setting that a program leaves off.
_OFF = r"(?m)^(\w+) = False$"
COMPARED = frozenset(code for code, rule in RULES.items() if rule.detected_by == BOTH)


class Recorded(NamedTuple):
    """The result of a script that ran under the recorder."""

    run: Run
    #: The exception of the script.
    error: Exception | None
    #: The error that ended the recording early.
    failure: Exception | None

    @property
    def findings(self) -> list[Finding]:
        return self.run.findings


def recorded(
    run_script: Callable[[], object],
    within: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
) -> Recorded:
    """Run a program under the recorder in a separate thread, so that an autocast left open ends with the thread.

    ``within`` creates the context manager around recording and program, such as another device.
    """

    def go() -> Recorded:
        error = None
        runs = []
        try:
            with within(), record() as run, contextlib.redirect_stdout(io.StringIO()):
                runs.append(run.select("ALL"))
                run_script()
        except Exception as raised:  # noqa: BLE001 - some of the scripts show what torch raises
            # The frames would keep all objects of the program alive, and a layer may be a gigabyte.
            traceback.clear_frames(raised.__traceback__)
            error = raised
        return Recorded(runs[0], error, runs[0].failure)

    torch_state, python_state = torch.get_rng_state(), random.getstate()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings(), ThreadPoolExecutor(1) as pool:
            # Some of the scripts are about deprecated names and about autocast that disables itself.
            warnings.simplefilter("ignore")
            return pool.submit(go).result()
    finally:
        torch.clear_autocast_cache()
        torch.set_num_threads(threads)
        torch.set_rng_state(torch_state)
        random.setstate(python_state)


def found_exactly(run: Recorded, path: Path, expected: Places) -> None:
    """Fail unless the findings of a script's run are the expected findings, without findings in other files."""
    assert run.failure is None
    assert {finding.filename for finding in run.findings} <= {str(path)}, shown(run.findings)
    assert places(run.findings) == expected, f"{shown(run.findings)}\nraised: {run.error!r}"


def traced(path: Path, lines: set[int]) -> None:
    """Run a script and collect the executed lines."""

    def local(frame: types.FrameType, event: str, _: Any) -> Any:
        lines.add(frame.f_lineno)
        return local

    def calls(frame: types.FrameType, event: str, _: Any) -> Any:
        return local if frame.f_code.co_filename == str(path) else None

    sys.settrace(calls)
    try:
        runpy.run_path(str(path), run_name="__main__")
    finally:
        sys.settrace(None)


class Verdict(NamedTuple):
    """The findings of analyzer and recorder in one program."""

    source: str
    path: Path
    read: list[Finding]
    run: Recorded
    lines: set[int]
    #: The line at which the run raised, or 0. torch itself reports the mistake there.
    raised_at: int

    def disagreements(self) -> list[str]:
        """Return findings that only analyzer or recorder has, although both should.

        A finding of the run has happened, so the analyzer must report the violation, at least as possible. A definite
        finding of the analyzer must have happened if all lines of its trace were executed, unless an error ended the
        run. The analyzer treats a setting that the program leaves off as possibly on. Such a finding must happen with
        the setting on. A mistake that the setting would prevent is reported if the setting cannot be turned on.
        """
        if self.run.failure is not None:
            return [f"the recorder failed: {self.run.failure!r}"]
        read = {_place(finding) for finding in self.read}
        missed = [
            f
            for f in self.run.findings
            if f.code in COMPARED and f.label not in SEEN_BY_RUNS and _place(f) not in read and f.line != self.raised_at
        ]
        if missed:
            held = _checked(re.sub(_OFF, r"\1 = \1 = False", self.source), self.path)
            missed = [f for f in missed if _place(f) not in set(map(_place, held))]
        reported = [f"only the run: {f.line} {f.code} {f.message}" for f in missed]
        unseen = self._unseen(self.read)
        for on in _switched_on(self.source) if unseen else ():
            unseen = _verdict(on, self.path, self.read)._unseen(unseen)
        return reported + [f"only the source: {f.line} {f.code} {f.message}" for f in unseen]

    def _unseen(self, read: list[Finding]) -> list[Finding]:
        """Return the definite findings among ``read`` that should have happened in the run, and did not."""
        if self.run.error is not None:
            return []
        ran = {_place(finding) for finding in self.run.findings}
        unseen = []
        for finding in read:
            places = {finding.line, *(step.site.line for step in finding.trace)}
            due = finding.code in COMPARED and finding.certain and places <= self.lines
            if finding.label in SEEN_IN_SOURCE:
                due = due and SEEN_IN_SOURCE[finding.label][1](self.run.run, finding)
            if due and _place(finding) not in ran:
                unseen.append(finding)
        return unseen


def _place(finding: Finding) -> tuple[int, str]:
    return finding.line, SAME.get(finding.code, finding.code)


def _switched_on(source: str) -> list[str]:
    """Return the program with some or all of its disabled settings turned on."""
    off = re.findall(_OFF, source)
    chosen = [names for count in range(len(off)) for names in itertools.combinations(off, count + 1)]
    return [re.sub(_OFF.replace(r"\w+", "|".join(names)), r"\1 = True", source) for names in chosen]


def verdict(source: str, path: Path) -> Verdict:
    """Analyze a program, and run it as the script at a path."""
    return _verdict(source, path, _checked(source, path))


def _checked(source: str, path: Path) -> list[Finding]:
    return check_source(source, str(path), Settings(select=MISTAKES))


def _verdict(source: str, path: Path, read: list[Finding]) -> Verdict:
    linecache.clearcache()
    path.write_text(source, encoding="utf-8")
    lines: set[int] = set()
    run = recorded(lambda: traced(path, lines))
    frames = traceback.extract_tb(run.error.__traceback__) if run.error is not None else []
    raised_at = next((frame.lineno or 0 for frame in reversed(frames) if frame.filename == str(path)), 0)
    return Verdict(source, path, read, run, lines, raised_at)


def check_script(source: str, folder: Path) -> str:
    """Record a script, assert that its findings are exactly those that it marks, and return them as text."""
    script = folder / "train.py"
    script.write_text(source, encoding="utf-8")
    run = recorded(lambda: runpy.run_path(str(script), run_name="__main__"))
    assert (run.failure, run.error) == (None, None)
    assert places(run.findings) == marks(source, "runtime"), shown(run.findings)
    return shown(run.findings)
