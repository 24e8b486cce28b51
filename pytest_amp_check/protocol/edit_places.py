"""Names and locations that the remedy of a finding needs: names valid at the edit, and what to write in other lines."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from .event_graph import Graph, Program
from .events import (
    AutocastEnter,
    Backward,
    Clip,
    Event,
    Forward,
    OptimizerLoad,
    OptimizerNew,
    OwnedEvent,
    ScaledLoss,
    ScalerStep,
    Step,
    Unscale,
)
from .fast_namedtuple import NamedTuple
from .finding import TraceStep
from .frameworks import FRAMEWORKS
from .message_templates import DEFAULT_NAMES, fill_template, split_message
from .rule import Edit
from .rules import LABELS
from .sites import Site

#: Roles of objects that remedies name.
_ROLES = ("scaler", "optimizer")
#: Maximum number of locations beside that of a finding.
SHOWN = 3


#: Name of the search for the location of a new scaler.
_NEW_SCALER = "new scaler"
#: Name of the search for the location where a state is loaded.
_LOAD = "load"
#: Value of a remedy: the name under which all methods of a class have the scaler.
_KEPT = "kept_scaler"
#: How a file gets apex's module.
_IMPORT = "write `from apex import amp`"
#: An addition to an edit before a step whose gradients nothing unscales.
_UNSCALING = ", after a new line `{scaler}.unscale_({optimizer})`"
#: The addition if something unscales them under a condition that the step does not have.
_UNSCALING_ALWAYS = ", after `{scaler}.unscale_({optimizer})`, which is then to run in every case"


class FindingContext(NamedTuple):
    """The code around a finding: all events of the graph or the run in order, and the loops of the graph.

    ``shown`` are the events of the violation and of the trace. Without them, those of the violation are used.
    """

    program: Program
    events: Collection[Event]
    loops: Mapping[int, tuple[object, Site]] = {}
    shown: Collection[Event] = ()

    @classmethod
    def from_graph(cls, graph: Graph, program: Program, shown: Collection[Event] = ()) -> FindingContext:
        """Return the context of findings in a graph."""
        events = [node.event for node in graph.nodes if node.event is not None]
        return cls(program, events, graph.loops, shown)


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

    def is_local_to_class_of(self, edit: Site) -> bool:
        """Return True for a variable of another method of the class of an edit."""
        owner, _, method = edit.function.rpartition(".")
        is_method = bool(owner) and not owner.endswith("<locals>") and self.site.path == edit.path
        here, _, other = self.site.function.rpartition(".")
        return is_method and here == owner and other != method and "." not in self.text


def name_region(events: Iterable[Event]) -> dict[str, str]:
    """Return the device of the regions among events, as a name in a message, if it is one and not CUDA."""
    devices = {event.device for event in events if isinstance(event, AutocastEnter) and event.device}
    return {"region": devices.pop()} if len(devices) == 1 and "cuda" not in devices else {}


def find_edit_places(
    label: str, site: Site, events: Collection[Event], context: FindingContext, values: Mapping[str, str]
) -> EditPlaces:
    """Return names for the remedy of a violation, and what to write at locations beside that of the finding.

    ``site`` is the location of the finding, and ``events`` are the events of the violation. ``values`` are the values
    of the message, of which a name is kept if it is valid at the edit.
    """
    kind = LABELS[label][1]
    search = _EditSearch(site, context.shown or events, context)
    names: dict[str, str] = {}
    passed: list[TraceStep] = []
    remedy = split_message(kind.message)[1]
    is_loaded = any(edit.search == _LOAD for edit in kind.trace_context.edits)
    for role in _ROLES:
        if "{" + role not in kind.message:
            continue
        name = search.find_name(role, values.get(role, ""), site)
        if name is None and any(edit.search == _NEW_SCALER for edit in kind.trace_context.edits) and role == "scaler":
            names[role] = search.name_new_scaler()
            names["constructor"] = search.name_constructor()
            names["enabled"] = search.describe_choice()
            names["float16_only"] = search.describe_float16_only()
        if name is None:
            continue
        names[role] = name.text
        if role == "scaler":
            names[_KEPT] = name.text
        if not any("{" + each in remedy for each in (role, f"kept_{role}")) or name.is_visible_from(site):
            continue
        if is_loaded and name.is_local_to_class_of(site):
            names[_KEPT] = f"self.{name.text}"
            passed.append(search.make_attribute(role, name))
        else:
            passed += search.find_passing(role, name)
    steps = [TraceStep(at, text, is_event=False) for event in events for at, text in event.edits]
    texts = name_region(context.events) if kind.trace_context.edits else {}
    for event in reversed([*events]) if kind.trace_context.edits else ():
        texts.update((key, text) for key, value in event.names.items() if (text := str(value)))
    for edit in kind.trace_context.edits:
        steps += _SEARCHES[edit.search](search, edit, {**texts, **values, **names})
    placed = {step.site.call_key for step in steps}
    steps += [step for step in passed if step.site.call_key not in placed]
    return EditPlaces(names, tuple(steps[:SHOWN]))


class _EditSearch:
    """A search for the names and locations of one finding."""

    def __init__(self, site: Site, events: Collection[Event], context: FindingContext) -> None:
        self.site = site
        self.events = events
        self.program = context.program
        self.loops = context.loops
        self.known = context.events

    # Names.

    def find_name(self, role: str, given: str, edit: Site) -> _Name | None:
        """Return the name of the object with a role: the first name that is valid at an edit, else any, else None.

        ``given`` is the name in the message so far, "" if unknown. Return None if no event has this name.
        """
        if given and given != DEFAULT_NAMES[role]:
            concerned = [each for each in (*self.events, *self.known) if _has_name(each, role, given)]
            if not concerned:
                return None
        else:
            concerned = [*self.events]
        naming = [event for event in concerned if _name_in(event, role) is not None]
        said = [name for event in naming if (name := _name_in(event, role)) is not None]
        # Without a given name, later events may be about another object.
        visible = [name for name in (said if given else said[:1]) if name.is_visible_from(edit)]
        if visible:
            return visible[0]
        key = _object_in(naming[0], role, self.program) if naming else None
        if key is None:
            key = self._find_object(role, concerned)
        names = said if key is None else [*self._list_names(role, key, (*concerned, *self.known))]
        visible = [name for name in names if name.is_visible_from(edit)]
        if visible:
            return min(visible, key=lambda name: (name.site.function != edit.function, abs(name.site.line - edit.line)))
        constructed = next((name for name in names if name.is_constructed), None)
        return constructed or next(iter(said or names), None)

    def _list_names(self, role: str, key: int, events: Iterable[Event]) -> Iterator[_Name]:
        """Yield the names of an object in source: in each event, and where the object is constructed."""
        for event in events:
            if _object_in(event, role, self.program) == key and (name := _name_in(event, role)) is not None:
                yield name
        known = self.program.objects[key]
        if known.site is not None and known.name and known.name != DEFAULT_NAMES[role]:
            yield _Name(known.name, known.site, known.attributes.constructed)

    def _find_object(self, role: str, events: Collection[Event]) -> int | None:
        """Return the key of the object with a role in some events, None if unknown or not unique."""
        keys = {key for event in events if (key := _object_in(event, role, self.program)) is not None}
        if not keys and role == "optimizer":
            scalers = {event.subject for event in events} - {None}
            keys = {
                event.object
                for event in self.known
                if isinstance(event, (ScalerStep, Unscale)) and event.subject in scalers and event.object is not None
            }
        return keys.pop() if len(keys) == 1 else None

    def name_new_scaler(self) -> str:
        """Return the name of a scaler that the remedy constructs: an attribute if the optimizer is one."""
        step = self.find_event((Step,))
        owner = str(step.names.get("optimizer") or "").rpartition(".")[0] if step is not None else ""
        return "self.scaler" if owner == "self" else "scaler"

    def name_constructor(self) -> str:
        """Return the class of a new scaler, which knows about the shards of gradients if there are any."""
        is_sharded = any("fsdp1" in each.attributes.wrappers for each in self.program.objects)
        name = DEFAULT_NAMES["constructor"]
        return "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler" if is_sharded else name

    def describe_choice(self) -> str:
        """Return the argument that enables a new scaler in float16 only, if the regions choose their dtype."""
        regions = [event for event in self.known if isinstance(event, AutocastEnter) and event.enabled]
        choices = {event.low_choice for event in regions if not event.null}
        choice = choices.pop() if len(choices) == 1 else ""
        return f", enabled={choice} == torch.float16" if choice else ""

    def describe_float16_only(self) -> str:
        """Return an addition if the program chooses among regions of several dtypes, a comma otherwise."""
        is_choice = any(isinstance(event, AutocastEnter) and event.is_one_of_several for event in self.known)
        return ", enabled for float16 only," if is_choice else ","

    def find_passing(self, role: str, name: _Name) -> list[TraceStep]:
        """Return the edits that pass an object to the function of the finding, which does not have the object."""
        if self.is_module(role, name):
            return [TraceStep(Site(self.site.path, 1), f"{_IMPORT} at the top of this file", is_event=False)]
        key = self._find_object(role, self.events)
        names = [name] if key is None else [name, *self._list_names(role, key, (*self.events, *self.known))]
        edited = _describe_function(self.site)
        frames = self.site.list_frames()
        for depth in range(len(frames) - 2, -1, -1):
            visible = next((each for each in names if each.is_visible_from(frames[depth])), None)
            if visible is not None:
                callee = _describe_function(frames[depth + 1])
                through = "" if depth == len(frames) - 2 else f" and on to {edited}"
                text = f"pass `{visible.text}` in this call, as a new parameter of {callee}{through}"
                text = f"{self._describe_inheritance(visible, frames[depth])}{text}"
                return [TraceStep(frames[depth], text, is_event=False)]
        made = self.find_construction(role, name)
        name = _Name(name.text, made, is_constructed=True) if made is not None else name
        verb = "constructed" if name.is_constructed else "used"
        unless = self._describe_inheritance(name, name.site)
        return [TraceStep(name.site, f"{unless}pass `{name.text}`, which is {verb} here, to {edited}", is_event=False)]

    def make_attribute(self, role: str, name: _Name) -> TraceStep:
        """Return the edit that makes a variable of a method an attribute, which the other methods have."""
        at = self.find_construction(role, name) or name.site
        owner = at.function.rpartition(".")[0].rpartition(".")[2]
        text = f"move this to `{owner}.__init__`, as `self.{name.text}`, and use that here"
        return TraceStep(at, text, is_event=False)

    def is_module(self, role: str, name: _Name) -> bool:
        """Return True if a name is that of apex's module, which each file imports for itself."""
        return any(
            each.role == role and each.attributes.framework == "apex" and name.text in (each.name, "amp")
            for each in self.program.objects
        )

    def find_construction(self, role: str, name: _Name) -> Site | None:
        """Return where the only object with a role and a name is constructed, None if unknown."""
        objects = (each for each in self.program.objects if each.role == role and each.name == name.text)
        sites = {each.site for each in objects if each.attributes.constructed and each.site is not None}
        return sites.pop() if len(sites) == 1 else None

    def _describe_inheritance(self, name: _Name, site: Site) -> str:
        """Return the condition under which a method of another class does not have an attribute of this object."""
        classes = [each.function.rpartition(".")[0] for each in (site, self.site)]
        if not name.text.startswith("self.") or not all(classes) or classes[0] == classes[1]:
            return ""
        own, other = (each.rpartition(".")[2] for each in classes)
        return f"if `{other}` is no base class of `{own}`, "

    def fill(self, edit: Edit, site: Site, values: Mapping[str, str], *about: Event) -> TraceStep:
        """Return an edit at a location. Names that are valid there replace those of the message."""
        texts = dict(values)
        for event in about:
            texts.update((key, text) for key, value in event.names.items() if (text := str(value)))
        if "{with_clip}" in edit.text:
            texts["with_clip"] = self.describe_clip()
        if "{unscaling}" in edit.text:
            unscale = self.find_unscale(*about)
            always = set(unscale.guards if unscale is not None else ()) <= {
                guard for each in about for guard in each.guards
            }
            template = _UNSCALING if unscale is None else "" if always else _UNSCALING_ALWAYS
            texts["unscaling"] = fill_template(template, texts)
        return TraceStep(site, fill_template(edit.text, texts), is_event=False)

    # Locations.

    def find_unscale(self, *about: Event) -> Event | None:
        """Return a call that unscales the gradients of the optimizer of some events, or None."""
        keys = {event.object for event in (*self.events, *about)} - {None}
        keys.update(key for event in self.events for key in _owners_of(event))
        found = (event for event in self.list_following() if isinstance(event, Unscale))
        return next((event for event in found if not keys or event.object in keys), None)

    def find_event(self, kinds: tuple[type[Event], ...]) -> Event | None:
        """Return an event of these kinds about the same objects: the first one that follows the finding, else any."""
        about = {event.object for event in self.events} - {None}
        about.update(key for event in self.events for key in _owners_of(event))
        named = {str(event.names.get("optimizer")) for event in self.events if event.names.get("optimizer")}
        for event in (*self.events, *self.list_following()):
            if not isinstance(event, kinds):
                continue
            is_same = isinstance(event, AutocastEnter) or not about | named or event.object in about
            is_same = is_same or (isinstance(event, OwnedEvent) and event.owners is None)
            is_same = is_same or not about.isdisjoint(_owners_of(event))
            # An optimizer that another function loads is known there by its name only.
            if is_same or str(event.names.get("optimizer")) in named:
                return event
        return None

    def describe_clip(self) -> str:
        """Return that the clip after the first event moves with it, "" if no clip follows in the same function."""
        following = self.list_following()
        for event in following[1:]:
            if isinstance(event, (Step, ScalerStep)):
                break
            here, there = following[0].site, event.site
            if isinstance(event, Clip) and (here.path, here.function) == (there.path, there.function):
                return f", with the clip in line {there.line}"
        return ""

    def list_following(self) -> list[Event]:
        """Return all events, beginning with those that follow the first event of the violation."""
        first = next(iter(self.events), None)
        known = [*self.known]
        start = next((number for number, event in enumerate(known) if event is first), 0)
        return known[start:] + known[:start]

    def is_shown(self, other: Site) -> bool:
        """Return True if the code around the finding shows the line of another location."""
        return self.site.path == other.path and self.site.line - 1 <= other.line <= self.site.end_line + 1


