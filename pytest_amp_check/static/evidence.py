"""Evidence of callers: findings of an entry point that graphs of callers show to be wrong."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from ..protocol import events as e
from ..protocol.event_graph import Graph, Program
from ..protocol.finding import Finding, merge_finding
from ..protocol.rules import LABELS
from ..protocol.sites import Call, Site
from .results import AnalysisResult, Entry, GraphCalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .entry_points import ReachedFunctions


#: Methods whose call a caller may add, by the event of the call.
_METHODS: dict[type[e.Event], str] = {
    e.ZeroGrad: "zero_grad",
    e.Scale: "scale",
    e.ScalerStep: "step",
    e.Unscale: "unscale_",
    e.Update: "update",
}


def collect_graph_calls(program: Program) -> dict[Entry, GraphCalls]:
    """Return the calls that the graph of each entry point covers, for graphs that cover other functions."""
    found: dict[Entry, GraphCalls] = {}
    # The graphs of a file share the list of predicates.
    of_predicates: dict[int, frozenset[Call]] = {}
    for graph in program.graphs:
        conditions = of_predicates.get(id(graph.predicates))
        if conditions is None:
            conditions = _calls_leading_to([test.site for test in graph.predicates if test.site is not None])
            of_predicates[id(graph.predicates)] = conditions
        calls = _calls_leading_to([node.event.site for node in graph.nodes if node.event is not None])
        calls = conditions if calls <= conditions else calls | conditions
        if calls:
            known = found.get(graph.entry_point, GraphCalls(frozenset(), has_joined_states=False, methods=frozenset()))
            found[graph.entry_point] = GraphCalls(
                known.calls | calls,
                known.has_joined_states or graph.was_widened,
                known.methods | _methods_called(graph),
            )
    return found


def _methods_called(graph: Graph) -> frozenset[str]:
    """Return the protocol methods that a graph calls. Code that trains what it receives may call any method."""
    events = [node.event for node in graph.nodes if node.event is not None]
    if any(isinstance(event, e.Handoff) and event.trains for event in events):
        return frozenset(_METHODS.values())
    return frozenset(_METHODS[type(event)] for event in events if type(event) in _METHODS)


def _calls_leading_to(sites: Iterable[Site]) -> frozenset[Call]:
    """Return the calls that led to locations in other functions, and the locations themselves.

    Most locations share their callers.
    """
    passed: set[int] = set()
    calls: set[Call] = set()
    for each in sites:
        site: Site | None = each if each.caller is not None else None
        while site is not None and id(site) not in passed:
            passed.add(id(site))
            calls.add(site.call_key)
            site = site.caller
    return frozenset(calls)


def select_findings(results: Sequence[AnalysisResult], reached_functions: ReachedFunctions) -> list[Finding]:
    """Return the findings of all results.

    For a function that another function calls, the findings at the calls count.

    The order of paths and lines decides which of two functions that call each other is analyzed for both.

    A finding that a file shows by itself is withdrawn only by a caller in another file. The graph of the caller must
    cover all calls of the finding and show no such finding. With other arguments, or in a subclass, the function is
    another program.
    """
    callers = find_top_entry_points(reached_functions)
    by_themselves = set[Entry]().union(*(find_top_entry_points(reading.reached_functions) for reading in results))
    found: dict[tuple[str, str, int, int], Finding] = {}
    unconfirmed: list[Finding] = []
    # Keep the first of equal findings in two files, independent of the order of analysis.
    for reading in sorted(results, key=lambda reading: reading.path):
        for finding in reading.findings:
            if not finding.discovery.entries or finding.discovery.entries.keys() & callers:
                merge_finding(found, finding)
            elif finding.discovery.entries.keys() & by_themselves:
                unconfirmed.append(finding)
    if unconfirmed:
        shown = {(finding.code, finding.site.call_key) for finding in found.values()}
        evidence: dict[Entry, list[GraphCalls]] = {}
        for reading in results:
            for entry in reading.graph_calls.keys() & callers:
                for function in reached_functions.get(entry, ()):
                    evidence.setdefault(function, []).append(reading.graph_calls[entry])
        for finding in unconfirmed:
            known = (finding.code, finding.site.call_key) in shown
            if not known and not _is_refuted(finding, finding.discovery.entries.keys() & by_themselves, evidence):
                merge_finding(found, finding)
    return list(found.values())


def find_top_entry_points(reached_functions: ReachedFunctions) -> set[Entry]:
    """Return the entry points that no other entry point calls; of a cycle, the first."""
    called = {function for entry, functions in reached_functions.items() for function in functions if function != entry}
    covered: set[Entry] = set()
    first: set[Entry] = set()
    for entry in sorted(reached_functions, key=lambda entry: (entry in called, entry)):
        if entry not in covered:
            first.add(entry)
            covered |= reached_functions[entry]
    return first


def _is_refuted(finding: Finding, entries: Collection[Entry], evidence: Mapping[Entry, Sequence[GraphCalls]]) -> bool:
    """Return True if for each entry point with the finding a caller covers all calls without the finding."""
    # A caller may make the call that is missing in the function. Joined states show that call, too.
    missing_method = "" if finding.certain else LABELS[finding.label][1].certainty.missing_method

    def is_refuting(graph_calls: GraphCalls, calls: frozenset[Call]) -> bool:
        is_conclusive = not graph_calls.has_joined_states or missing_method in graph_calls.methods
        return calls <= graph_calls.calls and is_conclusive

    return all(
        any(is_refuting(passed, finding.discovery.entries[entry]) for passed in evidence.get(entry, ()))
        for entry in entries
    )
