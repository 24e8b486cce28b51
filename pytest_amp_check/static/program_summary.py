"""Program attributes: facts about a program as a whole that no single event shows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping

from ..protocol import events as e
from ..protocol.event_graph import Graph, Program
from ..protocol.events import Event
from ..protocol.fast_namedtuple import NamedTuple
from ..protocol.frameworks import FRAMEWORKS
from ..protocol.guards import are_exclusive
from ..protocol.sites import Site
from ..protocol.torch_api import BFLOAT16_MAX
from ..protocol.tracked_objects import TrackedObject
from .interpreter.values.value import AUTOCAST_CALLEES, FORWARD
from .methods import mark_scaler_left_out

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    from .project.region_entry import AutocastEntries

    Kind = TypeVar("Kind", bound=Event)
#: Optimizer key -> keys of the scalers that step the optimizer.
ScalersByOptimizer = Mapping[int, set[int]]


class _EventsByKind:
    """The events of some graphs, by kind."""

    def __init__(self, graphs: Iterable[Graph]) -> None:
        self._events: defaultdict[type[Event], list[Event]] = defaultdict(list)
        for graph in graphs:
            for node in graph.nodes:
                if node.event is not None:
                    self._events[type(node.event)].append(node.event)

    def __getitem__(self, kind: type[Kind]) -> list[Kind]:
        return self._events[kind]  # type: ignore[return-value]


def summarize_program(program: Program, near_float16: Callable[[], bool], near_region: Callable[[], bool]) -> None:
    """Set the attributes of the program for the rules.

    ``near_float16`` returns True if float16 may be in use, ``near_region`` if a region in any dtype may be.
    """
    events = _EventsByKind(program.graphs)
    stepped = _stepped_optimizers(program, events)
    scaled = [event for event in (*events[e.Scale], *events[e.ScalerStep]) if event.subject is not None]
    scalers = [tracked_object for tracked_object in program.objects if tracked_object.role == "scaler"]
    live = _live_scalers(program, scalers, scaled, events)
    program.attributes.scalers.live_scalers = list(live)
    handed = {key for event in events[e.Handoff] for key in event.objects}
    for scaler in scalers:
        scaler.attributes.confined = scaler.attributes.constructed and scaler.key not in handed
    mark_scaler_left_out(program)
    program.attributes.scalers.without_update = _scalers_without_update(program, scalers)
    program.attributes.scalers.splits_scaling = any(map(_scales_for_other_code, program.graphs))
    program.attributes.scalers.loss_dtypes = set[str]().union(
        *(event.dtypes for event in events[e.Scale] if event.subject is not None)
    )
    steps = _scalers_by_optimizer(program, events)
    # ShardedGradScaler unscales float16 gradients.
    of_live = {tracked_object.key for tracked_object in live if not tracked_object.attributes.sharded}
    with_live_scaler = [key for key, by in steps.items() if not by.isdisjoint(of_live)]
    by_trainer = {
        t.key: t.attributes.training.trainer_float16
        for t in program.objects
        if t.attributes.training.trainer_float16 is not None
    }
    in_float16 = {key for key, is_float16 in by_trainer.items() if is_float16}
    owned_by_scaled = _owned_modules(program.objects[key] for key in with_live_scaler)
    owned_by_scaled |= _same_attributes(program, owned_by_scaled)
    scaled_adapters = _adapters_of(program, owned_by_scaled)
    program.attributes.training.scaled_modules = {
        *_with_submodules(program, owned_by_scaled),
        *in_float16,
        *scaled_adapters,
    }
    program.attributes.training.frozen_under = {
        t.key: under for t in program.objects if (under := t.attributes.training.frozen_under)
    }
    frozen = {t.key for t in program.objects if t.attributes.training.frozen or t.attributes.training.partly_frozen}
    # A class that wraps an optimizer and steps it may keep float32 copies of the parameters.
    bare = [t for t in stepped if not (t.attributes.wrapped or t.attributes.keeps_float32_copies)]
    known = [t for t in bare if t.attributes.constructed]
    trained = _with_submodules(program, (_owned_modules(bare) | _given_modules(known)) - frozen)
    # If the code chooses between a known optimizer and one that is not analyzed, the latter may keep float32 copies.
    unknown = [t for t in bare if not t.attributes.constructed]
    if events[e.ModuleCast]:
        received = [t for t in unknown if t.attributes.is_received and not t.attributes.owns]
        _note_sole_modules(program, received)
        _note_modules_of_classes(received, events)
    by_unknown = _with_submodules(program, _given_modules(unknown) - frozen)
    program.attributes.training.trained_by_unknown = set(by_unknown - frozen - by_trainer.keys())
    adapters = _adapters_of(program, _owned_modules(bare) | _given_modules(bare))
    trained |= _same_attributes(program, trained)
    of_trainer = _with_submodules(program, by_trainer.keys() - frozen)
    program.attributes.training.trained_modules = {*trained, *of_trainer, *by_unknown, *adapters} - frozen
    if events[e.ModuleCast]:
        _mark_casts(program)
    _mark_states(program, events, live)
    filled = [event for event in events[e.Fill] if event.eligible]
    if filled and not near_float16():
        for event in filled:
            is_beyond = BFLOAT16_MAX < abs(event.value) < float("inf")
            event.eligible = is_beyond and (event.dtype == "bfloat16" or near_region())
            event.dtype = "bfloat16"
    is_without_scaler = any(tracked_object.attributes.constructed for tracked_object in stepped) and not scalers
    for graph in program.graphs:
        steps_without_scaler = _steps_without_scaler(program, graph)
        _mark_without_scaler(
            graph,
            is_without_scaler=is_without_scaler or (bool(scalers) and steps_without_scaler),
            # Other code constructs the optimizer, and may choose the dtype of a region that has a choice.
            is_without_float16_scaler=steps_without_scaler,
        )


def _mark_without_scaler(graph: Graph, *, is_without_scaler: bool, is_without_float16_scaler: bool) -> None:
    for node in graph.nodes:
        if isinstance(node.event, e.Backward) and node.event.subject is None:
            is_alone = is_without_scaler or (is_without_float16_scaler and node.event.dtypes == {"float16"})
            # A test of a few steps compares values, and trains nothing that small gradients would have to reach.
            node.event.alone = is_alone and not node.event.site.is_in_test()


def _steps_without_scaler(program: Program, graph: Graph) -> bool:
    """Return True if a function steps an optimizer unrelated to every scaler of the program, and uses no scaler."""
    events = _EventsByKind([graph])
    stepped = {event.object for event in events[e.Step]}
    if not stepped:
        return False
    used = [x.subject for kind in (e.ScalerNew, e.Scale, e.Unscale, e.ScalerStep, e.Update) for x in events[kind]]
    escaped = [key for event in events[e.Handoff] for key in event.objects]
    others = {x.object for x in program.iter_events() if isinstance(x, (e.ScalerStep, e.Unscale))}
    engines = any(program.objects[key].attributes.engine for key in stepped if key is not None)
    return not (used or escaped or engines or stepped & others)


def mark_bare_scales(program: Program, entries: Callable[[], Iterable[AutocastEntries]]) -> None:
    """Mark losses scaled by live scalers that were computed outside every region that may be entered.

    ``entries`` yields the autocast entries, each time with more files.
    """
    live = {tracked_object.key for tracked_object in program.attributes.scalers.live_scalers}
    scaled = [event for event in program.iter_events() if isinstance(event, e.Scale) and event.subject in live]
    bare = [event for event in scaled if event.autocast == "out"]
    # Objects of a known class enter a region only if their class does. An unknown object may be of another class.
    constructed = {
        tracked_object.attributes.class_name for tracked_object in program.objects if tracked_object.role == "module"
    }
    for known in entries() if bare else ():
        names = known.names | AUTOCAST_CALLEES | (frozenset({FORWARD}) if known.modules - constructed else frozenset())
        bare = [event for event in bare if not _is_covered(event, known, names)]
        if not bare:
            break
    for event in scaled:
        if event.autocast == "out":
            event.bare = event in bare


def _is_covered(event: e.Scale, known: AutocastEntries, names: frozenset[str]) -> bool:
    """Return True if a scaled loss may come from a region.

    Either a call that computes the loss enters a region, or a region surrounds the loss.
    """
    if known.is_everywhere or event.callees & names:
        return True
    return any(_function_of_frame(frame) in known.called_in_regions for frame in event.site.list_frames())


def _function_of_frame(frame: Site) -> str:
    """Return the name under which a region contains a frame: the function, or the module with a trailing dot."""
    name = frame.function.rpartition(".")[2]
    return name if name != "<module>" else frame.path.rpartition("/")[2].partition(".")[0] + "."


def _live_scalers(
    program: Program, scalers: list[TrackedObject], scaled: list[Event], events: _EventsByKind
) -> tuple[TrackedObject, ...]:
    """Return the scalers that scale a loss, here or in other code, and whose state the program must save."""
    for scaler in scalers:
        enabled = scaler.attributes.enabled
        scaler.attributes.enabled = enabled if isinstance(enabled, bool) else e.UNKNOWN
    # Unanalyzed code that receives both a scaler and an optimizer trains with them. Only a scaler that scales has a
    # state to update or to restore.
    acting = (*scaled, *events[e.Update], *events[e.ScalerLoad])
    used = {event.subject for event in acting}.union(
        *(_keys_of_role(program, each, "scaler") for each in events[e.Handoff])
    )
    # Most frameworks save the state of their scaler themselves.
    own = [scaler for scaler in scalers if not _is_saved_by_framework(scaler)]
    return tuple(scaler for scaler in own if scaler.key in used and scaler.attributes.enabled is not False)


def _is_saved_by_framework(scaler: TrackedObject) -> bool:
    framework = scaler.attributes.framework
    return framework is not None and FRAMEWORKS[framework].steps.saves_scaler


def _scalers_without_update(program: Program, scalers: list[TrackedObject]) -> frozenset[int]:
    """Return the scalers with a step and no update in the whole program.

    Code that updates a scaler and does not step it completes the work of other code, and may reach the scaler by
    another path. Scalers of the same name are assumed to be the same.
    """
    stepped: set[int | None] = set()
    updated: set[int | None] = set()
    completed: set[str] = set()
    for graph in program.graphs:
        events = _EventsByKind([graph])
        steps = {event.subject for event in events[e.ScalerStep]}
        updates = {event.subject for event in events[e.Update]}
        stepped |= steps
        updated |= updates
        completed.update(_last_name(program.objects[key]) for key in updates - steps if key is not None)
    left = [scaler for scaler in scalers if scaler.key in stepped - updated and not scaler.attributes.framework]
    return frozenset(scaler.key for scaler in left if _last_name(scaler) not in completed)


def _scales_for_other_code(graph: Graph) -> bool:
    """Return True if code scales a loss that other code may run backward."""
    events = _EventsByKind([graph])
    return not {event.subject for event in events[e.Scale]} <= {event.subject for event in events[e.Backward]}


def _last_name(tracked_object: TrackedObject) -> str:
    """Return the last part of the user's name of a tracked object, the same wherever code knows the object."""
    return tracked_object.name.rpartition(".")[2]