def _edit_beside_event(search: _EditSearch, edit: Edit, values: Mapping[str, str]) -> list[TraceStep]:
    """Return the edit beside an event, unless the code around the finding shows the line."""
    event = search.find_event(edit.beside)
    if event is None or (search.is_shown(event.site) and not edit.is_always_shown):
        return []
    return [search.fill(edit, event.site, values, event)]


def _edit_at_scaler(search: _EditSearch, edit: Edit, values: Mapping[str, str]) -> list[TraceStep]:
    """Return the edit where the scaler of the events is constructed."""
    for event in search.events:
        scaler = search.program.objects[event.subject] if event.subject is not None else None
        if scaler is not None and scaler.role == "scaler":
            if scaler.site is None or not scaler.attributes.constructed or scaler.attributes.framework:
                return []
            # A function that makes scalers for other files as well is called here.
            near = [frame for frame in scaler.site.list_frames() if frame.path == search.site.path]
            return [search.fill(edit, near[-1] if near else scaler.site, values)]
    return []


def _edit_call_in_region(search: _EditSearch, edit: Edit, values: Mapping[str, str]) -> list[TraceStep]:
    """Return the edit at the call in the function of a region that leads to the finding, if another one has it."""
    region = search.find_event((AutocastEnter,))
    event = next(iter(search.events), None)
    if region is None or event is None:
        return []
    here = (region.site.path, region.site.function)
    inside = [frame for frame in event.site.list_frames()[:-1] if (frame.path, frame.function) == here]
    if not inside or (event.site.path, event.site.function) == here:
        return []
    return [search.fill(edit, inside[-1], values)]


