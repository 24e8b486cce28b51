"""What a path through a program remembers, and how a fault on it finds the event to blame.

:mod:`.check` moves sets of states over the graph of a source, :mod:`.chain` one state along the events of a run. What
an event does to a state stands in :mod:`.effects`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from itertools import islice

from . import automaton as a
from . import events as e
from .events import Event, EventKind, Predicate, Program
from .fast_namedtuple import NamedTuple
from .rules import LABELS

#: Events that the path to a fault shows.
SHOWN = 6


class AutocastRegion(NamedTuple):
    """An open autocast region.

    ``entered`` is the node that entered it, ``told`` whether its backward was reported, ``filled`` whether a module has
    run forward in it, which fills the cache of weights.
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
    """What a path remembers: tests it assumed (bit sets), open regions, optimizers, scalers, a stale weight cache."""

    known_predicates: int
    true_predicates: int
    regions: tuple[AutocastRegion, ...]
    optimizer_states: tuple[a.OptimizerState, ...]
    used_scalers: int  # bit set of scalers that have stepped
    recreated_scalers: int  # bit set of scalers constructed again after they had stepped
    stale_write: int  # node that wrote parameters inside the open regions, -1 if none


class Violation(NamedTuple):
    """A fault that a path commits: its label, the node to blame, the node that settles it."""

    label: str
    cause: int
    detected_at: int


#: A place on a path: the number of its event, and what tells the state before it from others.
Here = tuple[int, ...]


