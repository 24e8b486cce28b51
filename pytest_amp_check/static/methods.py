"""Protocol calls that no method of a class makes with the class's scaler.

The order in which methods are called is not known, so only a call that is missing in all methods is reported. Calls on
the scaler of such an object from another file are searched for later (:mod:`.cross_file`).
"""

from __future__ import annotations

from collections import defaultdict

from ..protocol import events as e
from ..protocol.event_graph import Program
from ..protocol.events import Event, EventKind
from ..protocol.guards import are_exclusive

#: Alternative kinds of calls: one of them is enough.
Alternatives = tuple[EventKind, ...]
#: Call without the scaler -> the scaler's call for it, and the calls that show that the scaler is in use. A class may
#: scale losses and leave backward to its callers.
SCALER_COUNTERPARTS: dict[EventKind, tuple[EventKind, tuple[Alternatives, ...]]] = {
    e.Step: (e.ScalerStep, ((e.Backward,), (e.Update,))),
    e.Backward: (e.Scale, ((e.ScalerStep,), (e.Update,))),
    e.Clip: (e.Unscale, ((e.Backward, e.Scale), (e.ScalerStep,))),
}


def mark_scaler_left_out(program: Program) -> None:
    """Mark calls without the scaler in a method if no method of the class makes them with the scaler."""
    same = _first_at_same_site(program)
    by_class = _scalers_by_class(program, same)
    for graph in program.graphs:
        events = [node.event for node in graph.nodes if node.event is not None]
        used_scalers = {event.subject for event in events if not isinstance(event, e.Update)} - {None}
        for number, event in enumerate(events):
            # Gradients that another method scaled reach a method that clips and steps without a visible scaler call.
            used = {
                same.get(key)
                for key in (used_scalers - _only_stepped(events, number) if isinstance(event, e.Clip) else used_scalers)
            }
            if isinstance(event, (e.Step, e.Backward, e.Clip)) and event.subject is None and not _is_exempt(event):
                instead, evidence = SCALER_COUNTERPARTS[type(event)]
                for scaler, done in by_class.get(_class_of(event), {}).items():
                    if scaler not in used and instead not in done and _may_happen_with(event, done, evidence):
                        event.beside = program.objects[scaler].name


def _is_exempt(event: e.Step | e.Backward | e.Clip) -> bool:
    """Return True if a call without a scaler is right, or if it is unknown."""
    if isinstance(event, e.Step):
        return event.checked
    return (
        event.scaling.may_have_scaled_gradient if isinstance(event, e.Backward) else event.measures_only or event.undone
    )


def _only_stepped(events: list[Event], number: int) -> set[int | None]:
    """Return the scalers that only step after an event, without another call on the gradients in the same function."""
    stepping = {event.subject for event in events[number:] if isinstance(event, e.ScalerStep)}
    return stepping - {event.subject for event in events if isinstance(event, (e.Scale, e.Backward, e.Unscale))}


def _first_at_same_site(program: Program) -> dict[int | None, int]:
    """Map each scaler to the first scaler created at the same location, because each subclass recreates the scaler."""
    first: dict[object, int] = {}
    scalers = [scaler for scaler in program.objects if scaler.role == "scaler"]
    return {
        scaler.key: first.setdefault(repr(scaler.site) if scaler.site else scaler.key, scaler.key) for scaler in scalers
    }


def _scalers_by_class(
    program: Program, same: dict[int | None, int]
) -> dict[str, dict[int, dict[EventKind, list[Event]]]]:
    """Return the scalers that the methods of each class use, with the events on each scaler."""
    by_class: defaultdict[str, dict[int, dict[EventKind, list[Event]]]] = defaultdict(dict)
    every: defaultdict[int, defaultdict[EventKind, list[Event]]] = defaultdict(lambda: defaultdict(list))
    for event in program.iter_events():
        scaler = program.objects[event.subject] if event.subject is not None else None
        if scaler is not None and scaler.role == "scaler" and not scaler.attributes.framework:
            done = every[same[scaler.key]]
            done[type(event)].append(event)
            if _class_of(event) and (scaler.attributes.held or scaler.name.startswith("self.")):
                by_class[_class_of(event)][same[scaler.key]] = done
    return by_class


def _class_of(event: Event) -> str:
    """Return the name of the class whose method contains an event, itself or in a function that it calls; or ""."""
    classes = (site.function.rpartition(".")[0] for site in reversed(event.site.list_frames()))
    return next(filter(None, classes), "")


def _may_happen_with(event: Event, done: dict[EventKind, list[Event]], evidence: tuple[Alternatives, ...]) -> bool:
    """Return True if each evidence has an event that can occur on a path with the given event."""
    return all(
        any(not are_exclusive(event, other) for kind in kinds for other in done.get(kind, ())) for kinds in evidence
    )