def _edit_before_loop(search: _EditSearch, edit: Edit, values: Mapping[str, str]) -> list[TraceStep]:
    """Return the edit before the loop that the message names, or before a loop around it that only repeats it."""
    head = values.get("loop") or values.get("header")
    optimizers = [each.site for each in search.program.objects if each.role == "optimizer" and each.site is not None]
    for event in search.events:
        keys = [key for key in event.loops or () if key in search.loops]
        named = next((search.loops[key][1] for key in keys if str(search.loops[key][0]) == head), None)
        if named is None:
            continue
        for site in (search.loops[key][1] for key in keys):
            # A loop that also constructs the optimizer trains anew in each iteration.
            is_same = (site.path, site.function) == (named.path, named.function)
            trains_anew = any(_is_between(site, optimizer, named) for optimizer in optimizers)
            if is_same and not trains_anew and ("loop" in values or site is named):
                is_own = (site.path, site.function) == (search.site.path, search.site.function)
                passing = "" if is_own else f", and pass it on to {_describe_function(search.site)}"
                return [search.fill(edit, site, {**values, "passing": passing})]
    return []


def _is_between(first: Site, other: Site, last: Site) -> bool:
    """Return True if a location is in the same function between two others."""
    return (first.path, first.function) == (other.path, other.function) and first.line < other.line < last.line


