"""Summary of the events of one graph: optimizers, accumulation windows and flags."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property, reduce
from operator import or_

from . import events as e
from .checker import Checker
from .event_graph import Graph, Program
from .events import Event, EventKind
from .source_text import names_optimizer


class GraphSummary(Checker):
    """The events of one graph, summarized before paths are explored."""

    def __init__(self, graph: Graph, program: Program) -> None:
        super().__init__(program, graph.predicates)
        self.graph = graph
        self._summarize_events()

    def event_at(self, index: int) -> Event | None:
        return self.graph.nodes[index].event

    def may_step_uncleared(self, index: int, i: int) -> bool:
        return bool(self._uncleared_steps[index] >> i & 1)

    def find_unscale_guards(self, i: int) -> Iterator[tuple[int, bool]]:
        for node in self.graph.nodes:
            if isinstance(node.event, e.Unscale) and node.event.object == self.optimizer_keys[i]:
                yield from node.event.guards

    def find_already_accumulated(self, event: e.Backward) -> tuple[int, ...]:
        return ()  # the graph does not show the number of the iteration

    def _summarize_events(self) -> None:
        events = [node.event for node in self.graph.nodes if node.event is not None]
        established = {
            x.subject if isinstance(x, e.OptimizerNew) else x.object for x in events if x.traits.establishes_optimizer
        }
        established.update(x.object for x in events if isinstance(x, e.Step) and self._is_called_optimizer(x.object))
        for event in events:
            if isinstance(event, e.ZeroGrad):
                established.update(event.owners or ())
        self.unused_optimizers = _find_unused_optimizers(events)
        established -= self.unused_optimizers
        self.optimizer_keys: list[int] = sorted(key for key in established if key is not None)
        self.optimizer_index = {key: i for i, key in enumerate(self.optimizer_keys)}
        self.scaler_keys = sorted({x.subject for x in events if isinstance(x, e.ScalerNew) and x.subject is not None})
        self.scaler_bits = {key: 1 << i for i, key in enumerate(self.scaler_keys)}
        for key, tracked_object in enumerate(self.program.objects):
            members = tracked_object.attributes.members if tracked_object.role == "scaler" else ()
            if members and all(member in self.scaler_bits for member in members):
                self.scaler_bits[key] = reduce(or_, [self.scaler_bits[member] for member in members])
        self.updated_scalers = {x.subject for x in events if isinstance(x, e.Update)}
        changing = self.varying_predicates = self._find_varying_predicates()
        for event in events:
            if isinstance(event, e.ZeroGrad):
                unchanged = frozenset((key, truth) for key, truth in event.guards if not changing >> key & 1)
                for key in self.owner_keys(event):
                    self.clearing_sites.setdefault(key, []).append((event.loops or (), unchanged))
        self.zeroed_optimizers = set(self.clearing_sites)
        self.stepped_optimizers = {
            x.object for x in events if isinstance(x, (e.ScalerStep, e.Step)) and x.object is not None
        }
        self.assigned_optimizers = {key for x in events if isinstance(x, e.Handoff) for key in x.given}
        for event in events:
            if isinstance(event, e.ScalerStep) and event.object is not None:
                self.step_guards.setdefault(event.object, []).append(frozenset(event.guards))
            if isinstance(event, (e.ScalerStep, e.Unscale)) and event.object in self.optimizer_index:
                self.served_optimizers.setdefault(event.subject, set()).add(self.optimizer_index[event.object])
            if isinstance(event, e.Handoff):
                objects = event.objects
                self.escaped_objects.update(objects)
                for matter in event.about:
                    self.escape_effects[matter].update(objects)
        self.sole_optimizers = self._find_sole_optimizers(events)
        self.reached_optimizers = {} if self.sole_optimizers else self._find_reached_optimizers(events)
        for event in events:
            if isinstance(event, e.Restore):
                for key in self.owner_keys(event):
                    self.restore_guards.setdefault(key, []).append(frozenset(event.guards))
        self.clears_unknown_grads = any(isinstance(x, e.ZeroGrad) and x.owners == () for x in events)
        self.window_predicates = self._find_windows(events)
        asked = {key for x in events if isinstance(x, e.Backward) for key, _ in x.guards}
        self.flag_predicates = self._find_flag_predicates(events, asked)
        #: Predicates beside which another predicate prevents a step in the first iteration of a loop.
        self.delayed_step_predicates = {
            key
            for x in events
            if isinstance(x, (e.ScalerStep, e.Step))
            and any(self.graph.predicates[k].window_truth.eventually_excluded is truth for k, truth in x.guards)
            for key, _ in x.guards
        }
        self.event_kinds: set[EventKind] = set(map(type, events))
        asked_of = {key for node in self.graph.nodes for _, key, _ in node.edges if key >= 0}
        self.has_scale_branch = any(self.graph.predicates[key].compares_scales for key in asked_of)
        #: True if a loss is scaled unevenly on any path.
        self.has_uneven_scale = any(map(_is_scaled_unevenly, events))

    def _is_called_optimizer(self, key: int | None) -> bool:
        """Return True if an object that is stepped has the name of an optimizer, not that of a scheduler."""
        return key is not None and names_optimizer(self.program.objects[key].name)

    def _find_sole_optimizers(self, events: list[Event]) -> frozenset[int]:
        """Return the only stepped optimizer, or the optimizers that constant predicates make mutually exclusive."""
        steps = self._find_steps(events)
        return frozenset(steps if self._are_alternatives(list(steps.values())) else ())

    def _find_steps(self, events: Iterable[Event]) -> dict[int, list[Event]]:
        """Return the steps of each optimizer."""
        steps: dict[int, list[Event]] = {}
        for event in events:
            if isinstance(event, (e.ScalerStep, e.Step)) and event.object in self.optimizer_index:
                steps.setdefault(self.optimizer_index[event.object], []).append(event)
        return steps

    def _are_alternatives(self, steps: Sequence[Sequence[Event]]) -> bool:
        """Return True if constant predicates let a program step only one of several optimizers."""
        guards = [[self._find_constant_guards(event) for event in each] for each in steps]
        return all(
            _are_exclusive(here, there)
            for mine, theirs in itertools.combinations(guards, 2)
            for here in mine
            for there in theirs
        )

    def _find_constant_guards(self, event: Event) -> set[tuple[int, bool]]:
        return {(key, truth) for key, truth in event.guards if not self.varying_predicates >> key & 1}

    def _find_reached_optimizers(self, events: list[Event]) -> dict[int, frozenset[int]]:
        """Return the optimizers that a backward without known target reaches.

        A backward serves a step. If the gradients of all other optimizers are cleared before their steps, the backward
        serves the remaining optimizer, or each of several alternatives. If no other backward can, it serves all
        optimizers that step in its loops under the same conditions and by the same scaler: each other backward is in
        other loops, or in a branch that excludes this backward, such as the one without a scaler.
        """
        indices = {id(node.event): index for index, node in enumerate(self.graph.nodes)}
        backwards = [event for event in events if isinstance(event, e.Backward)]
        steps = self._find_steps(events)
        # An optimizer that is unscaled and never stepped may be another name of a stepped one.
        keys = {event.object for event in events if isinstance(event, e.Unscale)}
        unscaled = {index for key, index in self.optimizer_index.items() if key in keys}
        found: dict[int, frozenset[int]] = {}
        unknown = [event for event in backwards if event.feeds is None]
        if len(steps) < 2 or not unscaled <= steps.keys() or not unknown:
            return found
        for event in unknown:
            served = [i for i in steps if self.may_step_uncleared(indices[id(event)], i)]
            if (
                served
                and not any(map(self.is_fed_elsewhere, served))
                and self._are_alternatives([steps[i] for i in served])
            ):
                found[id(event)] = frozenset(served)
                if event.subject is None or self.served_optimizers.get(event.subject) != set(served):
                    self.inferred_backwards.add(id(event))
                continue
            rivals = [each for each in backwards if each is not event and self._may_both_run(each, event)]
            inside = [i for i, each in steps.items() if any(_share_loop(step, event) for step in each)]
            ways = {frozenset(map(self._describe_step, steps[i])) for i in inside}
            if len(ways) == 1 and not any(map(self.is_fed_elsewhere, inside)) and not rivals:
                found[id(event)] = frozenset(inside)
        return found

    @cached_property
    def _uncleared_steps(self) -> list[int]:
        """Optimizers (as a bit set) that may step after each node before their gradients are cleared.

        One search for all optimizers: timm constructs one of dozens, which took a fifth of its check one by one.
        """
        nodes = self.graph.nodes
        stepped, kept, before = [0] * len(nodes), [-1] * len(nodes), [list[int]() for _ in nodes]
        for index, node in enumerate(nodes):
            event = node.event
            if isinstance(event, (e.ScalerStep, e.Step)) and event.object in self.optimizer_index:
                stepped[index] = 1 << self.optimizer_index[event.object]
            elif isinstance(event, e.ZeroGrad):
                kept[index] = ~sum(1 << self.optimizer_index[key] for key in self.owner_keys(event))
            for target, _, _ in node.edges:
                before[target].append(index)
        found = [0] * len(nodes)
        work = [index for index, bit in enumerate(stepped) if bit]
        while work:
            index = work.pop()
            ahead = stepped[index] | (found[index] & kept[index])
            for earlier in before[index]:
                if ahead & ~found[earlier]:
                    found[earlier] |= ahead
                    work.append(earlier)
        return found

    def _describe_step(self, event: Event) -> tuple[object, ...]:
        """Return what two optimizers of one loss share: the scaler, and the changing predicates around the step."""
        varying = frozenset((key, truth) for key, truth in event.guards if self.varying_predicates >> key & 1)
        return type(event), event.subject if isinstance(event, e.ScalerStep) else None, varying

    def _may_both_run(self, one: e.Backward, other: e.Backward) -> bool:
        """Return True if two backwards may run in the same iteration of a loop."""
        is_exclusive = _are_exclusive(self._find_constant_guards(one), self._find_constant_guards(other))
        return _share_loop(one, other) and not is_exclusive

    def _find_varying_predicates(self) -> int:
        """Return the predicates (as a bit set) that may have another truth when evaluated again."""
        changing = 0
        for node in self.graph.nodes:
            changing |= node.forgotten_predicates
        return changing

    def may_violate(self) -> bool:
        """Return True if the events of the graph can violate the automaton. Most graphs need no exploration."""
        if self.has_uneven_scale or any(kind.traits.may_violate for kind in self.event_kinds):
            return True
        return e.Backward in self.event_kinds and (bool(self.window_predicates) or e.Step in self.event_kinds)

    def _find_windows(self, events: list[Event]) -> dict[int, bool]:
        """Return the predicates that decide the end of an accumulation window, with the truth at the end."""
        everywhere: set[tuple[int, bool]] | None = None
        for event in events:
            if isinstance(event, e.Backward):
                guards = set(event.guards)
                everywhere = guards if everywhere is None else everywhere & guards
        if everywhere is None:
            return {}
        windows: dict[int, bool] = {}
        for event in events:
            if isinstance(event, (e.ScalerStep, e.Step)):
                for key, truth in event.guards:
                    test = self.graph.predicates[key]
                    # A step that runs only while a counter is small does not end a window.
                    counts = test.is_window_predicate and test.window_truth.eventual_truth in (None, truth)
                    if counts and (key, truth) not in everywhere:
                        # A step under the opposite truth handles the trailing microbatches of the loop.
                        windows.setdefault(key, truth)
                        if event.object in self.optimizer_index:
                            self.window_optimizers.setdefault(key, set()).add(self.optimizer_index[event.object])
        return windows

    def _find_flag_predicates(self, events: list[Event], asked: set[int]) -> dict[int, bool]:
        """Return argument flags that guard steps but no backward, with the truth for the step.

        If each optimizer has separate flags, the flags freeze optimizers and do not describe a window.
        """
        found: dict[int | None, set[tuple[int, bool]]] = {}
        for event in events:
            if isinstance(event, (e.ScalerStep, e.Step)):
                found.setdefault(event.object, set()).update(
                    (key, truth)
                    for key, truth in event.guards
                    if self.graph.predicates[key].is_flag and key not in asked and key not in self.window_predicates
                )
        each = list(found.values())
        return dict(set.intersection(*each) if each and all(each) else set().union(*each))


def _find_unused_optimizers(events: Sequence[Event]) -> set[int | None]:
    """Return the optimizers that events only construct, load or save, if another optimizer is stepped.

    Factories construct many optimizers of the same parameters, and a script steps one of these optimizers. With every
    optimizer in the state, a script soon exceeds the budget.
    """
    if not any(isinstance(event, (e.ScalerStep, e.Step)) for event in events):
        return set()
    constructed: set[int | None] = set()
    used: set[int | None] = set()
    owners: list[Collection[int]] = []
    for event in events:
        if isinstance(event, e.OptimizerNew):
            constructed.add(event.subject)
        elif isinstance(event, e.Handoff):
            used.update(event.given)
        elif not isinstance(event, (e.OptimizerLoad, e.Save)):
            used |= {event.subject, event.object}
            owners.append((event.owners if isinstance(event, e.OwnedEvent) else None) or ())
    for each in owners:
        # Gradients shared with a used optimizer belong to the used optimizer.
        if used.isdisjoint(each):
            used.update(each)
    return constructed - used


def _is_scaled_unevenly(event: Event) -> bool:
    return isinstance(event, e.ScaledLoss) and (
        event.twice or (isinstance(event, e.Backward) and event.scaling.is_uneven)
    )


def _share_loop(one: Event, other: Event) -> bool:
    """Return True if two events are in a common loop, or one of them is in no loop. Negative keys are calls."""
    loops, others = ({key for key in each.loops or () if key > 0} for each in (one, other))
    return not loops or not others or not loops.isdisjoint(others)


def _are_exclusive(some: set[tuple[int, bool]], others: set[tuple[int, bool]]) -> bool:
    """Return True if two sets of guards contain opposite truths of a predicate."""
    return any((key, not truth) in others for key, truth in some)