def _stepped_optimizers(program: Program, events: _EventsByKind) -> list[TrackedObject]:
    """Return the optimizers that are stepped."""
    steps = (*events[e.ScalerStep], *events[e.Step])
    return [program.objects[event.object] for event in steps if event.object is not None]


def _owned_modules(optimizers: Iterable[TrackedObject]) -> frozenset[int]:
    """Return the modules whose parameters the optimizers own."""
    return frozenset().union(*(optimizer.attributes.owns or () for optimizer in optimizers))


def _given_modules(optimizers: Iterable[TrackedObject]) -> frozenset[int]:
    """Return the modules whose parameters the unanalyzed constructors of the optimizers received."""
    return frozenset().union(*(optimizer.attributes.given_modules for optimizer in optimizers))


def _note_sole_modules(program: Program, received: list[TrackedObject]) -> None:
    """Note the modules of optimizers that the code receives from a caller.

    A function that runs one module forward and backward, and steps one optimizer, trains this module by it.
    """
    of_sole_modules = program.attributes.training.backwards_of_sole_modules
    for graph in program.graphs if received else ():
        events = _EventsByKind([graph])
        stepped = {event.object for event in (*events[e.Step], *events[e.ScalerStep])}
        modules = {event.subject for event in events[e.Forward]}
        trained = {
            event.forward.subject if event.forward is not None and event.site.call_key in of_sole_modules else None
            for event in events[e.Backward]
        }
        known = frozenset(key for key in trained if key is not None)
        if len(modules) == 1 and known and trained == modules:
            for optimizer in received:
                if stepped == {optimizer.key}:
                    optimizer.attributes.given_modules = known