def _edit_at_new_scaler(search: _EditSearch, edit: Edit, values: Mapping[str, str]) -> list[TraceStep]:
    """Return the edit where a scaler for a backward is to be constructed: beside its optimizer, or before its loop."""
    backward = next((event for event in search.events if isinstance(event, Backward)), None)
    step = search.find_event((Step,))
    if backward is None or step is None:
        return []
    frames = {(frame.path, frame.function) for frame in backward.site.list_frames()}
    made = search.program.objects[step.object] if step.object is not None else None
    site = made.site if made is not None and made.attributes.constructed else None
    here = (backward.site.path, backward.site.function)
    is_own = made is not None and site is not None and _Name(made.name, site).is_visible_from(backward.site)
    if made is not None and site is not None and made.name and (is_own or (site.path, site.function) in frames):
        passing = "" if is_own else f", and pass it on to {_describe_function(backward.site)}"
        return [search.fill(edit, site, {**values, "side": "after this statement", "passing": passing})]
    loops = [search.loops[key][1] for key in backward.loops or () if key in search.loops]
    loops = [loop for loop in loops if (loop.path, loop.function) == here]
    if loops:
        return [search.fill(edit, loops[0], {**values, "side": "before this loop", "passing": ""})]
    return []


def _edit_before_clip(search: _EditSearch, edit: Edit, values: Mapping[str, str]) -> list[TraceStep]:
    """Return the edit before the clip between a backward and its step, if one clips."""
    step = search.find_event((Step, ScalerStep))
    if step is None:
        return []
    for event in search.list_following()[1:]:
        if event is step:
            break
        if isinstance(event, Clip) and (event.owners is None or step.object in event.owners):
            return [search.fill(edit, event.site, {**values, "optimizer": str(step.names.get("optimizer") or "")})]
    return []


