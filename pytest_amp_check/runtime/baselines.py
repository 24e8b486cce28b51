"""Baselines: JSON files beside the tests that hold the accepted results of a test, and the comparison with a new run.

One file holds one test, so parallel test processes never write the same file. The file has one entry for each kind of
device and torch version, because dtypes and memory depend on both.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from ..protocol.bounded_json import parse_json
from ..protocol.byte_sizes import format_size
from ..protocol.regular_files import LARGEST_DOCUMENT, read_regular
from .emulate.cuda import is_emulating

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .measure.dtypes import Dtypes
    from .measure.memory import Memory
    from .record.steps import StepRecord

#: The folder of the baseline files, beside the test files.
FOLDER = "amp_baselines"
UPDATE = "--amp-update-baselines"
#: Largest accepted relative difference of a memory figure. Differences by rounding alone are smaller.
MEMORY = 0.02
#: Largest number of differences of one kind that a message lists.
_SHOWN = 5
_Entry = dict[str, Any]


class Baselines:
    """The baselines of one test: the path of the file, and the names that the test has compared so far."""

    def __init__(self, test_file: str, test: str, nodeid: str, *, update: bool) -> None:
        self.path = baseline_path(test_file, test)
        self.nodeid = nodeid
        self.update = update
        self.compared_names: list[str] = []

    @property
    def update_command(self) -> str:
        return f'pytest {UPDATE} "{self.nodeid}"'

    def compare(self, current: Mapping[str, Any], name: str, memory: float) -> None:
        """Compare a run with its baseline, or write the run as the new baseline if updates are enabled.

        Raise AssertionError if the run differs or the baseline is missing. Raise ValueError if the test compares one
        name twice.
        """
        __tracebackhide__ = True
        if name in self.compared_names:
            raise ValueError(
                f"assert_baseline() was called twice for the baseline {name!r} of this test: give each run its own name"
            )
        self.compared_names.append(name)
        entries = self.read()
        environment = describe_environment()
        previous = entries.get(environment, {}).get(name)
        if self.update:
            if previous is None or list(find_differences(previous, current, memory)):
                entries.setdefault(environment, {})[name] = dict(current)
                self._write(entries)
            return
        if previous is None:
            others = [each for each, runs in entries.items() if name in runs]
            has = f"it has one for {', '.join(others)}" if others else "it has none"
            raise AssertionError(f"There is no baseline {name!r} for {environment} ({has}): {self.update_command}")
        wrong = list(find_differences(previous, current, memory))
        if wrong:
            raise AssertionError(
                "\n".join(
                    [f"The run differs from its baseline {name!r} in {self.path} ({environment}):"]
                    + [f"  {line}" for line in wrong]
                    + [f"where that is meant: {self.update_command}"]
                )
            )

    def unused_names(self) -> list[str]:
        """Return the names of this machine's baselines that the test has not compared."""
        return sorted(self.read().get(describe_environment(), {}).keys() - set(self.compared_names))

    def remove_names(self, names: Iterable[str]) -> None:
        """Remove baselines by name, for every machine."""
        entries = self.read()
        for runs in entries.values():
            for name in names:
                runs.pop(name, None)
        self._write({each: runs for each, runs in entries.items() if runs})

    def read(self) -> dict[str, dict[str, _Entry]]:
        """Return the content of the baseline file: environment to name to entry.

        Raise ValueError if the file is no baseline.
        """
        try:
            entries = parse_json(read_regular(self.path, LARGEST_DOCUMENT).decode())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise ValueError(f"{self.path} is not valid JSON: {error}") from None
        if not isinstance(entries, dict) or not all(isinstance(runs, dict) for runs in entries.values()):
            raise ValueError(f"{self.path} is no baseline: remove it, and run {self.update_command}")
        return entries

    def _write(self, entries: Mapping[str, Any]) -> None:
        if not entries:
            os.remove(self.path)
            return
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        temporary_path = f"{self.path}.{os.getpid()}"
        with open(temporary_path, "w", encoding="utf-8") as file:
            json.dump(entries, file, indent=2, sort_keys=True)
            file.write("\n")
        os.replace(temporary_path, self.path)


def baseline_path(test_file: str, test: str) -> str:
    """Return the path of a test's baseline file. ``test`` is the part of the pytest node ID after the file name."""
    plain = re.sub(r"[^\w.-]+", "-", test.replace("::", ".")).strip("-")
    if plain != test:
        # Two test names may differ only in characters that file names cannot contain; the hash keeps their files apart.
        plain += "-" + hashlib.sha256(test.encode()).hexdigest()[:6]
    folder, name = os.path.split(test_file)
    return os.path.join(folder, FOLDER, os.path.splitext(name)[0], f"{plain}.json")


