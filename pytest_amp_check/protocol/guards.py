"""Guards of events: the predicates around them, with their truths."""

from __future__ import annotations

from .events import Event


def decided_guards(event: Event) -> list[tuple[int, bool]]:
    """Return the predicates of which an event needs one truth. Of the terms of a disjunction, any is enough."""
    guards = event.guards
    return [
        (key, truth) for key, truth in guards if key not in event.alternative_guards and (key, not truth) not in guards
    ]


def are_exclusive(a: Event, b: Event) -> bool:
    """Return True if one predicate has opposite truths at two events."""
    others = decided_guards(b)
    return any((key, not truth) in others for key, truth in decided_guards(a))
