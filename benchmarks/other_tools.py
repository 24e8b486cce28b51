"""Reports of other tools about a training with one non-finite value, for the table of not_finite.py.

Each tool is used according to its documentation, in the environment of the benchmark. Tools that are not installed are
named without figures. (``pip install torch-audit neuraldbg transformers`` installs the packages.)
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import io
import os
import re
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

#: Words with which a tool reports a non-finite value.
_SAYS = re.compile(r"\b(?:nan|inf)s?\b|(?:nan|inf)_detected|non-?finite|infinit", re.IGNORECASE)
#: Lines of tracebacks.
_LINE = re.compile(r'File "([^"]+)", line (\d+)')
#: Folder of the trainings.
_HERE = os.path.dirname(os.path.abspath(__file__))


class Seen(NamedTuple):
    """The report of a tool about the first non-finite value: step, module and line, each None if not reported."""

    step: int | None = None
    module: str | None = None
    line: tuple[str, int] | None = None


class Training(NamedTuple):
    """A training as given to a tool. ``train`` runs the step with a number, and returns its loss."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    steps: int
    train: Callable[[int], float]


#: Function that returns a tool's report, or None without a report.
Tool = Callable[[Training], Seen | None]


def audit(training: Training) -> Seen | None:
    """Run torch-audit at every step. By default, torch-audit checks one of a thousand steps."""
    runtime = importlib.import_module("torch_audit")
    auditor = runtime.Auditor(
        training.model, optimizer=training.optimizer, every_n_steps=1, suppress_internal_errors=True
    )
    seen = None
    with auditor:
        auditor.autopatch()
        try:
            for number in range(training.steps):
                training.train(number)
                for finding in auditor.pop_new_findings():
                    if seen is None and _SAYS.search(finding.message):
                        seen = Seen(number, finding.module_path or finding.entity)
        finally:
            auditor.unpatch(detach=False)
    return seen


def neuraldbg(training: Training) -> Seen | None:
    debugger = importlib.import_module("neuraldbg").NeuralDbg(training.model)
    with debugger:
        for number in range(training.steps):
            debugger.step = number
            debugger.record_loss(training.train(number))
    for event in debugger.get_events():
        if _SAYS.search(f"{event.to_state} {event.metadata}"):
            # The name begins with the class of the module.
            return Seen(event.step, event.layer_name.partition("_")[2])
    return None


def underflow(training: Training) -> Seen | None:
    """Run DebugUnderflowOverflow of transformers, which prints the modules up to an overflow and raises."""
    debug = importlib.import_module("transformers.debug_utils")
    watch = debug.DebugUnderflowOverflow(training.model)
    shown = io.StringIO()
    for number in range(training.steps):
        try:
            with contextlib.redirect_stdout(shown):
                training.train(number)
        except ValueError as error:
            if not _SAYS.search(str(error)) or not watch.detected_overflow:
                raise
            names = re.findall(r"^\s+(\S+) [A-Z]\w*$", shown.getvalue(), re.MULTILINE)
            return Seen(number, names[-1] if names else None)
    return None


def anomaly(training: Training) -> Seen | None:
    """Run torch's anomaly mode, which raises, and warns with the lines of the forward."""
    for number in range(training.steps):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                with torch.autograd.set_detect_anomaly(True):
                    training.train(number)
            except RuntimeError as error:
                if not _SAYS.search(str(error)):
                    raise
                lines = [
                    _LINE.findall(str(each.message)) for each in said if "Traceback of forward" in str(each.message)
                ]
                # Below a line of the program are lines of torch, and of the emulation.
                own = [(path, line) for path, line in (lines[-1] if lines else []) if path.startswith(_HERE)]
                last = own[-1] if own else None
                return Seen(number, None, (last[0], int(last[1])) if last is not None else None)
    return None


#: Name of a tool -> its package ("" for torch itself), and the function that runs the tool.
TOOLS: dict[str, tuple[str, Tool]] = {
    "torch-audit": ("torch-audit", audit),
    "neuraldbg": ("neuraldbg", neuraldbg),
    "transformers' DebugUnderflowOverflow": ("transformers", underflow),
    "set_detect_anomaly": ("torch", anomaly),
}


def installed(package: str) -> str | None:
    """Return the installed version of a package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
