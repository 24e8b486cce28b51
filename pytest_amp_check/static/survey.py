"""What is true of a program as a whole, which its events do not tell one by one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from ..protocol import events as e
from ..protocol.events import Event, Graph, Program, Site, Thing
from .interpreter.values import CASTS, FORWARD
from .methods import mark_left_out

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .project.entering import Entering

Events = Mapping[str, list[Event]]
#: Optimizer -> the scalers that step it.
Steps = Mapping[int, set[int]]


def survey(program: Program, near_float16: Callable[[], bool]) -> None:
    """Tell the rules what is true of the program as a whole; ``near_float16`` says whether float16 may come into it."""
    events = _by_kind(program.graphs)
    stepped = _stepped(program, events)
    scaled = [event for event in (*events[e.SCALE], *events[e.SCALER_STEP]) if event.subject is not None]
    scalers = [thing for thing in program.things if thing.role == "scaler"]
    live = _live(program, scalers, scaled, events)
    program.facts["live_scalers"] = live
    mark_left_out(program)
    program.facts["left_scalers"] = _left(program, scalers)
    program.facts["scales_apart"] = any(map(_scales_apart, program.graphs))
    program.facts["scaler_dtypes"] = frozenset().union(*(event.facts.get("dtypes", ()) for event in scaled))
    steps = _steps(program, events)
    of_live = {thing.key for thing in live}
    beside = [key for key, by in steps.items() if not by.isdisjoint(of_live)]
    by_trainer = {t.key: t.facts["trainer"] for t in program.things if "trainer" in t.facts}
    in_float16 = {key for key, precision in by_trainer.items() if precision == "float16"}
    program.facts["scaled_modules"] = _whole(program, _owned(program.things[key] for key in beside)) | in_float16
    frozen = {t.key for t in program.things if t.facts.keys() & {"frozen", "partly_frozen"}}
    # What wraps an optimizer and steps it may keep float32 copies of what it updates.
    bare = [thing for thing in stepped if not thing.facts.get("wrapped")]
    program.facts["trained_modules"] = (_whole(program, _owned(bare) - frozen) | by_trainer.keys()) - frozen
    if events[e.MODULE_CAST]:
        _mark_casts(program)
    _mark_states(program, events, live)
    filled = [event for event in events[e.FILL] if event.facts["eligible"]]
    if filled and not near_float16():
        for event in filled:
            event.facts["eligible"] = False
    alone = any(thing.facts.get("constructed") for thing in stepped) and not scalers
    for graph in program.graphs:
        _mark_alone(program, graph, alone=alone or (bool(scalers) and _steps_without_scaler(program, graph)))


def _mark_alone(program: Program, graph: Graph, *, alone: bool) -> None:
    for node in graph.nodes:
        if node.event is not None and node.event.kind == e.BACKWARD and node.event.subject is None:
            node.event.facts["alone"] = alone


def _steps_without_scaler(program: Program, graph: Graph) -> bool:
    """Whether a function steps an optimizer that no scaler of the program has to do with, and uses none itself."""
    events = _by_kind([graph])
    stepped = {event.object for event in events[e.STEP]}
    if not stepped:
        return False
    used = [x.subject for kind in (e.SCALER_NEW, e.SCALE, e.UNSCALE, e.SCALER_STEP, e.UPDATE) for x in events[kind]]
    handed = [key for event in events[e.HANDOFF] for key in event.facts.get("things", ())]
    others = {x.object for x in program.events() if x.kind in (e.SCALER_STEP, e.UNSCALE)}
    engines = any(program.things[key].facts.get("engine") for key in stepped if key is not None)
    return not (used or handed or engines or stepped & others)


def survey_scaled(program: Program, asked: Callable[[], Iterable[Entering]]) -> None:
    """Say of what live scalers scale whether it was computed outside of every region that may be entered.

    ``asked`` tells what may be entered, each time more of it.
    """
    live = {thing.key for thing in program.facts["live_scalers"]}
    scaled = [event for event in program.events() if event.kind == e.SCALE and event.subject in live]
    bare = [event for event in scaled if event.facts["autocast"] == "out"]
    # An object that is known to be of such a class enters: what is not known is of another.
    constructed = {thing.facts.get("class") for thing in program.things if thing.role == "module"}
    for known in asked() if bare else ():
        names = known.names | CASTS | (frozenset({FORWARD}) if known.modules - constructed else frozenset())
        bare = [event for event in bare if not _is_covered(event, known, names)]
        if not bare:
            break
    for event in scaled:
        if event.facts["autocast"] == "out":
            event.facts["bare"] = event in bare


def _is_covered(event: Event, known: Entering, names: frozenset[str]) -> bool:
    """Whether what is scaled may come of a region: the calls that it comes of enter one, or one stands around them."""
    if known.everywhere or event.facts["callees"] & names:
        return True
    return any(_called(frame) in known.within for frame in event.site.frames())


def _called(frame: Site) -> str:
    """What a region has in it around which code runs: the name of its function, or what its file is imported by."""
    name = frame.function.rpartition(".")[2]
    return name if name != "<module>" else frame.path.rpartition("/")[2].partition(".")[0] + "."


def _live(program: Program, scalers: list[Thing], scaled: list[Event], events: Events) -> tuple[Thing, ...]:
    """The scalers that scale something, and whose state the program is to keep."""
    for thing in scalers:
        enabled = thing.facts.get("enabled", True)
        thing.facts["enabled"] = enabled if isinstance(enabled, bool) else e.UNKNOWN
    # Code that is given both is where they train.
    used = {event.subject for event in scaled}.union(*(_given(program, each, "scaler") for each in events[e.HANDOFF]))
    # Most frameworks keep the state of their scaler themselves.
    own = [thing for thing in scalers if thing.facts.get("framework", "timm") == "timm"]
    return tuple(thing for thing in own if thing.key in used and thing.facts["enabled"] is not False)


def _left(program: Program, scalers: list[Thing]) -> frozenset[int]:
    """The scalers of which the program shows a step and no update, by whatever code of it.

    Code that updates a scaler and does not step it completes what other code has begun, and may know it by another way
    than that code: what is called the same is taken to be the same.
    """
    stepped: set[int | None] = set()
    updated: set[int | None] = set()
    completed: set[str] = set()
    for graph in program.graphs:
        events = _by_kind([graph])
        steps = {event.subject for event in events[e.SCALER_STEP]}
        updates = {event.subject for event in events[e.UPDATE]}
        stepped |= steps
        updated |= updates
        completed.update(_last(program.things[key]) for key in updates - steps if key is not None)
    left = [thing for thing in scalers if thing.key in stepped - updated and not thing.facts.get("framework")]
    return frozenset(thing.key for thing in left if _last(thing) not in completed)


def _scales_apart(graph: Graph) -> bool:
    """Whether code scales a loss that other code may run backward."""
    events = _by_kind([graph])
    return not {event.subject for event in events[e.SCALE]} <= {event.subject for event in events[e.BACKWARD]}


def _last(thing: Thing) -> str:
    """The last part of what the user calls a thing: an object's attribute has it wherever the object is known."""
    return thing.name.rpartition(".")[2]