class EventContext:
    """An event as a path meets it: the state before it, which becomes that after it.

    ``opts`` are the gradients of that state, one entry for each optimizer; ``subject`` is the key of the event's
    subject, -1 if it has none.
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
    """What is known of a program while the state of its paths moves event by event."""

    #: Whether each thing is one object, as in a run: two things of a source may be two names of one object.
    has_exact_identity = False

    def __init__(self, program: Program, predicates: list[Predicate]) -> None:
        self.program = program
        self.predicates = predicates
        #: Keys of the optimizers, in the order in which a state holds them.
        self.optimizer_keys: list[int] = []
        self.optimizer_index: dict[int, int] = {}
        self.scaler_bits: dict[int, int] = {}
        self.updated_scalers: set[int | None] = set()
        self.zeroed_optimizers: set[int] = set()
        #: Of these, where the source tells: of each place that clears their gradients, the loops in which it stands,
        #: and the tests, of those that keep their truth.
        self.clearing_sites: dict[int, list[tuple[tuple[int, ...], frozenset[tuple[int, bool]]]]] = {}
        #: Things that code which cannot be read was given, and what it may have done to them: matter -> things.
        self.escaped_objects: set[int] = set()
        self.escape_effects: dict[str, set[int]] = {matter: set() for matter in e.MATTERS}
        #: Optimizers whose gradients a block of a framework unscales as it ends, and the tests under which it does so.
        self.restore_guards: dict[int, list[frozenset[tuple[int, bool]]]] = {}
        #: The tests under which each step of an optimizer by a scaler stands.
        self.step_guards: dict[int, list[frozenset[tuple[int, bool]]]] = {}
        #: Tests (as a bit set) that come out anew when they are asked again, as in each turn of a loop.
        self.varying_predicates = 0
        #: Whether gradients are cleared of which it is not known whose they are.
        self.clears_unknown_grads = False
        #: Optimizers (by number) that a backward reaches of which nothing else is known: no path steps another one.
        self.sole_optimizers: frozenset[int] = frozenset()
        #: Scaler -> the optimizers (by number) that it unscales or steps in whatever place.
        self.served_optimizers: dict[int | None, set[int]] = {}
        #: Optimizers of which a step is in view.
        self.stepped_optimizers: set[int] = set()
        #: Optimizers that are given gradients by an assignment, which something else has kept.
        self.assigned_optimizers: set[int] = set()
        #: Whether an event has come near a fault, committed or excused.
        self.saw_violation = False
        #: Whether the way on depends on the loss scale somewhere, as it does where skipped steps are looked for.
        self.has_scale_branch = False
        #: Tests that decide whether an iteration ends an accumulation window, and the truth that ends it.
        self.window_predicates: dict[int, bool] = {}
        #: The optimizers (by number) whose windows these are: those that are stepped under such a test.
        self.window_optimizers: dict[int, set[int]] = {}
        #: Tests for an argument that decide so, as far as is known: nobody who gives it is in view.
        self.flag_predicates: dict[int, bool] = {}
        #: Window tests under which gradients of more than one backward are stepped.
        self.accumulating_windows: set[int] = set()

    @abstractmethod
    def event_at(self, index: int) -> Event | None: ...

    @abstractmethod
    def walk_back(self, here: Here) -> Iterator[int]:
        """The numbers of the events that led here, and of places without one, latest first."""

    @abstractmethod
    def report_violation(self, label: str, cause: int, detected_at: int, here: Here, *, sure: bool = True) -> None:
        """A fault was committed, for certain unless code that cannot be read does what it does not speak of."""

    def note_idle_step(self, index: int) -> None:
        """A step at node ``index`` is met where no backward has come before it, which tells nothing of it."""

    @abstractmethod
    def find_already_accumulated(self, event: Event) -> Iterable[int]:
        """The optimizers (by number) that the same backward has fed before, and nothing has stepped since."""

    def find_unscale_guards(self, i: int) -> Iterable[tuple[int, bool]]:
        """The tests, with their truth, under which optimizer ``i`` is unscaled; none where that is not known."""
        return ()

    def owner_keys(self, event: Event) -> tuple[int, ...]:
        """Keys of the optimizers whose gradients an event is about; all of them where that is not known."""
        owners = event.attributes.get("owners")
        if owners is None:
            return tuple(self.optimizer_keys)
        return tuple(key for key in owners if key in self.optimizer_index)

    def open_windows(self, state: PathState) -> frozenset[int]:
        """The optimizers (by number) of which it is known that this iteration does not end the accumulation window."""
        optimizers: set[int] = set()
        for key, boundary in self.window_predicates.items():
            bit = 1 << key
            if state.known_predicates & bit and bool(state.true_predicates & bit) != boundary:
                optimizers |= self.window_optimizers.get(key, set())
        return frozenset(optimizers)

    def is_window_end(self, event: Event, state: PathState) -> bool:
        """Whether it is known that this iteration ends the accumulation window."""
        known = {
            key: bool(state.true_predicates & (1 << key))
            for key in self.window_predicates
            if state.known_predicates & (1 << key)
        }
        known.update((key, truth) for key, truth in event.guards if key in self.window_predicates)
        return bool(known) and all(truth == self.window_predicates[key] for key, truth in known.items())

    def is_never_updated(self, opt: a.OptimizerState) -> bool:
        """Whether a scaler has stepped an optimizer and is never updated, as far as is known of who has it."""
        known = not self.program.attributes.get("fragment") and opt.scaler_key in self.program.attributes.get(
            "left_scalers", ()
        )
        left = self.is_local_scaler(opt.scaler_key) or known
        nobody = opt.scaler_key not in self.updated_scalers and opt.scaler_key not in self.escape_effects[e.STEPS]
        return opt.stage == a.STAGE_STEPPED and left and nobody

    def is_local_scaler(self, scaler: int | None) -> bool:
        """Whether a scaler is made by the code that is judged, and nobody else has it."""
        return scaler in self.scaler_bits and not self.program.objects[scaler].attributes.get("shared")

    def resolve_cause(self, label: str, index: int, i: int, here: Here, *, sure: bool = True) -> None:
        """Find the event to blame for a fault that was settled at node ``index``."""
        self.saw_violation = True
        kind = LABELS[label][1]
        if kind.every_cause:
            causes = self.find_all_since_use(here, kind.cause_kinds, i)
        else:
            causes = [
                self.find_last_index(here, kind.cause_kinds, i, unscaled=kind.unscaled_only)
                if kind.cause_kinds
                else index
            ]
        for cause in causes:
            event = self.event_at(cause)
            facts = event.attributes if event is not None else {}
            final_label = next((other for fact, other in kind.label_overrides if facts.get(fact)), label)
            self.report_violation(
                final_label, cause, index, here, sure=sure and not self.has_escaped_since(here, cause, i)
            )

    def has_escaped_since(self, here: Here, cause: int, i: int) -> bool:
        """Whether code that cannot be read has had optimizer ``i``, or its scaler, since what is to blame."""
        if not self.escaped_objects:
            return False
        key = self.optimizer_keys[i] if self.optimizer_keys else None
        for index in self.walk_back(here):
            event = self.event_at(index)
            if event is not None and event.kind == e.HANDOFF:
                things = event.attributes.get("things", ())
                if key in things or any(self.program.objects[thing].role == "scaler" for thing in things):
                    return True
            if index == cause and cause != here[0]:
                return False
            if event is not None and event.kind in (e.SCALER_STEP, e.STEP) and event.object == key and index != here[0]:
                return False
        return False

    def find_last_index(self, here: Here, kinds: tuple[EventKind, ...], i: int, *, unscaled: bool = False) -> int:
        """The latest node before ``here`` with an event of these kinds that concerns optimizer ``i``."""
        key = self.optimizer_keys[i] if self.optimizer_keys else None
        # Not as a list: the event is near nearly always, and the path as long as the code.
        for index in islice(self.walk_back(here), 1, None):
            event = self.event_at(index)
            if event is None or event.kind not in kinds or (unscaled and event.subject is not None):
                continue
            if event.kind in (e.UNSCALE, e.SCALER_STEP, e.STEP) and event.object != key:
                continue
            if all(
                keys is None or key in keys for keys in (event.attributes.get("owners"), event.attributes.get("feeds"))
            ):
                return index
        return here[0]

    def find_last_event(self, here: Here, kinds: tuple[EventKind, ...], i: int) -> Event:
        """The latest such event, or where there is none the one at ``here``."""
        event = self.event_at(self.find_last_index(here, kinds, i))
        assert event is not None, "nothing is asked where nothing happens"
        return event

    def find_all_since_use(self, here: Here, kinds: tuple[EventKind, ...], i: int) -> list[int]:
        """The nodes of such events that concern optimizer ``i``, since its gradients were unscaled, used or cleared."""
        key = self.optimizer_keys[i]
        found: list[int] = []
        before_backward = 0
        for index in list(self.walk_back(here))[1:]:
            event = self.event_at(index)
            if event is None:
                continue
            feeds, owners = event.attributes.get("feeds"), event.attributes.get("owners")
            if event.kind == e.BACKWARD and (feeds is None or key in feeds):
                before_backward = len(found)
            mine = owners is None or key in owners
            if event.kind in (e.UNSCALE, e.SCALER_STEP, e.STEP) and event.object == key:
                break
            if event.kind == e.ZERO_GRAD and mine:
                # What comes before the first backward finds no gradients.
                found = found[:before_backward] or found
                break
            counts = not (event.attributes.get("measures_only") or event.attributes.get("undone"))
            if event.kind in kinds and mine and counts and index not in found:
                found.append(index)
        return found or [here[0]]

    def build_trace(self, label: str, here: Here, cause: int, detected_at: int) -> list[Event]:
        """The events of the path that matter to a fault, in the order in which they happen."""
        kinds = LABELS[label][1].trace_kinds
        chosen: list[Event] = []
        last = None
        about = {x for n in (cause, detected_at) if (x := _find_optimizer(self.event_at(n))) is not None}
        missing = {cause, detected_at}
        # What a fault of one event says, and one that tells of backwards or regions, takes more than its two events.
        goes_on = cause == detected_at or e.BACKWARD in kinds or e.AUTOCAST_ENTER in kinds
        for index in self.walk_back(here):
            event = self.event_at(index)
            if event is None or event is last:
                continue
            if index in (cause, detected_at) or (event.kind in kinds and not _concerns_other(event, about)):
                chosen.append(event)
                last = event
            missing.discard(index)
            if len(chosen) >= SHOWN or not (missing or goes_on):
                break
            if kinds and event.kind == kinds[0] and len(chosen) > 1 and any(x is self.event_at(cause) for x in chosen):
                break
        chosen.reverse()
        return chosen


def _find_optimizer(event: Event | None) -> int | None:
    return event.object if event is not None and event.kind.has_optimizer else None


def _concerns_other(event: Event, about: set[int]) -> bool:
    """Whether an event is about another optimizer than those concerned."""
    key = _find_optimizer(event)
    return bool(about) and key is not None and key not in about
