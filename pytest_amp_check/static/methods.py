"""What the methods of one class do to its scaler, each by itself: what none of them does, nobody does.

The order in which methods are called is not known, so that only what is left out altogether is told. Whoever steps,
scales or unscales by the scaler of such an object in another file is looked for later (:mod:`.elsewhere`).
"""

from __future__ import annotations

from collections import defaultdict

from ..protocol import events as e
from ..protocol.events import Event, EventKind, Program

#: What is done apart from the scaler -> what the scaler does instead, and what shows that it is meant to.
SCALER_COUNTERPARTS: dict[EventKind, tuple[EventKind, tuple[EventKind, ...]]] = {
    e.STEP: (e.SCALER_STEP, (e.BACKWARD, e.UPDATE)),
    e.BACKWARD: (e.SCALE, (e.SCALER_STEP, e.UPDATE)),
    e.CLIP: (e.UNSCALE, (e.BACKWARD, e.SCALER_STEP)),
}

#: What makes it right, or unknown, to leave the scaler out.
EXEMPTIONS = frozenset({"checked", "measures_only", "opaque", "undone"})


def mark_scaler_left_out(program: Program) -> None:
    """Say of what a method does without the scaler of its class that no method does it with the scaler."""
    same = _first_at_same_site(program)
    by_class = _scalers_by_class(program, same)
    for graph in program.graphs:
        events = [node.event for node in graph.nodes if node.event is not None]
        used_scalers = {event.subject for event in events if event.kind != e.UPDATE} - {None}
        for number, event in enumerate(events):
            # What another method has scaled comes to a method that clips and steps as if from nowhere.
            used = {
                same.get(key)
                for key in (used_scalers - _only_stepped(events, number) if event.kind == e.CLIP else used_scalers)
            }
            if (
                event.kind in SCALER_COUNTERPARTS
                and event.subject is None
                and not any(map(event.attributes.get, EXEMPTIONS))
            ):
                instead, evidence = SCALER_COUNTERPARTS[event.kind]
                for scaler, done in by_class.get(_class_of(event), {}).items():
                    if scaler not in used and instead not in done and _may_happen_with(event, done, evidence):
                        event.attributes["beside"] = program.objects[scaler].name


def _only_stepped(events: list[Event], number: int) -> set[int | None]:
    """The scalers that step gradients after an event, and do nothing else to them in the same function."""
    stepping = {event.subject for event in events[number:] if event.kind == e.SCALER_STEP}
    return stepping - {event.subject for event in events if event.kind in (e.SCALE, e.BACKWARD, e.UNSCALE)}


def _first_at_same_site(program: Program) -> dict[int | None, int]:
    """Scaler -> the first that is made at its place: each class that inherits a method has one of its own there."""
    first: dict[object, int] = {}
    scalers = [scaler for scaler in program.objects if scaler.role == "scaler"]
    return {
        scaler.key: first.setdefault(repr(scaler.site) if scaler.site else scaler.key, scaler.key) for scaler in scalers
    }


def _scalers_by_class(
    program: Program, same: dict[int | None, int]
) -> dict[str, dict[int, dict[EventKind, list[Event]]]]:
    """The scalers that methods of a class use, by its name, with what they do to each."""
    by_class: defaultdict[str, dict[int, dict[EventKind, list[Event]]]] = defaultdict(dict)
    every: defaultdict[int, defaultdict[EventKind, list[Event]]] = defaultdict(lambda: defaultdict(list))
    for event in program.iter_events():
        scaler = program.objects[event.subject] if event.subject is not None else None
        if scaler is not None and scaler.role == "scaler" and not scaler.attributes.get("framework"):
            done = every[same[scaler.key]]
            done[event.kind].append(event)
            if _class_of(event) and scaler.name.startswith("self."):
                by_class[_class_of(event)][same[scaler.key]] = done
    return by_class


def _class_of(event: Event) -> str:
    """The name of the class in whose method an event happens, "" outside of classes."""
    return event.site.function.rpartition(".")[0]


def _may_happen_with(event: Event, done: dict[EventKind, list[Event]], evidence: tuple[EventKind, ...]) -> bool:
    """Whether what else is done to the scaler may be done where an event happens, as far as tests tell."""
    return all(any(not _is_exclusive(event, other) for other in done.get(kind, ())) for kind in evidence)


def _is_exclusive(event: Event, other: Event) -> bool:
    return any((key, not truth) in other.guards for key, truth in event.guards)
