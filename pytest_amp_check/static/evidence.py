"""Which findings of a function by itself its callers withdraw: those that their graphs show to be right."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ..protocol.events import Call, Program
from ..protocol.finding import Finding, merge
from ..protocol.rules import LABELS
from .results import Entry, Passed, Reading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .entry_points import Reached


def passed_by(program: Program) -> dict[Entry, Passed]:
    """Return what the graph of each entry point comes by, for those that come by other functions."""
    found: dict[Entry, Passed] = {}
    for graph in program.graphs:
        sites = [node.event.site for node in graph.nodes if node.event is not None]
        sites += [test.site for test in graph.tests if test.site is not None]
        calls = frozenset(frame.call for site in sites if site.caller is not None for frame in site.frames())
        if calls:
            known = found.get(graph.entry, Passed(frozenset(), joined=False))
            found[graph.entry] = Passed(known.calls | calls, known.joined or graph.joined)
    return found


def kept(readings: Sequence[Reading], reached: Reached) -> list[Finding]:
    """Return the findings of readings: of a function that another one calls, those that were made where it is called.

    The order of paths and lines decides which of two that call each other is analyzed for both. A finding that a file
    shows by itself is withdrawn only by a caller in another file whose graph comes by all calls that the finding rests
    on, and shows them to be right: with other arguments, or in a subclass, the function is another program.
    """
    callers = _callers(reached)
    by_themselves = set[Entry]().union(*(_callers(reading.reached) for reading in readings))
    found: dict[tuple[str, str, int, int], Finding] = {}
    alone: list[Finding] = []
    # Of the same finding in two files the first is kept, in whatever order they were read.
    for reading in sorted(readings, key=lambda reading: reading.path):
        for finding in reading.findings:
            if not finding.entries or finding.entries.keys() & callers:
                merge(found, finding)
            elif finding.entries.keys() & by_themselves:
                alone.append(finding)
    if alone:
        shown = {(finding.code, finding.site.call) for finding in found.values()}
        evidence: dict[Entry, list[Passed]] = {}
        for reading in readings:
            for entry in reading.passed_by.keys() & callers:
                for function in reached.get(entry, ()):
                    evidence.setdefault(function, []).append(reading.passed_by[entry])
        for finding in alone:
            known = (finding.code, finding.site.call) in shown
            if not known and not _is_refuted(finding, finding.entries.keys() & by_themselves, evidence):
                merge(found, finding)
    return list(found.values())


def _callers(reached: Reached) -> set[Entry]:
    """Return the entry points that no other one calls, or that come first among those that call each other."""
    called = {function for entry, functions in reached.items() for function in functions if function != entry}
    covered: set[Entry] = set()
    first: set[Entry] = set()
    for entry in sorted(reached, key=lambda entry: (entry in called, entry)):
        if entry not in covered:
            first.add(entry)
            covered |= reached[entry]
    return first


def _is_refuted(finding: Finding, entries: Collection[Entry], evidence: Mapping[Entry, Sequence[Passed]]) -> bool:
    """Return True if a caller of each function that shows a finding comes by all of its calls, and does not show it."""
    # Who calls the function may make the call that is missing in it, which is seen in joined states, too.
    rests_on_a_missing_call = bool(LABELS[finding.label][1].owned) and not finding.certain

    def refutes(passed: Passed, calls: frozenset[Call]) -> bool:
        return calls <= passed.calls and (rests_on_a_missing_call or not passed.joined)

    return all(any(refutes(passed, finding.entries[entry]) for passed in evidence.get(entry, ())) for entry in entries)
