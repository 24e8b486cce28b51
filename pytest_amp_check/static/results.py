"""What reading a file has shown, and how it is written down to be known the next time."""

from __future__ import annotations

from collections.abc import Callable

from ..protocol.events import Call, Site
from ..protocol.fast_namedtuple import NamedTuple
from ..protocol.finding import SEVERITIES, Finding, TraceStep
from ..protocol.rules import LABELS, RULES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .entry_points import ReachedFunctions
    from .interpreter.visited_calls import Span
    from .unanalyzed_calls import UnanalyzedCall

#: More lines or columns than any file has: Python's parser counts them in 32 bits.
MAX_POSITION = 2**31 - 1


#: What was analyzed on its own, by path and line.
Entry = tuple[str, int]


class GraphCalls(NamedTuple):
    """The calls in other functions that a graph comes by, with those that led there.

    ``joined`` says that states were joined to check the graph, so that violations in it may have been lost.
    """

    calls: frozenset[Call]
    has_joined_states: bool


class AnalysisResult:
    """What reading one program of a file has shown, in it and in those that it calls.

    ``reached`` tells of what was read on its own which functions it called, and ``passed_by`` by which calls in these
    functions its graph comes: it says nothing of others. ``ours`` says whether the file has comments
    that are meant for this tool. ``settled`` are findings that are done with. Where blind spots are asked for,
    ``spots`` are the calls of the file that can be some, and ``passed`` are those that reading came by in any file.
    """

    __slots__ = (
        "findings",
        "finished_findings",
        "graph_calls",
        "has_own_comments",
        "path",
        "protocol_calls",
        "reached_functions",
        "visited_calls",
    )

    def __init__(
        self, path: str, findings: list[Finding], reached_functions: ReachedFunctions, *, has_own_comments: bool = False
    ) -> None:
        self.path = path
        self.findings = findings
        self.reached_functions = reached_functions
        self.graph_calls: dict[Entry, GraphCalls] = {}
        self.has_own_comments = has_own_comments
        self.finished_findings: list[Finding] = []
        self.protocol_calls: list[UnanalyzedCall] = []
        self.visited_calls: dict[Span, bool] = {}


class FileResult:
    """All that reading one file has shown, and what it depends on.

    ``touched`` are the other files whose content mattered, ``asked`` the imports with where they led; ``whole`` says
    that any file of the run mattered, ``lasting`` that the same content gives the same answer.
    """

    __slots__ = ("dependencies", "depends_on_all", "import_targets", "is_cacheable", "path", "results")

    def __init__(self, path: str, results: list[AnalysisResult], *, is_cacheable: bool = True) -> None:
        self.path = path
        self.results = results
        self.is_cacheable = is_cacheable
        self.depends_on_all = False
        self.dependencies: set[str] = set()
        self.import_targets: dict[tuple[str, str, int], str | None] = {}


#: From a path as it is written to one that means the same in every directory, or back.
Rename = Callable[[str], str]


def encode_results(results: list[AnalysisResult], rename: Rename) -> list[Any]:
    """Readings as lists that JSON can hold."""

    def encode_site(location: Site) -> list[Any]:
        caller = encode_site(location.caller) if location.caller is not None else None
        span = [location.line, location.column, location.end_line, location.end_column]
        return [rename(location.path), *span, location.function, caller, location.cell]

    def encode_finding(found: Finding) -> list[Any]:
        witness = [[encode_site(step.site), step.text] for step in found.witness]
        entries = [
            [rename(path), line, [*map(encode_call, sorted(calls))]]
            for (path, line), calls in sorted(found.entries.items())
        ]
        fields = [found.code, found.severity, found.message, found.certain, found.condition]
        return [*fields, encode_site(found.site), witness, entries, found.label, found.names]

    def encode_call(call: Call) -> list[Any]:
        return [rename(call[0]), call[1], call[2]]

    def encode_reached(functions: ReachedFunctions) -> list[Any]:
        return [
            [rename(path), line, [[rename(other), other_line] for other, other_line in sorted(called)]]
            for (path, line), called in functions.items()
        ]

    def encode_graph_calls(entries: dict[Entry, GraphCalls]) -> list[Any]:
        return [
            [rename(path), line, [*map(encode_call, sorted(each.calls))], each.has_joined_states]
            for (path, line), each in entries.items()
        ]

    return [
        [
            list(map(encode_finding, r.findings)),
            encode_reached(r.reached_functions),
            encode_graph_calls(r.graph_calls),
            r.has_own_comments,
            list(map(encode_finding, r.finished_findings)),
        ]
        for r in results
    ]


def decode_results(path: str, written: Any, rename: Rename) -> list[AnalysisResult]:
    """The readings of a file. Raises ValueError or its like for what :func:`encode` would not write."""
    # Asked for one by one, each would load its rule.
    labels = {"", *LABELS}

    def decode_site(encoded: Any) -> Site:
        path, line, column, end_line, end_column, function, caller, cell = encoded
        outer = decode_site(caller) if caller is not None else None
        span = (parse_number(line), parse_number(column), parse_number(end_line), parse_number(end_column))
        return Site(rename(path), *span, parse_text(function), outer, parse_number(cell) if cell is not None else None)

    def decode_finding(found: Any) -> Finding:
        code, severity, message, certain, condition, encoded_site, witness, entries, label, names = found
        if severity not in SEVERITIES or label not in labels:
            raise ValueError(severity, label)
        steps = tuple(TraceStep(decode_site(encoded), parse_text(said)) for encoded, said in witness)
        made = Finding(
            code,
            RULES[code].name,
            severity,
            parse_text(message),
            decode_site(encoded_site),
            certain=parse_bool(certain),
        )
        made.condition, made.witness = parse_text(condition), steps
        made.label, made.names = parse_text(label), {parse_text(key): parse_text(said) for key, said in names.items()}
        made.entries = {
            (rename(encoded), parse_number(line)): frozenset(map(decode_call, calls))
            for encoded, line, calls in entries
        }
        return made

    def decode_call(encoded: Any) -> Call:
        path, line, column = encoded
        return rename(path), parse_number(line), parse_number(column)

    readings: list[AnalysisResult] = []
    for findings, reached, passed_by, ours, settled in written:
        functions = {
            (rename(entry_path), parse_number(line)): {(rename(other), parse_number(there)) for other, there in called}
            for entry_path, line, called in reached
        }
        reading = AnalysisResult(
            path, list(map(decode_finding, findings)), functions, has_own_comments=parse_bool(ours)
        )
        reading.graph_calls = {
            (rename(entry_path), parse_number(line)): GraphCalls(frozenset(map(decode_call, calls)), parse_bool(joined))
            for entry_path, line, calls, joined in passed_by
        }
        reading.finished_findings = list(map(decode_finding, settled))
        readings.append(reading)
    return readings


# What a cache says may have been written by anybody.


def parse_number(value: Any) -> int:
    """A number that a place in a file may have."""
    if type(value) is not int or abs(value) > MAX_POSITION:
        raise ValueError(value)
    return value


def parse_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(value)
    return value


def parse_text(value: Any) -> str:
    """What may be shown on a terminal."""
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError(value)
    return value