def describe_environment() -> str:
    """Return the kind of device and the torch version, on which the figures depend: "CUDA on the CPU, torch 2.13"."""
    version = ".".join(torch.__version__.split(".")[:2])
    device = (
        "CUDA on the CPU" if is_emulating() else torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    )
    return f"{device}, torch {version}"


def make_entry(
    steps: Sequence[StepRecord], total: int, scales: Iterable[Any], dtypes: Dtypes | None, memory: Memory | None
) -> _Entry:
    """Return the baseline entry of a run.

    All figures are recorded, and repeat exactly in every run of the same code.
    """
    new_entry: _Entry = {
        "steps": total,
        "skipped": [step.index for step in steps if step.skipped],
        "scale": [list(change) for change in scales],
    }
    if dtypes is not None:
        known = dtypes.as_dict()
        new_entry["dtypes"] = {part: known[part] for part in ("modules", "parameters", "gradients", "optimizer state")}
        new_entry["dtypes"]["loss"] = {"loss": known["loss"]}
    if memory is not None:
        new_entry["memory"] = {"peak": memory.peak, **memory.highest}
    return new_entry


def find_differences(previous: Mapping[str, Any], current: Mapping[str, Any], memory: float) -> Iterator[str]:
    """Yield one line of text for each difference between two baseline entries."""
    for section in ("dtypes", "memory"):
        if section in previous and section not in current:
            yield f"{section}: the baseline has them, and this run was recorded without {section}=True"
        elif section in current and section not in previous:
            yield f"{section}: recorded now, and not in the baseline"
    yield from _limit_lines(
        _compare_dtypes(previous.get("dtypes", {}), current.get("dtypes", {})) if "dtypes" in current else ()
    )
    if "memory" in previous and "memory" in current:
        yield from _compare_memory(previous["memory"], current["memory"], memory)
    yield from _compare_scale(previous, current)


def _limit_lines(lines: Iterable[str]) -> Iterator[str]:
    all_lines = list(lines)
    yield from all_lines[:_SHOWN]
    if len(all_lines) > _SHOWN:
        yield f"and {len(all_lines) - _SHOWN} more dtypes"


def _compare_dtypes(previous: _Entry, current: _Entry) -> Iterator[str]:
    for section in previous:
        old, new = previous[section], current.get(section, {})
        for name in [*old, *(name for name in new if name not in old)]:
            if old.get(name) != new.get(name):
                what = section if section == "loss" else f"{section} {name or '(the model)'}"
                yield f"{what}: {new.get(name) or 'not there'}, was {old.get(name) or 'not there'}"


def _compare_memory(previous: _Entry, current: _Entry, tolerance: float) -> Iterator[str]:
    for name in [*previous, *(name for name in current if name not in previous)]:
        old, new = previous.get(name, 0), current.get(name, 0)
        if abs(new - old) > tolerance * old:
            by = f"{(new - old) / old:+.1%}" if old else "new"
            yield f"memory, {name}: {format_size(new)}, was {format_size(old)} ({by}, {new:,} bytes for {old:,})"


def _compare_scale(previous: Mapping[str, Any], current: Mapping[str, Any]) -> Iterator[str]:
    if previous["steps"] != current["steps"]:
        yield f"steps: {current['steps']}, were {previous['steps']}"
    if previous["skipped"] != current["skipped"]:
        old, new = previous["skipped"], current["skipped"]
        more = sorted(set(new) ^ set(old))[:_SHOWN]
        changed = ", ".join(f"step {step} {'is' if step in new else 'was'}" for step in more)
        yield f"skipped steps: {len(new)}, were {len(old)} ({changed})"
    if previous["scale"] != current["scale"]:
        yield f"loss scale: {_format_scale_history(current['scale'])}; was {_format_scale_history(previous['scale'])}"


def _format_scale_history(history: Iterable[Any]) -> str:
    return ", ".join(f"{scale:g} from step {step}" for step, scale in list(history)[:_SHOWN]) or "none"


def find_orphans(test_file: str, tests: Iterable[str]) -> list[str]:
    """Return the baseline files beside a test file that belong to none of its tests."""
    folder = os.path.dirname(baseline_path(test_file, "x"))
    expected_paths = {baseline_path(test_file, test) for test in tests}
    try:
        names = sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    paths = [os.path.join(folder, name) for name in names if name.endswith(".json")]
    return [path for path in paths if path not in expected_paths]


def find_abandoned(folder: str) -> list[str]:
    """Return the baseline files in a folder of tests whose test files no longer exist."""
    paths = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for name in sorted(os.listdir(os.path.join(folder, FOLDER))):
            if not os.path.exists(os.path.join(folder, f"{name}.py")):
                paths += find_orphans(os.path.join(folder, f"{name}.py"), ())
    return paths
