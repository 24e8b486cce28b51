"""Search of a graph for the autocast region that made the tensors of an event low."""

from __future__ import annotations

from collections import deque

from .event_graph import Graph
from .events import AutocastEnter, Event, Loss, ScaledLoss

#: Dtypes that a region may have.
_LOW = ("float16", "bfloat16")


def find_region_before(graph: Graph, event: Event) -> AutocastEnter | None:
    """Return the nearest enabled region that is entered before an event, and has the dtype of the event, or None."""
    start = next((index for index, node in enumerate(graph.nodes) if node.event is event), None)
    if start is None:
        return None
    wanted = _dtypes_of(event)
    before: dict[int, list[int]] = {}
    for index, node in enumerate(graph.nodes):
        for target, _, _ in node.edges:
            before.setdefault(target, []).append(index)
    seen, todo = {start}, deque([start])
    while todo:
        for index in before.get(todo.popleft(), ()):
            if index in seen:
                continue
            found = graph.nodes[index].event
            if isinstance(found, AutocastEnter) and _may_make_low(found, wanted):
                return found
            seen.add(index)
            todo.append(index)
    return None


def _dtypes_of(event: Event) -> frozenset[str]:
    """Return the dtypes of the regions around the forward of an event, empty if unknown."""
    if isinstance(event, Loss):
        return frozenset({event.low_precision} if event.low_precision else ())
    return frozenset(event.dtypes) if isinstance(event, ScaledLoss) else frozenset()


def _may_make_low(region: AutocastEnter, wanted: frozenset[str]) -> bool:
    """Return True if a region may give tensors of one of the dtypes. A region without gradients trains nothing."""
    if not region.enabled or region.null or region.without_gradients:
        return False
    return not wanted or region.dtype not in _LOW or region.dtype in wanted or wanted.isdisjoint(_LOW)
