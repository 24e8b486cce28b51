"""Results of the analysis of a file, and their encoding for the cache."""

from __future__ import annotations

from collections.abc import Callable

from ..protocol.fast_namedtuple import NamedTuple
from ..protocol.finding import Finding, TraceStep
from ..protocol.rules import LABELS, RULES
from ..protocol.severities import SEVERITIES
from ..protocol.sites import Call, Site

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .entry_points import ReachedFunctions
    from .interpreter.visited_calls import Span
    from .unanalyzed_calls import UnanalyzedCall

#: Largest valid line or column: Python's parser counts positions in 32 bits.
MAX_POSITION = 2**31 - 1


#: Entry point by path and line.
Entry = tuple[str, int]


class GraphCalls(NamedTuple):
    """Calls inside other functions that a graph covers, with the calls that lead there.

    ``has_joined_states`` says that the check joined states, so violations may be missing. ``methods`` are the protocol
    methods that the graph calls.
    """

    calls: frozenset[Call]
    has_joined_states: bool
    methods: frozenset[str]


class AnalysisResult:
    """Result of the analysis of one program of a file, including calls into other files.

    reached_functions   functions that each entry point called
    graph_calls         calls in these functions that the graph of an entry point covers; other calls stay open
    has_own_comments    the file has comments for this tool
    finished_findings   findings that need no further selection or suppression
    protocol_calls      protocol calls of the file, for the report of unanalyzed calls
    visited_calls       calls that the analysis visited in any file, for the same report
    joined_functions    functions whose states were joined for the check, for the same report
    unfollowed_calls    calls of functions that a limit kept from being analyzed, as source text, for the same report
    """

    __slots__ = (
        "findings",
        "finished_findings",
        "graph_calls",
        "has_own_comments",
        "joined_functions",
        "path",
        "protocol_calls",
        "reached_functions",
        "unfollowed_calls",
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
        self.joined_functions: list[Site] = []
        self.unfollowed_calls: dict[Span, tuple[Site, str]] = {}


class FileResult:
    """Results of the analysis of one file, with the dependencies.

    ``dependencies`` are other files whose content counted, ``import_targets`` imports and their targets.
    ``depends_on_all`` says that any file of the run may count, ``is_cacheable`` that the same content gives the same
    result.
    """

    __slots__ = ("dependencies", "depends_on_all", "import_targets", "is_cacheable", "path", "results")

    def __init__(self, path: str, results: list[AnalysisResult], *, is_cacheable: bool = True) -> None:
        self.path = path
        self.results = results
        self.is_cacheable = is_cacheable
        self.depends_on_all = False
        self.dependencies: set[str] = set()
        self.import_targets: dict[tuple[str, str, int], str | None] = {}


#: Function from a path as written to an absolute path, or back.
Rename = Callable[[str], str]


def encode_results(results: list[AnalysisResult], rename: Rename) -> list[Any]:
    """Return analysis results as lists for JSON."""

    def encode_site(location: Site) -> list[Any]:
        caller = encode_site(location.caller) if location.caller is not None else None
        span = [location.line, location.column, location.end_line, location.end_column]
        return [rename(location.path), *span, location.function, caller, location.cell]

    def encode_finding(found: Finding) -> list[Any]:
        trace, places = ([*map(encode_step, steps)] for steps in (found.trace, found.edit_places))
        entries = [
            [rename(path), line, [*map(encode_call, sorted(calls))]]
            for (path, line), calls in sorted(found.discovery.entries.items())
        ]
        fields = [found.code, found.severity, found.message, found.certain, found.condition]
        return [*fields, encode_site(found.site), trace, entries, found.label, found.names, found.remedy, places]

    def encode_step(step: TraceStep) -> list[Any]:
        return [encode_site(step.site), step.text, step.is_event]

    def encode_call(call: Call) -> list[Any]:
        return [rename(call[0]), call[1], call[2]]

    def encode_reached(functions: ReachedFunctions) -> list[Any]:
        return [
            [rename(path), line, [[rename(other), other_line] for other, other_line in sorted(called)]]
            for (path, line), called in functions.items()
        ]

    def encode_graph_calls(entries: dict[Entry, GraphCalls]) -> list[Any]:
        return [
            [rename(path), line, [*map(encode_call, sorted(each.calls))], each.has_joined_states, sorted(each.methods)]
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
    """Return the results of a file.

    Raise ValueError or a similar error for data that :func:`encode_results` cannot write.
    """
    # A lookup of single labels would load a rule each time.
    labels = frozenset(LABELS)

    def decode_site(encoded: Any) -> Site:
        path, line, column, end_line, end_column, function, caller, cell = encoded
        outer = decode_site(caller) if caller is not None else None
        span = (parse_number(line), parse_number(column), parse_number(end_line), parse_number(end_column))
        return Site(rename(path), *span, parse_text(function), outer, parse_number(cell) if cell is not None else None)

    def decode_finding(found: Any) -> Finding:
        code, severity, message, certain, condition, encoded_site, trace, entries, label, names, remedy, places = found
        if severity not in SEVERITIES or label not in labels:
            raise ValueError(severity, label)
        made = Finding(
            code,
            RULES[code].name,
            severity,
            parse_text(message),
            decode_site(encoded_site),
            certain=parse_bool(certain),
            remedy=parse_text(remedy),
        )
        made.condition, made.trace = parse_text(condition), tuple(map(decode_step, trace))
        made.edit_places = tuple(map(decode_step, places))
        made.label, made.names = parse_text(label), {parse_text(key): parse_text(said) for key, said in names.items()}
        made.discovery.entries = {
            (rename(encoded), parse_number(line)): frozenset(map(decode_call, calls))
            for encoded, line, calls in entries
        }
        return made

    def decode_step(step: Any) -> TraceStep:
        encoded, said, is_event = step
        return TraceStep(decode_site(encoded), parse_text(said), is_event=parse_bool(is_event))

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
            (rename(entry_path), parse_number(line)): GraphCalls(
                frozenset(map(decode_call, calls)), parse_bool(joined), frozenset(map(parse_text, methods))
            )
            for entry_path, line, calls, joined, methods in passed_by
        }
        reading.finished_findings = list(map(decode_finding, settled))
        readings.append(reading)
    return readings


# Any program may have written the cache.


def parse_number(value: Any) -> int:
    """Return a valid line, column or cell number, or raise ValueError."""
    if type(value) is not int or abs(value) > MAX_POSITION:
        raise ValueError(value)
    return value


def parse_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(value)
    return value


def parse_text(value: Any) -> str:
    """Return a text that a terminal can show, or raise ValueError."""
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError(value)
    return value