def _note_modules_of_classes(received: list[TrackedObject], events: _EventsByKind) -> None:
    """Note the modules of optimizers that a class receives, and steps in a method of its own.

    The methods of an engine do the parts of a training step one at a time, and the constructor casts its only module.
    """
    steps = [*events[e.Step], *events[e.ScalerStep]]
    for optimizer in received:
        classes = {_class_of_site(event.site) for event in steps if event.object == optimizer.key}
        owner = classes.pop() if len(classes) == 1 else None
        if owner is None:
            continue
        stepped = {event.object for event in steps if _class_of_site(event.site) == owner}
        modules = {event.subject for event in events[e.Forward] if _class_of_site(event.site) == owner}
        casts = {event.subject for event in events[e.ModuleCast] if _class_of_site(event.site) == owner}
        runs_backward = any(_class_of_site(event.site) == owner for event in events[e.Backward])
        if runs_backward and stepped == {optimizer.key} and len(casts) == 1 and modules <= casts:
            optimizer.attributes.given_modules |= frozenset(key for key in casts if key is not None)


def _class_of_site(site: Site) -> tuple[str, str] | None:
    """Return the file and the class of a method, None for another location."""
    name, dot, _ = site.function.rpartition(".")
    return (site.path, name) if dot else None


def _same_attributes(program: Program, modules: Iterable[int]) -> frozenset[int]:
    """Return the modules that methods make at the same place as some modules, called by another method.

    A method that trains finds in an attribute what another method assigns to it, without the callers of that method.
    """
    sites = [site for key in modules if (site := program.objects[key].site) is not None]
    places = {_place_of(site) for site in sites if site.caller is None and "." in site.function}
    if not places:
        return frozenset()
    called = ((each.key, each.site) for each in program.objects if each.role == "module")
    return frozenset(
        key for key, site in called if site is not None and site.caller is not None and _place_of(site) in places
    )