def _edit_at_load(search: _EditSearch, edit: Edit, values: Mapping[str, str]) -> list[TraceStep]:
    """Return the edit that loads the state of a scaler after that of the optimizer."""
    load = search.find_event((OptimizerLoad,))
    if load is None:
        return []
    given = values.get("scaler", "")
    kept = values.get(_KEPT, given)
    name = search.find_name("scaler", given, load.site) if kept == given else _Name(kept, load.site)
    if name is None:
        return []
    checkpoint = str(load.names.get("checkpoint") or "checkpoint")
    texts = {**values, "scaler": name.text, "checkpoint": checkpoint, "passing": ""}
    texts["if_loaded"] = f'"scaler" in {checkpoint}'
    if values.get("if_any"):
        texts["if_loaded"] = f'{name.text} is not None and {checkpoint}.get("scaler")'
    site, made = load.site, search.find_construction("scaler", name)
    if search.is_module("scaler", name):
        texts["passing"] = "" if site.path == search.site.path else f", and {_IMPORT} at the top of this file"
    elif not name.is_visible_from(site):
        texts["scaler"] = name.text.rpartition(".")[2]
        texts["passing"] = f", with `{texts['scaler']}` as a new parameter of {_describe_function(site)}"
    elif made is not None and (made.path, made.function) == (site.path, site.function) and made.line > site.line:
        texts["passing"] = f", and move the construction of `{name.text}` in line {made.line} to before it"
    return [search.fill(edit, site, texts)]


