"""Names and locations that the remedy of a finding needs: names valid at the edit, and calls in other lines."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from .event_graph import Program
from .events import AutocastEnter, Backward, Event, OptimizerNew, OwnedEvent, ScalerStep, Unscale
from .fast_namedtuple import NamedTuple
from .finding import TraceStep
from .message_templates import DEFAULT_NAMES, describe_event, split_message
from .rules import LABELS
from .sites import Site

#: Roles of objects that remedies name.
_ROLES = ("scaler", "optimizer")


class EditPlaces(NamedTuple):
    """Values of a message template that are valid at the edit, and locations that the remedy refers to."""

    names: dict[str, str]
    steps: tuple[TraceStep, ...]


class _Name(NamedTuple):
    """Source text of an object, with the location where the text is valid."""

    text: str
    site: Site
    is_constructed: bool = False

    def is_visible_from(self, edit: Site) -> bool:
        """Return True if the name has the same meaning in the function of an edit."""
        here, there = self.site, edit
        if here.path != there.path:
            return False
        # A nested function sees the variables of the functions around it, and every function those of the module.
        if here.function in ("", "<module>") or f"{there.function}.".startswith(f"{here.function}."):
            return True
        owner = here.function.rpartition(".")[0]
        return self.text.startswith("self.") and bool(owner) and owner == there.function.rpartition(".")[0]


def find_edit_places(
    label: str,
    site: Site,
    events: Collection[Event],
    others: Iterable[Event],
    program: Program,
    values: Mapping[str, str],
) -> EditPlaces:
    """Return names for the remedy of a violation, and the locations of what the edited function does not show.

    ``site`` is the location of the finding, ``events`` are the events of the violation, and ``others`` all events of
    the graph or the run. ``values`` are the values of the message, of which a name is kept if it is valid at the edit.
    """
    kind = LABELS[label][1]
    known = [*others]
    names: dict[str, str] = {}
    steps: list[TraceStep] = []
    at = _find_edited_event(kind.trace_context.edit_at, events, known)
    if isinstance(at, AutocastEnter):
        steps += _find_call_in_region(at, events)
    elif at is not None and not _shows_line(site, at.site):
        steps.append(TraceStep(at.site, describe_event(at), is_event=False))
    remedy = split_message(kind.message)[1]
    for role in _ROLES:
        if "{" + role not in kind.message:
            continue
        name = _find_name(role, values.get(role, ""), site, events, known, program)
        if name is None:
            continue
        names[role] = name.text
        is_needed = "{" + role in remedy and not name.is_visible_from(site)
        if is_needed and not any(name.site.call_key == step.site.call_key for step in steps):
            verb = "constructed" if name.is_constructed else "used"
            steps.append(TraceStep(name.site, f"pass `{name.text}`, which is {verb}", is_event=False))
    return EditPlaces(names, tuple(steps))


def _shows_line(site: Site, other: Site) -> bool:
    """Return True if the code around a finding shows the line of another location."""
    return site.path == other.path and site.line - 1 <= other.line <= site.end_line + 1


def _find_call_in_region(region: Event, events: Iterable[Event]) -> list[TraceStep]:
    """Return the call in the function of a region that leads to the first event, if another function has the event."""
    here = (region.site.path, region.site.function)
    for event in events:
        frames = event.site.list_frames()
        inside = [frame for frame in frames[:-1] if (frame.path, frame.function) == here]
        if inside and (event.site.path, event.site.function) != here:
            return [TraceStep(inside[-1], "the region calls this code", is_event=False)]
        return []
    return []


def _find_edited_event(
    kinds: tuple[type[Event], ...], events: Collection[Event], others: Iterable[Event]
) -> Event | None:
    """Return the event of these kinds beside which the remedy is to be written, or None."""
    if not kinds:
        return None
    about = {event.object for event in events} - {None}
    named = {str(event.names.get("optimizer")) for event in events if event.names.get("optimizer")}
    for event in (*events, *others):
        # An optimizer that another function loads is known there by its name only.
        is_same = event.object in about or str(event.names.get("optimizer")) in named
        if isinstance(event, kinds) and (is_same or not about | named or isinstance(event, AutocastEnter)):
            return event
    return None


def _find_name(
    role: str, given: str, edit: Site, events: Collection[Event], others: Collection[Event], program: Program
) -> _Name | None:
    """Return the name of the object with a role: the first name that is valid at the edit, else any, else None.

    ``given`` is the name in the message so far, "" if unknown. Return None if no event has this name.
    """
    if given and given != DEFAULT_NAMES[role]:
        concerned = [each for each in (*events, *others) if (name := _name_in(each, role)) and name.text == given]
        if not concerned:
            return None
    else:
        concerned = [*events]
    naming = [event for event in concerned if _name_in(event, role) is not None]
    said = [name for event in naming if (name := _name_in(event, role)) is not None]
    # Without a given name, later events may be about another object.
    visible = [name for name in (said if given else said[:1]) if name.is_visible_from(edit)]
    if visible:
        return visible[0]
    key = _object_in(naming[0], role, program) if naming else None
    if key is None:
        key = _find_object(role, concerned, others, program)
    names = said if key is None else [*_list_names(role, key, (*concerned, *others), program)]
    visible = [name for name in names if name.is_visible_from(edit)]
    if visible:
        return min(visible, key=lambda name: (name.site.function != edit.function, abs(name.site.line - edit.line)))
    constructed = next((name for name in names if name.is_constructed), None)
    return constructed or next(iter(said or names), None)


def _name_in(event: Event, role: str) -> _Name | None:
    text = str(event.names.get(role) or "")
    return _Name(text, event.site) if text and text != DEFAULT_NAMES[role] else None


def _list_names(role: str, key: int, events: Iterable[Event], program: Program) -> Iterator[_Name]:
    """Yield the names of an object in source: in each event, and where the object is constructed."""
    for event in events:
        if _object_in(event, role, program) == key and (name := _name_in(event, role)) is not None:
            yield name
    known = program.objects[key]
    if known.site is not None and known.name and known.name != DEFAULT_NAMES[role]:
        yield _Name(known.name, known.site, known.attributes.constructed)


def _find_object(role: str, events: Collection[Event], others: Iterable[Event], program: Program) -> int | None:
    """Return the key of the object with a role in the events of a violation, None if unknown or not unique."""
    keys = {key for event in events if (key := _object_in(event, role, program)) is not None}
    if not keys and role == "optimizer":
        scalers = {event.subject for event in events} - {None}
        keys = {
            event.object
            for event in others
            if isinstance(event, (ScalerStep, Unscale)) and event.subject in scalers and event.object is not None
        }
    return keys.pop() if len(keys) == 1 else None


def _object_in(event: Event, role: str, program: Program) -> int | None:
    """Return the key of the only object of an event with a role, or None."""
    key = event.subject if role == "scaler" or isinstance(event, OptimizerNew) else event.object
    if key is None and role == "optimizer":
        owners = event.owners if isinstance(event, OwnedEvent) else event.feeds if isinstance(event, Backward) else None
        key = next(iter(owners)) if owners is not None and len(owners) == 1 else None
    return key if key is not None and program.objects[key].role == role else None