def _place_of(site: Site) -> tuple[str, int, int]:
    return site.path, site.line, site.column


def _adapters_of(program: Program, modules: Iterable[int]) -> frozenset[int]:
    """Return the adapters that were added to modules, which an optimizer of the module's trained parameters owns."""
    found = (program.objects[key].attributes.training.adapters for key in modules)
    return frozenset(key for key in found if key is not None)


def _with_submodules(program: Program, modules: Iterable[int]) -> frozenset[int]:
    """Return modules with their submodules, without submodules that only run without gradients."""
    found, todo = set(modules), list(modules)
    while todo:
        parts = program.objects[todo.pop()].attributes.parts or ()
        trained = (key for key in parts if program.objects[key].attributes.training.runs_with_gradients is not False)
        todo += [key for key in trained if key not in found]
        found.update(todo)
    return frozenset(found)


def _keys_of_role(program: Program, event: e.Handoff, role: str) -> list[int]:
    """Return the keys of objects of a role that unanalyzed training code receives."""
    return [key for key in event.trains if program.objects[key].role == role]


def _scalers_by_optimizer(program: Program, events: _EventsByKind) -> ScalersByOptimizer:
    steps: defaultdict[int, set[int]] = defaultdict(set)
    for event in (*events[e.ScalerStep], *events[e.Step]):
        if event.object is not None:
            steps[program.objects[event.object].key].update([event.subject] if event.subject is not None else [])
    for event in events[e.Handoff]:
        for optimizer in _keys_of_role(program, event, "optimizer"):
            steps[optimizer].update(_keys_of_role(program, event, "scaler"))
    return dict(steps)


