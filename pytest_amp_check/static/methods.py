"""What the methods of one class do to its scaler, each by itself: what none of them does, nobody does.

The order in which methods are called is not known, so that only what is left out altogether is told. Whoever steps,
scales or unscales by the scaler of such an object in another file is looked for later (:mod:`.elsewhere`).
"""

from __future__ import annotations

from collections import defaultdict

from ..protocol import events as e
from ..protocol.events import Event, Kind, Program

#: What is done apart from the scaler -> what the scaler does instead, and what shows that it is meant to.
INSTEAD: dict[Kind, tuple[Kind, tuple[Kind, ...]]] = {
    e.STEP: (e.SCALER_STEP, (e.BACKWARD, e.UPDATE)),
    e.BACKWARD: (e.SCALE, (e.SCALER_STEP, e.UPDATE)),
    e.CLIP: (e.UNSCALE, (e.BACKWARD, e.SCALER_STEP)),
}

#: What makes it right, or unknown, to leave the scaler out.
EXCUSES = frozenset({"checked", "measures_only", "opaque", "undone"})


def mark_left_out(program: Program) -> None:
    """Say of what a method does without the scaler of its class that no method does it with the scaler."""
    same = _made_at_once(program)
    held = _held(program, same)
    for graph in program.graphs:
        events = [node.event for node in graph.nodes if node.event is not None]
        here = {event.subject for event in events if event.kind != e.UPDATE} - {None}
        for number, event in enumerate(events):
            # What another method has scaled comes to a method that clips and steps as if from nowhere.
            used = {same.get(key) for key in (here - _only_stepped(events, number) if event.kind == e.CLIP else here)}
            if event.kind in INSTEAD and event.subject is None and not any(map(event.facts.get, EXCUSES)):
                instead, shown = INSTEAD[event.kind]
                for scaler, done in held.get(_class_of(event), {}).items():
                    if scaler not in used and instead not in done and _agree(event, done, shown):
                        event.facts["beside"] = program.things[scaler].name


def _only_stepped(events: list[Event], number: int) -> set[int | None]:
    """The scalers that step gradients after an event, and do nothing else to them in the same function."""
    stepping = {event.subject for event in events[number:] if event.kind == e.SCALER_STEP}
    return stepping - {event.subject for event in events if event.kind in (e.SCALE, e.BACKWARD, e.UNSCALE)}


def _made_at_once(program: Program) -> dict[int | None, int]:
    """Scaler -> the first that is made at its place: each class that inherits a method has one of its own there."""
    first: dict[object, int] = {}
    scalers = [thing for thing in program.things if thing.role == "scaler"]
    return {thing.key: first.setdefault(repr(thing.site) if thing.site else thing.key, thing.key) for thing in scalers}


def _held(program: Program, same: dict[int | None, int]) -> dict[str, dict[int, dict[Kind, list[Event]]]]:
    """The scalers that methods of a class use, by its name, with what they do to each."""
    held: defaultdict[str, dict[int, dict[Kind, list[Event]]]] = defaultdict(dict)
    every: defaultdict[int, defaultdict[Kind, list[Event]]] = defaultdict(lambda: defaultdict(list))
    for event in program.events():
        thing = program.things[event.subject] if event.subject is not None else None
        if thing is not None and thing.role == "scaler" and not thing.facts.get("framework"):
            done = every[same[thing.key]]
            done[event.kind].append(event)
            if _class_of(event) and thing.name.startswith("self."):
                held[_class_of(event)][same[thing.key]] = done
    return held


def _class_of(event: Event) -> str:
    """The name of the class in whose method an event happens, "" outside of classes."""
    return event.site.function.rpartition(".")[0]


def _agree(event: Event, done: dict[Kind, list[Event]], shown: tuple[Kind, ...]) -> bool:
    """Whether what else is done to the scaler may be done where an event happens, as far as tests tell."""
    return all(any(not _excludes(event, other) for other in done.get(kind, ())) for kind in shown)


def _excludes(event: Event, other: Event) -> bool:
    return any((key, not truth) in other.guards for key, truth in event.guards)