def _by_kind(graphs: Iterable[Graph]) -> Events:
    found: defaultdict[str, list[Event]] = defaultdict(list)
    for graph in graphs:
        for node in graph.nodes:
            if node.event is not None:
                found[node.event.kind].append(node.event)
    return found


def _stepped(program: Program, events: Events) -> list[Thing]:
    """The optimizers that are stepped."""
    steps = (*events[e.SCALER_STEP], *events[e.STEP])
    return [program.things[event.object] for event in steps if event.object is not None]


def _owned(optimizers: Iterable[Thing]) -> frozenset[int]:
    """The modules whose parameters some optimizers have."""
    return frozenset().union(*(thing.facts.get("owns") or () for thing in optimizers))


def _whole(program: Program, modules: Iterable[int]) -> frozenset[int]:
    """Modules with those that they are made of from the start, as far as they are in low precision."""
    whole, todo = set(modules), list(modules)
    while todo:
        parts = program.things[todo.pop()].facts.get("parts", ())
        todo += [key for key in parts if key not in whole]
        whole.update(todo)
    return frozenset(whole)


def _given(program: Program, event: Event, role: str) -> list[int]:
    """What of a role is given to code that trains."""
    return [key for key in event.facts.get("trains", ()) if program.things[key].role == role]


def _steps(program: Program, events: Events) -> Steps:
    steps: defaultdict[int, set[int]] = defaultdict(set)
    for event in (*events[e.SCALER_STEP], *events[e.STEP]):
        if event.object is not None:
            steps[program.things[event.object].key].update([event.subject] if event.subject is not None else [])
    for event in events[e.HANDOFF]:
        for optimizer in _given(program, event, "optimizer"):
            steps[optimizer].update(_given(program, event, "scaler"))
    return dict(steps)