def _mark_casts(program: Program) -> None:
    """Mark casts of modules that are trained after the cast, by the same code or by methods of the object."""
    for graph in program.graphs:
        events = _EventsByKind([graph])
        stepped = _stepped_optimizers(program, events)
        made = {event.subject: event for event in events[e.OptimizerNew]}
        for index, node in enumerate(graph.nodes):
            event = node.event
            if not isinstance(event, e.ModuleCast):
                continue
            trained = event.created or event.how == "trainer" or event.site.function.endswith("__init__")
            if not trained and event.subject is not None:
                optimizers = (optimizer for optimizer in stepped if not _is_exclusive(made.get(optimizer.key), event))
                of_module = {
                    optimizer.key
                    for optimizer in optimizers
                    if event.subject
                    in _with_submodules(program, _owned_modules([optimizer]) | _given_modules([optimizer]))
                }
                wholes = _wholes_of(program, event.subject) if of_module else frozenset[int]()
                ends = _find_steps_and_returns(graph, index, of_module, wholes) if of_module else None
                trained = ends.is_stepped if ends is not None else not stepped and _trains_later(program, graph, index)
                event.returns = (
                    ends is not None
                    and not (trained or event.site.is_in_test())
                    and any(
                        _find_steps_and_returns(graph, back, of_module, wholes, in_training=True).is_stepped
                        for back in ends.returns
                    )
                    and _is_stepped_before(graph, index, of_module)
                )
            # A setting decides, and other settings may decide that nothing is trained.
            event.guessed = event.guessed or bool(event.guards)
            scaled = events[e.ScalerStep]
            reached = [step for step in scaled if not _excludes(graph, event, step)]
            of_cast = frozenset[int]() if event.subject is None else _wholes_of(program, event.subject)
            event.with_scaler = not scaled or (bool(reached) and _reaches_low(graph, index, reached, of_cast))
            # A test of a few steps casts on purpose, and has no small updates to lose.
            event.trained = trained and not event.site.is_in_test()


def _trains_later(program: Program, graph: Graph, index: int) -> bool:
    """Return True if a method casts a module and then constructs the optimizer that another method steps."""
    cast = graph.nodes[index].event
    made = [event for node in graph.nodes[index:] if isinstance(event := node.event, e.OptimizerNew)]
    optimizers = [program.objects[event.subject] for event in made if event.subject is not None and not event.found]
    trained = _with_submodules(program, _owned_modules(optimizers) | _given_modules(optimizers))
    return cast is not None and cast.subject in trained


def _excludes(graph: Graph, event: Event, other: Event) -> bool:
    """Return True if the guards of an event exclude a guard of another event."""
    known = dict(event.guards)
    todo = list(event.guards)
    while todo:
        key, truth = todo.pop()
        for when, implied, its_truth in graph.predicates[key].implications:
            if when is truth and implied not in known:
                known[implied] = its_truth
                todo.append((implied, its_truth))
    return any(known.get(key, truth) is not truth for key, truth in other.guards)


#: Maximum number of nodes, each with answers, in a search for a step after a cast.
MAX_SEARCHED = 4_000


