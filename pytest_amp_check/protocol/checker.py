"""State of a path through a program, and the search for the cause of a violation.

:mod:`.graph_checker` moves sets of states over the graph of a source. :mod:`.run_checker` moves a single state along
the events of a run. :mod:`.effects` defines the effects of events on a state.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator
from itertools import islice

from . import automaton as a
from . import events as e
from .event_graph import Predicate, Program
from .events import Event, EventKind, OwnedEvent
from .fast_namedtuple import NamedTuple
from .rules import LABELS

#: Maximum number of events in a trace.
SHOWN = 6


class AutocastRegion(NamedTuple):
    """An open autocast region.

    ``entry_node`` is the node that entered the region. ``is_reported`` is True if a backward in the region was
    reported. ``cache_filled`` is True if a module has run forward in the region, which fills the weight cache.
    """

    instance: int
    enabled: bool
    device: str
    dtype: str
    cache_enabled: bool
    entry_node: int
    is_reported: bool = False
    cache_filled: bool = False


class PathState(NamedTuple):
    """State of a path: assumed predicates (bit sets), open regions, optimizers, scalers, a stale weight cache."""

    known_predicates: int
    true_predicates: int
    regions: tuple[AutocastRegion, ...]
    optimizer_states: tuple[a.OptimizerState, ...]
    used_scalers: int  # bit set of scalers that have stepped
    recreated_scalers: int  # bit set of scalers constructed again after they had stepped
    stale_write: int  # node that wrote parameters inside the open regions, -1 if none


class Violation(NamedTuple):
    """A violation on a path: the label, the cause node, and the node that detects the violation."""

    label: str
    cause: int
    detected_at: int


#: A point on a path: the number of the event, and the values that distinguish the state before the event.
Here = tuple[int, ...]


class EventContext:
    """An event on a path, with the state before the event, which the handlers update.

    ``optimizer_states`` are the gradient states, one for each optimizer. ``subject_key`` is the key of the event's
    subject, or -1.
    """

    __slots__ = ("event", "index", "optimizer_states", "point", "state", "subject_key")

    def __init__(self, index: int, event: Event, state: PathState, here: Here) -> None:
        self.index = index
        self.event = event
        self.state = state
        self.point = here
        self.optimizer_states = list(state.optimizer_states)
        self.subject_key = -1 if event.subject is None else event.subject

    def next_state(self) -> PathState:
        return self.state._replace(optimizer_states=tuple(self.optimizer_states))


class Checker:
    """Data of a program during a check, event by event."""

    #: True if each tracked object is a single object, as in a run. Two objects in source may be two names of one
    #: object.
    has_exact_identity = False

    def __init__(self, program: Program, predicates: list[Predicate]) -> None:
        self.program = program
        self.predicates = predicates
        #: Keys of the optimizers, in the order of the optimizer states.
        self.optimizer_keys: list[int] = []
        self.optimizer_index: dict[int, int] = {}
        self.scaler_bits: dict[int, int] = {}
        self.updated_scalers: set[int | None] = set()
        self.zeroed_optimizers: set[int] = set()
        #: Locations in source that clear gradients, by optimizer: the enclosing loops, and the guards with constant
        #: predicates.
        self.clearing_sites: dict[int, list[tuple[tuple[int, ...], frozenset[tuple[int, bool]]]]] = {}
        #: Objects that escaped to unanalyzed code, and the possible effects of this code: effect -> objects.
        self.escaped_objects: set[int] = set()
        self.escape_effects: dict[str, set[int]] = {effect: set() for effect in e.ALL_EFFECTS}
        #: Optimizers whose gradients a framework block unscales at exit, with the guards.
        self.restore_guards: dict[int, list[frozenset[tuple[int, bool]]]] = {}
        #: Guards of each scaler step of an optimizer.
        self.step_guards: dict[int, list[frozenset[tuple[int, bool]]]] = {}
        #: Predicates (as a bit set) that may change between evaluations, for example in each iteration of a loop.
        self.varying_predicates = 0
        #: True if gradients of unknown optimizers are cleared.
        self.clears_unknown_grads = False
        #: Optimizers (by number) that every backward without known target reaches: no path steps another optimizer.
        self.sole_optimizers: frozenset[int] = frozenset()
        #: Optimizers (by number) that such a backward reaches because no other backward can: by the id of the backward.
        self.reached_optimizers: dict[int, frozenset[int]] = {}
        #: Backwards (by ``id``) that reach an optimizer only if a later step uses their gradients.
        self.inferred_backwards: set[int] = set()
        #: Scaler -> optimizers (by number) that the scaler unscales or steps at any location.
        self.served_optimizers: dict[int | None, set[int]] = {}
        #: Optimizers with a known step.
        self.stepped_optimizers: set[int] = set()
        #: Optimizers whose gradients are assigned from another object that stored the gradients.
        self.assigned_optimizers: set[int] = set()
        #: True after a violation, including violations with an exemption.
        self.saw_violation = False
        #: True if a branch depends on the loss scale, as in code that detects skipped steps.
        self.has_scale_branch = False
        #: Predicates that decide the end of an accumulation window, with the truth at the end.
        self.window_predicates: dict[int, bool] = {}
        #: Optimizers (by number) that are stepped under each window predicate.
        self.window_optimizers: dict[int, set[int]] = {}
        #: Argument flags that may decide the end of a window: no caller is known.
        self.flag_predicates: dict[int, bool] = {}
        #: Window predicates under which the gradients of several backwards are stepped.
        self.accumulating_windows: set[int] = set()

    @abstractmethod
    def event_at(self, index: int) -> Event | None: ...

    @abstractmethod
    def may_step_uncleared(self, index: int, i: int) -> bool:
        """Return True if optimizer ``i`` may be stepped after a node, without a clear in between."""

    @abstractmethod
    def walk_back(self, here: Here) -> Iterator[int]:
        """Yield the numbers of the earlier events and nodes without event on the path, latest first."""

    @abstractmethod
    def report_violation(self, label: str, cause: int, detected_at: int, here: Here, *, sure: bool = True) -> None:
        """Record a violation.

        With ``sure=False``, an undeclared effect of unanalyzed code may prevent the violation.
        """

    def note_idle_step(self, index: int) -> None:
        """Record a step at node ``index`` without an earlier backward, which does not count for the violation."""

    @abstractmethod
    def find_already_accumulated(self, event: e.Backward) -> Iterable[int]:
        """Return the optimizers (by number) that the same backward reached before, without a step since."""

    def find_unscale_guards(self, i: int) -> Iterable[tuple[int, bool]]:
        """Return the guards of the unscale of optimizer ``i``, empty if unknown."""
        return ()

    def owner_keys(self, event: OwnedEvent) -> tuple[int, ...]:
        """Return the keys of the optimizers whose gradients an event concerns, all keys if unknown."""
        owners = event.owners
        if owners is None:
            return tuple(self.optimizer_keys)
        return tuple(key for key in owners if key in self.optimizer_index)

    def is_fed_elsewhere(self, i: int) -> bool:
        """Return True if unanalyzed code that may run a backward of its own has received an optimizer."""
        return self.optimizer_keys[i] in self.escape_effects[e.FEEDS]

    def open_windows(self, state: PathState) -> frozenset[int]:
        """Return the optimizers (by number) whose accumulation window is known to stay open in this iteration."""
        optimizers: set[int] = set()
        for key, boundary in self.window_predicates.items():
            bit = 1 << key
            if state.known_predicates & bit and bool(state.true_predicates & bit) != boundary:
                optimizers |= self.window_optimizers.get(key, set())
        return frozenset(optimizers)

    def is_window_end(self, event: Event, state: PathState) -> bool:
        """Return True if this iteration is known to end the accumulation window."""
        known = {
            key: bool(state.true_predicates & (1 << key))
            for key in self.window_predicates
            if state.known_predicates & (1 << key)
        }
        known.update((key, truth) for key, truth in event.guards if key in self.window_predicates)
        return bool(known) and all(truth == self.window_predicates[key] for key, truth in known.items())

    def is_never_updated(self, opt: a.OptimizerState) -> bool:
        """Return True if a scaler stepped an optimizer and no known owner of the scaler updates the scale."""
        known = (
            not self.program.attributes.fragment and opt.scaler_key in self.program.attributes.scalers.without_update
        )
        left = self.is_local_scaler(opt.scaler_key) or known
        nobody = opt.scaler_key not in self.updated_scalers and opt.scaler_key not in self.escape_effects[e.STEPS]
        return opt.stage == a.STAGE_STEPPED and left and nobody

    def is_local_scaler(self, scaler: int | None) -> bool:
        """Return True if the checked code creates a scaler, and no other code has the scaler."""
        return scaler in self.scaler_bits and not self.program.objects[scaler].attributes.shared

    def resolve_cause(self, label: str, index: int, i: int, here: Here, *, sure: bool = True) -> None:
        """Find the cause of a violation that was detected at node ``index``, and report the violation."""
        self.saw_violation = True
        kind = LABELS[label][1]
        if kind.cause.every:
            causes = self.find_all_since_use(here, kind.cause.kinds, i)
        else:
            causes = [
                self.find_last_index(here, kind.cause.kinds, i, unscaled=kind.cause.unscaled_only)
                if kind.cause.kinds
                else index
            ]
        for cause in causes:
            event = self.event_at(cause)
            final_label = next((other for applies, other in kind.cause.label_overrides if applies(event)), label)
            self.report_violation(
                final_label, cause, index, here, sure=sure and not self.has_escaped_since(here, cause, i)
            )

    def has_escaped_since(self, here: Here, cause: int, i: int) -> bool:
        """Return True if unanalyzed code received optimizer ``i``, or a scaler, since the cause."""
        if not self.escaped_objects:
            return False
        key = self.optimizer_keys[i] if self.optimizer_keys else None
        for index in self.walk_back(here):
            event = self.event_at(index)
            if isinstance(event, e.Handoff):
                objects = event.objects
                if key in objects or any(
                    self.program.objects[tracked_object].role == "scaler" for tracked_object in objects
                ):
                    return True
            if index == cause and cause != here[0]:
                return False
            if isinstance(event, (e.ScalerStep, e.Step)) and event.object == key and index != here[0]:
                return False
        return False

    def find_last_index(self, here: Here, kinds: tuple[EventKind, ...], i: int, *, unscaled: bool = False) -> int:
        """Return the latest node before ``here`` with an event of these kinds for optimizer ``i``.

        Return the node of ``here`` if there is none.
        """
        key = self.optimizer_keys[i] if self.optimizer_keys else None
        # No list: the event is usually close, and the path is as long as the code.
        for index in islice(self.walk_back(here), 1, None):
            event = self.event_at(index)
            if not isinstance(event, kinds) or (unscaled and event.subject is not None):
                continue
            if isinstance(event, (e.Unscale, e.ScalerStep, e.Step)) and event.object != key:
                continue
            keys = _concerned_optimizers(event)
            if (keys is None and not self.has_another_scaler(event, i)) or (keys is not None and key in keys):
                return index
        return here[0]

    def has_another_scaler(self, event: Event, i: int) -> bool:
        """Return True for a backward of unknown optimizers whose scaler leaves optimizer ``i`` to another scaler."""
        if not isinstance(event, e.Backward) or event.feeds is not None or len(self.served_optimizers) < 2:
            return False
        own = self.served_optimizers.get(event.subject)
        return own is not None and i not in own and any(i in each for each in self.served_optimizers.values())

    def find_last_event(self, here: Here, kinds: tuple[EventKind, ...], i: int) -> Event:
        """Return the latest such event, or the event at ``here`` if there is none."""
        event = self.event_at(self.find_last_index(here, kinds, i))
        assert event is not None, "nothing is asked where nothing happens"
        return event

    def find_all_since_use(self, here: Here, kinds: tuple[EventKind, ...], i: int) -> list[int]:
        """Return the nodes of such events for optimizer ``i`` since the last unscale, step or clear."""
        key = self.optimizer_keys[i]
        found: list[int] = []
        before_backward = 0
        for index in list(self.walk_back(here))[1:]:
            event = self.event_at(index)
            if event is None:
                continue
            if isinstance(event, e.Backward) and (event.feeds is None or key in event.feeds):
                before_backward = len(found)
            owners = event.owners if isinstance(event, OwnedEvent) else None
            mine = owners is None or key in owners
            if isinstance(event, (e.Unscale, e.ScalerStep, e.Step)) and event.object == key:
                break
            if isinstance(event, e.ZeroGrad) and mine:
                # Events before the first backward find no gradients.
                found = found[:before_backward] or found
                break
            if isinstance(event, kinds) and mine and not _is_harmless(event) and index not in found:
                found.append(index)
        return found or [here[0]]

    def build_trace(self, label: str, here: Here, cause: int, detected_at: int) -> list[tuple[int, Event]]:
        """Return the events of the path that a violation depends on, in order, each with its distance to the end."""
        kinds = LABELS[label][1].trace_kinds
        chosen: list[tuple[int, Event]] = []
        last = None
        about = {x for n in (cause, detected_at) if (x := _find_optimizer(self.event_at(n))) is not None}
        missing = {cause, detected_at}
        # Violations of a single event, and violations about backwards or regions, need more than two events.
        goes_on = cause == detected_at or e.Backward in kinds or e.AutocastEnter in kinds
        for distance, index in enumerate(self.walk_back(here)):
            event = self.event_at(index)
            if event is None or event is last:
                continue
            if index in (cause, detected_at) or (isinstance(event, kinds) and not _concerns_other(event, about)):
                chosen.append((distance, event))
                last = event
            missing.discard(index)
            if len(chosen) >= SHOWN or not (missing or goes_on):
                break
            if (
                kinds
                and isinstance(event, kinds[0])
                and len(chosen) > 1
                and any(x is self.event_at(cause) for _, x in chosen)
            ):
                break
        chosen.reverse()
        return chosen

    def add_context(
        self, label: str, here: Here, trace: list[tuple[int, Event]], cause: Event, detected_at: Event | None
    ) -> list[tuple[int, Event]]:
        """Return the events of a trace, with those without which its message cannot be believed.

        Each event has its distance to the end of the path. The violation does not depend on the added events. They are
        the line that scales a loss whose backward is called elsewhere, and the events that the kind of violation
        declares.
        """
        context = LABELS[label][1].trace_context
        backwards = {
            x.subject: (d, x) for d, x in reversed(trace) if isinstance(x, e.Backward) and x.subject is not None
        }
        begin = trace[0][0] if context.begins_with and trace else -1
        region = next(
            (d for d, x in trace if context.region_around and isinstance(x, context.region_around)),
            -1,
        )
        earlier = next((d for d, x in trace if context.shows_earlier and x is cause), -1)
        feeds = cause.feeds if isinstance(cause, e.Backward) else None
        found = list(trace)
        open_regions = 0
        for distance, index in enumerate(self.walk_back(here)):
            if not (backwards or begin >= 0 or region >= 0 or earlier >= 0):
                break
            event = self.event_at(index)
            if event is None:
                continue
            if isinstance(event, e.Scale) and event.subject in backwards:
                after, backward = backwards[event.subject]
                if distance > after:
                    del backwards[event.subject]
                    if (event.site.path, event.site.line) != (backward.site.path, backward.site.line):
                        found.append((distance, event))
            if (
                0 <= begin < distance
                and isinstance(event, context.begins_with)
                and (not feeds or event.object in feeds)
            ):
                found.append((distance, event))
                begin = -1
            if 0 <= region < distance and isinstance(event, (e.AutocastEnter, e.AutocastExit)):
                open_regions += 1 if isinstance(event, e.AutocastExit) else -1
                if open_regions < 0:
                    region = -1
                    if isinstance(event, e.AutocastEnter) and not event.null:
                        found.append((distance, event))
            if 0 <= earlier < distance and type(event) is type(detected_at) and _have_same_subject(event, detected_at):
                found.append((distance, event))
                earlier = -1
        return sorted(found, key=lambda each: -each[0])


def _have_same_subject(event: Event, other: Event | None) -> bool:
    return other is not None and event.subject == other.subject


def _concerned_optimizers(event: Event) -> Collection[int] | None:
    """Return the optimizers whose gradients an event changes or uses, None if unknown or if it concerns none."""
    if isinstance(event, OwnedEvent):
        return event.owners
    return event.feeds if isinstance(event, e.Backward) else None


def _is_harmless(event: Event) -> bool:
    """Return True if an access to gradients only measures, or if the program takes the scale into account."""
    return isinstance(event, e.GradientAccess) and (event.undone or (isinstance(event, e.Clip) and event.measures_only))


def _find_optimizer(event: Event | None) -> int | None:
    return event.object if event is not None and event.traits.has_optimizer else None


def _concerns_other(event: Event, about: set[int]) -> bool:
    """Return True if an event concerns another optimizer than the given optimizers."""
    key = _find_optimizer(event)
    return bool(about) and key is not None and key not in about