def _edit_unscale(search: _EditSearch, edit: Edit, values: Mapping[str, str]) -> list[TraceStep]:
    """Return how to move a call of ``unscale_`` that comes too late, or runs only under a condition."""
    unscale, cause = search.find_unscale(), next(iter(search.events), None)
    if unscale is None or cause is None:
        return []
    known = [*search.known]
    is_later = unscale in known and cause in known and known.index(unscale) > known.index(cause)
    to = f"to before line {search.site.line}" if is_later else "out of its condition"
    return [search.fill(edit, unscale.site, {**values, "to": to})]


def _edit_after_optimizer(search: _EditSearch, edit: Edit, values: Mapping[str, str]) -> list[TraceStep]:
    """Return the edit that makes the engine of a framework wrap an optimizer: after both are constructed."""
    framework = next((each for each in FRAMEWORKS.values() if each.title == values.get("framework")), None)
    step = search.find_event((Step,))
    made = search.program.objects[step.object] if step is not None and step.object is not None else None
    if framework is None or not framework.steps.wrapper or made is None or made.site is None:
        return []
    if not made.name or made.name != values.get("optimizer"):
        return []  # another object is stepped, such as the optimizer inside of the framework's own
    texts = {**values, "wrapper": framework.steps.wrapper, "optimizer": made.name}
    sites = [made.site, *search.program.attributes.setup_sites.values()]
    near = [each for each in sites if (each.path, each.function) == (made.site.path, made.site.function)]
    return [search.fill(edit, max(near, key=lambda each: each.line), texts)]


def _edit_around_forward(search: _EditSearch, edit: Edit, values: Mapping[str, str]) -> list[TraceStep]:
    """Return the edit around a forward of a module, unless the program has regions or a framework that enters them."""
    if search.program.attributes.setup_sites or any(_is_region(event) for event in search.known):
        return []
    modules = {event.subject for event in search.events} - {None}
    forward = next((each for each in search.known if isinstance(each, Forward) and each.subject in modules), None)
    return [] if forward is None else [search.fill(edit, forward.site, values, forward)]


def _is_region(event: Event) -> bool:
    return isinstance(event, AutocastEnter) and event.enabled and not event.null


def _edit_before_forward(search: _EditSearch, edit: Edit, values: Mapping[str, str]) -> list[TraceStep]:
    """Return the edit before the forward of a loss."""
    forwards = (event.forward for event in search.events if isinstance(event, ScaledLoss))
    forward = next((event for event in forwards if event is not None), None)
    return [] if forward is None else [search.fill(edit, forward.site, values, forward)]


_Search = Callable[[_EditSearch, Edit, Mapping[str, str]], list[TraceStep]]

#: Searches of edits by name, which a violation declares.
_SEARCHES: dict[str, _Search] = {
    "event": _edit_beside_event,
    "scaler": _edit_at_scaler,
    "call in region": _edit_call_in_region,
    "loop": _edit_before_loop,
    _NEW_SCALER: _edit_at_new_scaler,
    "clip": _edit_before_clip,
    _LOAD: _edit_at_load,
    "unscale": _edit_unscale,
    "forward": _edit_before_forward,
    "forward of module": _edit_around_forward,
    "wrapped optimizer": _edit_after_optimizer,
}


def _describe_function(site: Site) -> str:
    """Return the function of a location in backticks, by its own name."""
    function = site.function.rpartition(".")[2]
    return f"`{function}`" if site.function not in ("", "<module>") else f"line {site.line}"


def _has_name(event: Event, role: str, text: str) -> bool:
    name = _name_in(event, role)
    return name is not None and name.text == text


def _name_in(event: Event, role: str) -> _Name | None:
    text = str(event.names.get(role) or "")
    return _Name(text, event.site) if text and text != DEFAULT_NAMES[role] else None


def _owners_of(event: Event) -> Collection[int]:
    """Return the keys of the optimizers of an event without a single one, empty if unknown."""
    return (event.owners if isinstance(event, OwnedEvent) else event.feeds if isinstance(event, Backward) else ()) or ()


def _object_in(event: Event, role: str, program: Program) -> int | None:
    """Return the key of the only object of an event with a role, or None."""
    key = event.subject if role == "scaler" or isinstance(event, OptimizerNew) else event.object
    if key is None and role == "optimizer":
        owners = _owners_of(event)
        key = next(iter(owners)) if len(owners) == 1 else None
    return key if key is not None and program.objects[key].role == role else None
