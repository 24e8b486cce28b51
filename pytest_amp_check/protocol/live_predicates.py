"""Live predicates: the predicates that a path must remember at each node."""

from __future__ import annotations

from collections import deque

from . import events as e
from .event_graph import Node
from .events import EventKind
from .graph_summary import GraphSummary


def compute_live_predicates(summary: GraphSummary, least: int, remembered: int = -1) -> list[int]:
    """Return, for each node, the predicates that a path from the node may still depend on.

    Predicates that guard no event worth more than ``least``, and predicates outside ``remembered``, are not live.
    """
    nodes = summary.graph.nodes
    live = [0] * len(nodes)
    before: list[list[int]] = [[] for _ in nodes]
    for i, node in enumerate(nodes):
        for target, _, _ in node.edges:
            before[target].append(i)
    worth = _find_worth_remembering(summary, least) & remembered
    asked = [_find_asked_predicates(summary, node) for node in nodes]
    windows = sum(1 << key for key in summary.window_predicates)
    work = deque(reversed(range(len(nodes))))
    queued = [True] * len(nodes)
    while work:
        i = work.popleft()
        queued[i] = False
        node = nodes[i]
        bits = asked[i]
        for target, _, _ in node.edges:
            bits |= live[target]
        bits &= worth & ~node.forgotten_predicates
        if isinstance(node.event, e.Backward):
            # The known predicates decide here if the window is open.
            bits |= windows
        if bits != live[i]:
            live[i] = bits
            for previous in before[i]:
                if not queued[previous]:
                    queued[previous] = True
                    work.append(previous)
    return live


def _find_asked_predicates(summary: GraphSummary, node: Node) -> int:
    """Return the predicates (as a bit set) on the edges of a node, with all implied predicates."""
    bits = 0
    for _, key, _ in node.edges:
        if key >= 0:
            bits |= 1 << key
            for _, other, _ in summary.graph.predicates[key].implications:
                bits |= 1 << other
    return bits


def _find_worth_remembering(summary: GraphSummary, least: int) -> int:
    """Return the predicates (as a bit set) that guard an event that changes the state."""
    bits = 0
    # Graphs of one file share one list of predicates. Predicates not used in this graph are skipped.
    for key in {key for node in summary.graph.nodes for _, key, _ in node.edges if key >= 0}:
        for each in (key, *(other for _, other, _ in summary.graph.predicates[key].implications)):
            if summary.graph.predicates[each].asks_first_iteration:
                bits |= 1 << each
    for node in summary.graph.nodes:
        if (
            node.event is not None
            and isinstance(node.event, e.OptimizerNew)
            and node.event.subject in summary.unused_optimizers
        ):
            continue
        if node.event is not None and (
            node.event.traits.predicate_worth > least or (isinstance(node.event, e.ScaledLoss) and node.event.twice)
        ):
            for key, _ in node.event.guards:
                bits |= 1 << key
    return bits


def rank_predicates(summary: GraphSummary) -> list[int]:
    """Return the predicates used at more than one node, in the order in which they distinguish paths.

    Predicates that end windows come first. Predicates that choose between code with and without a scaler follow,
    then the predicates that guard the most different events.
    """
    places: dict[int, int] = {}
    for node in summary.graph.nodes:
        for key in {key for _, key, _ in node.edges if key >= 0}:
            for known in (key, *(other for _, other, _ in summary.graph.predicates[key].implications)):
                places[known] = places.get(known, 0) + 1
    kinds: dict[int, set[EventKind]] = {}
    chosen: dict[tuple[int, bool], list[int]] = {}
    for node in summary.graph.nodes:
        event = node.event
        if event is not None and event.traits.predicate_worth > e.SELDOM:
            for key, truth in event.guards:
                kinds.setdefault(key, set()).add(type(event))
                if isinstance(event, (e.Backward, e.Step, e.ScalerStep)):
                    chosen.setdefault((key, truth), [0, 0])[event.subject is not None] += 1
    telling = [key for key in kinds if places.get(key, 0) > 1 or key in summary.window_predicates]

    def sort_key(key: int) -> tuple[bool, int, int, int, int]:
        raw, scaled = chosen.get((key, True), (0, 0))
        raw_else, scaled_else = chosen.get((key, False), (0, 0))
        chooses = max(min(scaled, raw_else), min(raw, scaled_else))
        return key not in summary.window_predicates, -chooses, -len(kinds[key]), -places.get(key, 0), key

    return sorted(telling, key=sort_key)


def find_event_predicates(summary: GraphSummary) -> int:
    """Return the predicates (as a bit set) that events depend on: window predicates and averaging over ranks."""
    asked = {
        key
        for node in summary.graph.nodes
        if isinstance(node.event, e.Backward)
        for key, _ in node.event.averaged or ()
    }
    return sum(1 << key for key in asked | summary.window_predicates.keys())