def _mark_casts(program: Program) -> None:
    """Say of each cast of a module whether the module is trained as it leaves it: by the same code, or the object's."""
    for graph in program.graphs:
        events = _by_kind([graph])
        stepped = _stepped(program, events)
        made = {event.subject: event for event in events[e.OPTIMIZER_NEW]}
        for index, node in enumerate(graph.nodes):
            event = node.event
            if event is None or event.kind != e.MODULE_CAST:
                continue
            trained = event.facts.get("born", False) or event.site.function.endswith("__init__")
            if not trained and event.subject is not None:
                optimizers = (thing for thing in stepped if not _excludes(made.get(thing.key), event))
                of_module = {thing.key for thing in optimizers if event.subject in _owned([thing])}
                trained = bool(of_module) and _are_stepped_after(graph, index, of_module)
            # A test of a few steps asks for it on purpose, and has no small updates to lose.
            event.facts["trained"] = trained and not event.site.in_test()


def _are_stepped_after(graph: Graph, cast: int, optimizers: set[int]) -> bool:
    """Whether any of some optimizers is stepped after a cast of a module, before that is cast back to float32."""
    event = graph.nodes[cast].event
    assert event is not None
    asked_anew = 0
    for node in graph.nodes:
        asked_anew |= node.forgets
    # What is answered once holds for the rest of the program.
    answers = {key: truth for key, truth in event.guards if not asked_anew >> key & 1}
    seen, todo = {cast}, [cast]
    while todo:
        for target, key, truth in graph.nodes[todo.pop()].ways:
            if target in seen or answers.get(key, truth) != truth:
                continue
            seen.add(target)
            after = graph.nodes[target].event
            if after is not None:
                if after.kind in (e.STEP, e.SCALER_STEP) and after.object in optimizers:
                    return True
                back = after.kind == e.MODULE_CAST and after.facts["dtype"] == "float32"
                # Another call makes another module.
                if after.kind == e.AGAIN or (back and after.subject == event.subject):
                    continue
            todo.append(target)
    return False


def _excludes(made: Event | None, other: Event) -> bool:
    """Whether an optimizer is constructed only where something else does not happen: by the answers to one question."""
    return made is not None and any((key, not truth) in made.guards for key, truth in other.guards)


def _mark_states(program: Program, events: Events, live: tuple[Thing, ...]) -> None:
    """Say of what is saved which scalers belong to it, and of what is loaded whether the same program saves it."""
    steps = _steps(program, events)
    for event in events[e.SAVE]:
        event.facts["scope_scalers"] = _scalers_beside(event.facts["owners"], live, steps)
    # With the scaler's state beside the optimizer's.
    full = [save.facts for save in events[e.SAVE] if save.facts["scaler_entries"] and save.facts["optimizer_entries"]]
    for event in events[e.SCALER_LOAD]:
        entry = event.facts["entry"]
        known = any(entry in facts["scaler_entries"] for facts in full)
        event.facts["of_others"] = bool(full) and entry is not None and not known
    for event in events[e.OPTIMIZER_LOAD]:
        saved = any(event.facts["entry"] in facts["optimizer_entries"] for facts in full)
        event.facts["holds_scaler"] = saved and event.facts["source"] not in program.facts.get("handed", ())
        if event.object is not None:
            event.facts["scope_scalers"] = _scalers_beside((event.object,), live, steps)


def _scalers_beside(owners: tuple[int, ...], live: tuple[Thing, ...], steps: Steps) -> tuple[str, ...]:
    """What the scalers are called that belong to optimizers: those that step them.

    Any scaler may, where it is not in view who steps them.
    """
    stepping: set[int] = set().union(*(steps.get(key, ()) for key in owners))
    if not stepping and owners and all(key in steps for key in owners):
        return ()
    return tuple(dict.fromkeys(t.name or "the scaler" for t in live if not stepping or t.key in stepping))