def _reaches_low(graph: Graph, cast: int, steps: list[e.ScalerStep], wholes: frozenset[int]) -> bool:
    """Return True if a path leads from a cast to one of the steps, without a cast of the ``wholes`` back to float32.

    A path gives each predicate that guards a step one answer. A search that takes too long counts as a path.
    """
    start = graph.nodes[cast].event
    deciding = {key for step in steps for key, _ in step.guards}
    assert start is not None
    todo = [(cast, frozenset((key, truth) for key, truth in start.guards if key in deciding))]
    seen = set(todo)
    while todo and len(seen) < MAX_SEARCHED:
        node, answers = todo.pop()
        for target, key, truth in graph.nodes[node].edges:
            if (key, not truth) in answers:
                continue
            known = answers | {(key, truth)} if key in deciding else answers
            forgotten = graph.nodes[target].forgotten_predicates
            if forgotten and known:
                known = frozenset((each, its_truth) for each, its_truth in known if not forgotten >> each & 1)
            after = graph.nodes[target].event
            if after in steps:
                return True
            is_cast_back = isinstance(after, e.ModuleCast) and after.dtype == "float32"
            if (is_cast_back and after is not None and after.subject in wholes) or (target, known) in seen:
                continue
            seen.add((target, known))
            todo.append((target, known))
    return bool(todo) or not _has_steps_after(graph, cast, steps)


def _has_steps_after(graph: Graph, start: int, steps: list[e.ScalerStep]) -> bool:
    """Return True if the graph leads from a node to one of the steps at all, as it does not for a cast of a method."""
    seen, todo = {start}, [start]
    while todo:
        for target, _, _ in graph.nodes[todo.pop()].edges:
            if graph.nodes[target].event in steps:
                return True
            if target not in seen:
                seen.add(target)
                todo.append(target)
    return False


class _AfterCast(NamedTuple):
    """What follows a cast: a step of the module's optimizers before a cast back, and the nodes that cast back."""

    is_stepped: bool
    returns: list[int]


def _is_stepped_before(graph: Graph, cast: int, optimizers: set[int]) -> bool:
    """Return True if an optimizer may have been stepped before a cast."""
    steps = [
        index
        for index, node in enumerate(graph.nodes)
        if isinstance(node.event, (e.Step, e.ScalerStep)) and node.event.object in optimizers
    ]
    seen, todo = set(steps), steps
    while todo:
        for target, _, _ in graph.nodes[todo.pop()].edges:
            if target == cast:
                return True
            if target not in seen and not isinstance(graph.nodes[target].event, e.Again):
                seen.add(target)
                todo.append(target)
    return False


def _wholes_of(program: Program, module: int) -> frozenset[int]:
    """Return a module with all modules that hold it: a cast of one of them casts the module."""
    holders = (each.key for each in program.objects if module in program.with_submodules((each.key,)))
    return frozenset((module, *holders))


def _find_steps_and_returns(
    graph: Graph, cast: int, optimizers: set[int], wholes: frozenset[int], *, in_training: bool = False
) -> _AfterCast:
    """Follow the code after a cast of a module up to a step of an optimizer, or up to casts back to float32.

    ``wholes`` are the module and those that hold it. With ``in_training``, new weights and a new optimizer end the way,
    too: another training begins.
    """
    event = graph.nodes[cast].event
    assert event is not None
    asked_anew = _predicates_forgotten_after(graph, cast)
    # A predicate that no later loop forgets keeps its truth for the rest of the call.
    answers = {key: truth for key, truth in event.guards if not asked_anew >> key & 1}
    seen, todo = {cast}, [cast]
    returns: list[int] = []
    while todo:
        for target, key, truth in graph.nodes[todo.pop()].edges:
            if target in seen or answers.get(key, truth) != truth:
                continue
            seen.add(target)
            after = graph.nodes[target].event
            if after is not None:
                if isinstance(after, (e.Step, e.ScalerStep)) and after.object in optimizers:
                    return _AfterCast(True, returns)
                if isinstance(after, e.ModuleCast) and after.dtype == "float32" and after.subject in wholes:
                    returns.append(target)
                    continue
                if in_training and (
                    (isinstance(after, e.ParamWrite) and after.subject == event.subject)
                    or (isinstance(after, e.OptimizerNew) and after.subject in optimizers)
                ):
                    continue
                if isinstance(after, e.Again):
                    continue  # Another call creates another module.
            todo.append(target)
    return _AfterCast(False, returns)


