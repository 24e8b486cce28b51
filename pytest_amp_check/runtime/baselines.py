"""Baselines: what a test recorded when somebody looked at it last, as JSON beside the tests, and what differs since.

One file holds one test, so that processes which share out the tests never write the same one. In it stands an entry for
each kind of device and version of torch, as both decide about dtypes and memory.
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
from .emulate.cuda import emulating

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .measure.dtypes import Dtypes
    from .measure.memory import Memory
    from .record.steps import StepRecord

#: The folder beside the tests.
FOLDER = "amp_baselines"
UPDATE = "--amp-update-baselines"
#: How far memory may be from what it was, as a part of that: what a category has by rounding alone lies below.
MEMORY = 0.02
#: Differences of one kind that a message names.
_SHOWN = 5
_Entry = dict[str, Any]


class Baselines:
    """The baselines of one test: where they are, and which of them it has asked for."""

    def __init__(self, test_file: str, test: str, nodeid: str, *, update: bool) -> None:
        self.path = place(test_file, test)
        self.nodeid = nodeid
        self.update = update
        self.asked: list[str] = []

    @property
    def command(self) -> str:
        return f'pytest {UPDATE} "{self.nodeid}"'

    def compare(self, now: Mapping[str, Any], name: str, memory: float) -> None:
        """Raise AssertionError where an entry is not what the baseline says; write it where updates are wanted."""
        __tracebackhide__ = True
        if name in self.asked:
            raise ValueError(
                f"assert_baseline() was called twice for the baseline {name!r} of this test: give each run its own name"
            )
        self.asked.append(name)
        known = self.read()
        environment = where()
        before = known.get(environment, {}).get(name)
        if self.update:
            if before is None or list(differences(before, now, memory)):
                known.setdefault(environment, {})[name] = dict(now)
                self._write(known)
            return
        if before is None:
            others = [each for each, runs in known.items() if name in runs]
            has = f"it has one for {', '.join(others)}" if others else "it has none"
            raise AssertionError(f"There is no baseline {name!r} for {environment} ({has}): {self.command}")
        wrong = list(differences(before, now, memory))
        if wrong:
            raise AssertionError(
                "\n".join(
                    [f"The run differs from its baseline {name!r} in {self.path} ({environment}):"]
                    + [f"  {line}" for line in wrong]
                    + [f"where that is meant: {self.command}"]
                )
            )

    def unasked(self) -> list[str]:
        """The baselines for this machine that the test has not asked for."""
        return sorted(self.read().get(where(), {}).keys() - set(self.asked))

    def forget(self, names: Iterable[str]) -> None:
        """Take baselines out, for every machine."""
        known = self.read()
        for runs in known.values():
            for name in names:
                runs.pop(name, None)
        self._write({each: runs for each, runs in known.items() if runs})

    def read(self) -> dict[str, dict[str, _Entry]]:
        """What the file says; ValueError where it is no baseline."""
        try:
            known = parse_json(read_regular(self.path, LARGEST_DOCUMENT).decode())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise ValueError(f"{self.path} is not valid JSON: {error}") from None
        if not isinstance(known, dict) or not all(isinstance(runs, dict) for runs in known.values()):
            raise ValueError(f"{self.path} is no baseline: remove it, and run {self.command}")
        return known

    def _write(self, known: Mapping[str, Any]) -> None:
        if not known:
            os.remove(self.path)
            return
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        waiting = f"{self.path}.{os.getpid()}"
        with open(waiting, "w", encoding="utf-8") as file:
            json.dump(known, file, indent=2, sort_keys=True)
            file.write("\n")
        os.replace(waiting, self.path)


def place(test_file: str, test: str) -> str:
    """Where the baselines of a test are; ``test`` is what follows the file in the name that pytest has for it."""
    plain = re.sub(r"[^\w.-]+", "-", test.replace("::", ".")).strip("-")
    if plain != test:
        # Names that differ in what no file name may hold have files of their own.
        plain += "-" + hashlib.sha256(test.encode()).hexdigest()[:6]
    folder, name = os.path.split(test_file)
    return os.path.join(folder, FOLDER, os.path.splitext(name)[0], f"{plain}.json")


def where() -> str:
    """The kind of device and the version of torch, on which the figures depend: "CUDA on the CPU, torch 2.13"."""
    version = ".".join(torch.__version__.split(".")[:2])
    device = "CUDA on the CPU" if emulating() else torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return f"{device}, torch {version}"


def entry(
    steps: Sequence[StepRecord], total: int, scales: Iterable[Any], dtypes: Dtypes | None, memory: Memory | None
) -> _Entry:
    """What a baseline holds of a run: all of it was recorded, and is the same in every run of the same code."""
    found: _Entry = {
        "steps": total,
        "skipped": [step.index for step in steps if step.skipped],
        "scale": [list(change) for change in scales],
    }
    if dtypes is not None:
        known = dtypes.as_dict()
        found["dtypes"] = {part: known[part] for part in ("modules", "parameters", "gradients", "optimizer state")}
        found["dtypes"]["loss"] = {"loss": known["loss"]}
    if memory is not None:
        found["memory"] = {"peak": memory.peak, **memory.highest}
    return found


def differences(before: Mapping[str, Any], now: Mapping[str, Any], memory: float) -> Iterator[str]:
    """What is not as it was, in words."""
    for part in ("dtypes", "memory"):
        if part in before and part not in now:
            yield f"{part}: the baseline has them, and this run was recorded without {part}=True"
        elif part in now and part not in before:
            yield f"{part}: recorded now, and not in the baseline"
    yield from _listed(_dtypes(before.get("dtypes", {}), now.get("dtypes", {})) if "dtypes" in now else ())
    if "memory" in before and "memory" in now:
        yield from _memory(before["memory"], now["memory"], memory)
    yield from _scale(before, now)


def _listed(lines: Iterable[str]) -> Iterator[str]:
    found = list(lines)
    yield from found[:_SHOWN]
    if len(found) > _SHOWN:
        yield f"and {len(found) - _SHOWN} more dtypes"


def _dtypes(before: _Entry, now: _Entry) -> Iterator[str]:
    for part in before:
        old, new = before[part], now.get(part, {})
        for name in [*old, *(name for name in new if name not in old)]:
            if old.get(name) != new.get(name):
                what = part if part == "loss" else f"{part} {name or '(the model)'}"
                yield f"{what}: {new.get(name) or 'not there'}, was {old.get(name) or 'not there'}"


def _memory(before: _Entry, now: _Entry, tolerance: float) -> Iterator[str]:
    for name in [*before, *(name for name in now if name not in before)]:
        old, new = before.get(name, 0), now.get(name, 0)
        if abs(new - old) > tolerance * old:
            by = f"{(new - old) / old:+.1%}" if old else "new"
            yield f"memory, {name}: {format_size(new)}, was {format_size(old)} ({by}, {new:,} bytes for {old:,})"


def _scale(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    if before["steps"] != now["steps"]:
        yield f"steps: {now['steps']}, were {before['steps']}"
    if before["skipped"] != now["skipped"]:
        old, new = before["skipped"], now["skipped"]
        more = sorted(set(new) ^ set(old))[:_SHOWN]
        changed = ", ".join(f"step {step} {'is' if step in new else 'was'}" for step in more)
        yield f"skipped steps: {len(new)}, were {len(old)} ({changed})"
    if before["scale"] != now["scale"]:
        yield f"loss scale: {_trajectory(now['scale'])}; was {_trajectory(before['scale'])}"


def _trajectory(history: Iterable[Any]) -> str:
    return ", ".join(f"{scale:g} from step {step}" for step, scale in list(history)[:_SHOWN]) or "none"


def orphans(test_file: str, tests: Iterable[str]) -> list[str]:
    """Files of baselines beside a test file that belong to none of its tests."""
    folder = os.path.dirname(place(test_file, "x"))
    known = {place(test_file, test) for test in tests}
    try:
        names = sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    paths = [os.path.join(folder, name) for name in names if name.endswith(".json")]
    return [path for path in paths if path not in known]


def abandoned(folder: str) -> list[str]:
    """Files of baselines in a folder of tests whose test files are gone."""
    found = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for name in sorted(os.listdir(os.path.join(folder, FOLDER))):
            if not os.path.exists(os.path.join(folder, f"{name}.py")):
                found += orphans(os.path.join(folder, f"{name}.py"), ())
    return found
