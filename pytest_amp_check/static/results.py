"""What reading a file has shown, and how it is written down to be known the next time."""

from __future__ import annotations

from collections.abc import Callable

from ..protocol.events import Call, Site
from ..protocol.finding import SEVERITIES, Finding, Step
from ..protocol.named import NamedTuple
from ..protocol.rules import LABELS, RULES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .blind_spots import Spot
    from .entry_points import Reached
    from .interpreter.passed import Span

#: More lines or columns than any file has: Python's parser counts them in 32 bits.
PLACES = 2**31 - 1


#: What was analyzed on its own, by path and line.
Entry = tuple[str, int]


class Passed(NamedTuple):
    """The calls in other functions that a graph comes by, with those that led there.

    ``joined`` says that states were joined to check the graph, so that violations in it may have been lost.
    """

    calls: frozenset[Call]
    joined: bool


class Reading:
    """What reading one program of a file has shown, in it and in those that it calls.

    ``reached`` tells of what was read on its own which functions it called, and ``passed_by`` by which calls in these
    functions its graph comes: it says nothing of others. ``ours`` says whether the file has comments
    that are meant for this tool. ``settled`` are findings that are done with. Where blind spots are asked for,
    ``spots`` are the calls of the file that can be some, and ``passed`` are those that reading came by in any file.
    """

    __slots__ = ("findings", "ours", "passed", "passed_by", "path", "reached", "settled", "spots")

    def __init__(self, path: str, findings: list[Finding], reached: Reached, *, ours: bool = False) -> None:
        self.path = path
        self.findings = findings
        self.reached = reached
        self.passed_by: dict[Entry, Passed] = {}
        self.ours = ours
        self.settled: list[Finding] = []
        self.spots: list[Spot] = []
        self.passed: dict[Span, bool] = {}


class Answer:
    """All that reading one file has shown, and what it depends on.

    ``touched`` are the other files whose content mattered, ``asked`` the imports with where they led; ``whole`` says
    that any file of the run mattered, ``lasting`` that the same content gives the same answer.
    """

    __slots__ = ("asked", "lasting", "path", "readings", "touched", "whole")

    def __init__(self, path: str, readings: list[Reading], *, lasting: bool = True) -> None:
        self.path = path
        self.readings = readings
        self.lasting = lasting
        self.whole = False
        self.touched: set[str] = set()
        self.asked: dict[tuple[str, str, int], str | None] = {}


#: From a path as it is written to one that means the same in every directory, or back.
Rename = Callable[[str], str]


def encode(readings: list[Reading], rename: Rename) -> list[Any]:
    """Readings as lists that JSON can hold."""

    def site(at: Site) -> list[Any]:
        caller = site(at.caller) if at.caller is not None else None
        span = [at.line, at.column, at.end_line, at.end_column]
        return [rename(at.path), *span, at.function, caller, at.cell]

    def finding(found: Finding) -> list[Any]:
        witness = [[site(step.site), step.text] for step in found.witness]
        entries = [[rename(path), line, [*map(call, sorted(at))]] for (path, line), at in sorted(found.entries.items())]
        said = [found.code, found.severity, found.message, found.certain, found.condition]
        return [*said, site(found.site), witness, entries, found.label, found.names]

    def call(at: Call) -> list[Any]:
        return [rename(at[0]), at[1], at[2]]

    def reached(functions: Reached) -> list[Any]:
        return [
            [rename(path), line, [[rename(other), at] for other, at in sorted(called)]]
            for (path, line), called in functions.items()
        ]

    def passed_by(entries: dict[Entry, Passed]) -> list[Any]:
        return [
            [rename(path), line, [*map(call, sorted(each.calls))], each.joined]
            for (path, line), each in entries.items()
        ]

    return [
        [
            list(map(finding, r.findings)),
            reached(r.reached),
            passed_by(r.passed_by),
            r.ours,
            list(map(finding, r.settled)),
        ]
        for r in readings
    ]


def decode(path: str, written: Any, rename: Rename) -> list[Reading]:
    """The readings of a file. Raises ValueError or its like for what :func:`encode` would not write."""
    # Asked for one by one, each would load its rule.
    labels = {"", *LABELS}

    def site(at: Any) -> Site:
        place, line, column, end_line, end_column, function, caller, cell = at
        outer = site(caller) if caller is not None else None
        span = (number(line), number(column), number(end_line), number(end_column))
        return Site(rename(place), *span, text(function), outer, number(cell) if cell is not None else None)

    def finding(found: Any) -> Finding:
        code, severity, message, certain, condition, place, witness, entries, label, names = found
        if severity not in SEVERITIES or label not in labels:
            raise ValueError(severity, label)
        steps = tuple(Step(site(at), text(said)) for at, said in witness)
        made = Finding(code, RULES[code].name, severity, text(message), site(place), certain=truth(certain))
        made.condition, made.witness = text(condition), steps
        made.label, made.names = text(label), {text(key): text(said) for key, said in names.items()}
        made.entries = {(rename(at), number(line)): frozenset(map(call, calls)) for at, line, calls in entries}
        return made

    def call(at: Any) -> Call:
        place, line, column = at
        return rename(place), number(line), number(column)

    readings: list[Reading] = []
    for findings, reached, passed_by, ours, settled in written:
        functions = {
            (rename(at), number(line)): {(rename(other), number(there)) for other, there in called}
            for at, line, called in reached
        }
        reading = Reading(path, list(map(finding, findings)), functions, ours=truth(ours))
        reading.passed_by = {
            (rename(at), number(line)): Passed(frozenset(map(call, calls)), truth(joined))
            for at, line, calls, joined in passed_by
        }
        reading.settled = list(map(finding, settled))
        readings.append(reading)
    return readings


# What a cache says may have been written by anybody.


def number(value: Any) -> int:
    """A number that a place in a file may have."""
    if type(value) is not int or abs(value) > PLACES:
        raise ValueError(value)
    return value


def truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(value)
    return value


def text(value: Any) -> str:
    """What may be shown on a terminal."""
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError(value)
    return value