def _predicates_forgotten_after(graph: Graph, start: int) -> int:
    """Return the predicates (as a bit set) that code after a node may evaluate again in the same call."""
    forgotten = 0
    seen, todo = {start}, [start]
    while todo:
        for target, _, _ in graph.nodes[todo.pop()].edges:
            if target not in seen and not isinstance(graph.nodes[target].event, e.Again):
                seen.add(target)
                todo.append(target)
                forgotten |= graph.nodes[target].forgotten_predicates
    return forgotten


def _is_exclusive(made: Event | None, other: Event) -> bool:
    """Return True if an optimizer is constructed only on paths without the other event, because of one predicate."""
    return made is not None and are_exclusive(made, other)


def _mark_states(program: Program, events: _EventsByKind, live: tuple[TrackedObject, ...]) -> None:
    """Mark saves with the scalers that belong to them, and loads with entries that this program does not save."""
    steps = _scalers_by_optimizer(program, events)
    engine = _find_engine_with_scaler(program, events)
    for save in events[e.Save]:
        scalers = _scalers_for(save.owners or (), live, steps)
        save.scope_scalers = _names_of(scalers) or _apex_scalers_for(save, program, events)
        save.engine = None if save.scope_scalers or save.is_beside_engine_state else engine
        save.open = save.open or (save.has_unknown_parts and not _keep_states(scalers, events))
    # Saves with the scaler's state beside the optimizer's state.
    full = [save for save in events[e.Save] if save.scaler_entries and save.optimizer_entries]
    for load in events[e.ScalerLoad]:
        known = any(load.entry in save.scaler_entries for save in full)
        load.of_others = bool(full) and load.entry is not None and not known
    for restored in events[e.OptimizerLoad]:
        saved = any(restored.entry in save.optimizer_entries for save in full)
        restored.holds_scaler = saved and restored.source not in program.attributes.handed
        if restored.object is not None:
            restored.scope_scalers = _names_of(_scalers_for((restored.object,), live, steps))


def _find_engine_with_scaler(program: Program, events: _EventsByKind) -> int | None:
    """Return the key of an object of a framework that scales losses by a scaler in one of its attributes, or None."""
    scaling = {event.subject for event in (*events[e.ScalerStep], *events[e.Backward])}
    for tracked_object in program.objects:
        framework = FRAMEWORKS.get(tracked_object.attributes.framework or "")
        attribute = "" if framework is None else framework.engine.scaler_attribute
        if (
            attribute.isidentifier()
            and tracked_object.key in scaling
            and tracked_object.attributes.enabled is not False
        ):
            return tracked_object.key
    return None


def _apex_scalers_for(save: e.Save, program: Program, events: _EventsByKind) -> tuple[str, ...]:
    """Return the name of apex, if apex scales losses of a saved optimizer by a scale that changes."""
    if program.attributes.scalers.has_fixed_apex_scale:
        return ()
    saved = frozenset(save.owners or ())
    used = (x for x in events[e.Restore] if x.owners is None or not saved or not saved.isdisjoint(x.owners))
    return tuple(dict.fromkeys(str(event.names["scaler"]) for event in used))


def _scalers_for(
    owners: Collection[int], live: tuple[TrackedObject, ...], steps: ScalersByOptimizer
) -> list[TrackedObject]:
    """Return the scalers that step the given optimizers.

    Every live scaler counts if no step of these optimizers is visible.
    """
    stepping: set[int] = set().union(*(steps.get(key, ()) for key in owners))
    if not stepping and owners and all(key in steps for key in owners):
        return []
    return [t for t in live if not stepping or t.key in stepping]


def _names_of(scalers: Iterable[TrackedObject]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(t.name or "the scaler" for t in scalers))


def _keep_states(scalers: Iterable[TrackedObject], events: _EventsByKind) -> bool:
    """Return True if no code of the program takes the state of these scalers, or receives them unanalyzed.

    Then unknown parts of a checkpoint are not these states.
    """
    taken = {event.subject for event in events[e.ScalerState]}
    given = {key for event in events[e.Handoff] for key in event.objects}
    known = list(scalers)
    return bool(known) and all(
        t.attributes.is_local and not t.attributes.held and t.key not in taken | given for t in known
    )
