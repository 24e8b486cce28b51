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
from .events import Event, Kind, Program, Test
from .named import NamedTuple
from .rules import LABELS

#: Events that the path to a fault shows.
SHOWN = 6


class Region(NamedTuple):
    """An open autocast region.

    ``entered`` is the node that entered it, ``told`` whether its backward was reported, ``filled`` whether a module has
    run forward in it, which fills the cache of weights.
    """

    instance: int
    enabled: bool
    device: str
    dtype: str
    cache: bool
    entered: int
    told: bool = False
    filled: bool = False


class State(NamedTuple):
    """What a path remembers: tests it assumed (bit sets), open regions, optimizers, scalers, a stale weight cache."""

    known: int
    truth: int
    regions: tuple[Region, ...]
    opts: tuple[a.Opt, ...]
    used: int  # bit set of scalers that have stepped
    renewed: int  # bit set of scalers constructed again after they had stepped
    stale: int  # node that wrote parameters inside the open regions, -1 if none


class Blame(NamedTuple):
    """A fault that a path commits: its label, the node to blame, the node that settles it."""

    label: str
    blamed: int
    settled: int


#: A place on a path: the number of its event, and what tells the state before it from others.
Here = tuple[int, ...]


class Moment:
    """An event as a path meets it: the state before it, which becomes that after it.

    ``opts`` are the gradients of that state, one entry for each optimizer; ``subject`` is the key of the event's
    subject, -1 if it has none.
    """

    __slots__ = ("event", "here", "index", "opts", "state", "subject")

    def __init__(self, index: int, event: Event, state: State, here: Here) -> None:
        self.index = index
        self.event = event
        self.state = state
        self.here = here
        self.opts = list(state.opts)
        self.subject = -1 if event.subject is None else event.subject

    def after(self) -> State:
        return self.state._replace(opts=tuple(self.opts))


class Judge:
    """What is known of a program while the state of its paths moves event by event."""

    #: Whether each thing is one object, as in a run: two things of a source may be two names of one object.
    exact = False

    def __init__(self, program: Program, tests: list[Test]) -> None:
        self.program = program
        self.tests = tests
        #: Keys of the optimizers, in the order in which a state holds them.
        self.opts: list[int] = []
        self.index: dict[int, int] = {}
        self.scaler_bit: dict[int, int] = {}
        self.updated: set[int | None] = set()
        self.zeroed: set[int] = set()
        #: Of these, where the source tells: of each place that clears their gradients, the loops in which it stands,
        #: and the tests, of those that keep their truth.
        self.clearing: dict[int, list[tuple[tuple[int, ...], frozenset[tuple[int, bool]]]]] = {}
        #: Things that code which cannot be read was given, and what it may have done to them: matter -> things.
        self.handed: set[int] = set()
        self.spoken: dict[str, set[int]] = {matter: set() for matter in e.MATTERS}
        #: Optimizers whose gradients a block of a framework unscales as it ends, and the tests under which it does so.
        self.restored: dict[int, list[frozenset[tuple[int, bool]]]] = {}
        #: The tests under which each step of an optimizer by a scaler stands.
        self.stepped_under: dict[int, list[frozenset[tuple[int, bool]]]] = {}
        #: Tests (as a bit set) that come out anew when they are asked again, as in each turn of a loop.
        self.varying = 0
        #: Whether gradients are cleared of which it is not known whose they are.
        self.clears_some = False
        #: Optimizers (by number) that a backward reaches of which nothing else is known: no path steps another one.
        self.sole: frozenset[int] = frozenset()
        #: Scaler -> the optimizers (by number) that it unscales or steps in whatever place.
        self.serves: dict[int | None, set[int]] = {}
        #: Optimizers of which a step is in view.
        self.stepped: set[int] = set()
        #: Optimizers that are given gradients by an assignment, which something else has kept.
        self.given: set[int] = set()
        #: Whether an event has come near a fault, committed or excused.
        self.faulted = False
        #: Whether the way on depends on the loss scale somewhere, as it does where skipped steps are looked for.
        self.asks_scale = False
        #: Tests that decide whether an iteration ends an accumulation window, and the truth that ends it.
        self.windows: dict[int, bool] = {}
        #: The optimizers (by number) whose windows these are: those that are stepped under such a test.
        self.ended: dict[int, set[int]] = {}
        #: Tests for an argument that decide so, as far as is known: nobody who gives it is in view.
        self.flags: dict[int, bool] = {}
        #: Window tests under which gradients of more than one backward are stepped.
        self.accumulates: set[int] = set()

    @abstractmethod
    def event(self, index: int) -> Event | None: ...

    @abstractmethod
    def path(self, here: Here) -> Iterator[int]:
        """The numbers of the events that led here, and of places without one, latest first."""

    @abstractmethod
    def blame(self, label: str, blamed: int, settled: int, here: Here, *, sure: bool = True) -> None:
        """A fault was committed, for certain unless code that cannot be read does what it does not speak of."""

    def idles(self, index: int) -> None:
        """A step at node ``index`` is met where no backward has come before it, which tells nothing of it."""

    @abstractmethod
    def fed_before(self, event: Event) -> Iterable[int]:
        """The optimizers (by number) that the same backward has fed before, and nothing has stepped since."""

    def unscaled_under(self, i: int) -> Iterable[tuple[int, bool]]:
        """The tests, with their truth, under which optimizer ``i`` is unscaled; none where that is not known."""
        return ()

    def owners(self, event: Event) -> tuple[int, ...]:
        """Keys of the optimizers whose gradients an event is about; all of them where that is not known."""
        owners = event.facts.get("owners")
        if owners is None:
            return tuple(self.opts)
        return tuple(key for key in owners if key in self.index)

    def held(self, state: State) -> frozenset[int]:
        """The optimizers (by number) of which it is known that this iteration does not end the accumulation window."""
        held: set[int] = set()
        for key, boundary in self.windows.items():
            bit = 1 << key
            if state.known & bit and bool(state.truth & bit) != boundary:
                held |= self.ended.get(key, set())
        return frozenset(held)

    def complete(self, event: Event, state: State) -> bool:
        """Whether it is known that this iteration ends the accumulation window."""
        known = {key: bool(state.truth & (1 << key)) for key in self.windows if state.known & (1 << key)}
        known.update((key, truth) for key, truth in event.guards if key in self.windows)
        return bool(known) and all(truth == self.windows[key] for key, truth in known.items())

    def left_stepped(self, opt: a.Opt) -> bool:
        """Whether a scaler has stepped an optimizer and is never updated, as far as is known of who has it."""
        known = not self.program.facts.get("fragment") and opt.by in self.program.facts.get("left_scalers", ())
        left = self.owned(opt.by) or known
        nobody = opt.by not in self.updated and opt.by not in self.spoken[e.STEPS]
        return opt.stage == a.STAGE_STEPPED and left and nobody

    def owned(self, scaler: int | None) -> bool:
        """Whether a scaler is made by the code that is judged, and nobody else has it."""
        return scaler in self.scaler_bit and not self.program.things[scaler].facts.get("shared")

    def commit(self, label: str, index: int, i: int, here: Here, *, sure: bool = True) -> None:
        """Find the event to blame for a fault that was settled at node ``index``."""
        self.faulted = True
        fault = LABELS[label][1]
        if fault.each:
            places = self.each(here, fault.blame, i)
        else:
            places = [self.last(here, fault.blame, i, unscaled=fault.unscaled) if fault.blame else index]
        for blamed in places:
            event = self.event(blamed)
            facts = event.facts if event is not None else {}
            said = next((other for fact, other in fault.otherwise if facts.get(fact)), label)
            self.blame(said, blamed, index, here, sure=sure and not self.assumed(here, blamed, i))

    def assumed(self, here: Here, blamed: int, i: int) -> bool:
        """Whether code that cannot be read has had optimizer ``i``, or its scaler, since what is to blame."""
        if not self.handed:
            return False
        key = self.opts[i] if self.opts else None
        for index in self.path(here):
            event = self.event(index)
            if event is not None and event.kind == e.HANDOFF:
                things = event.facts.get("things", ())
                if key in things or any(self.program.things[thing].role == "scaler" for thing in things):
                    return True
            if index == blamed and blamed != here[0]:
                return False
            if event is not None and event.kind in (e.SCALER_STEP, e.STEP) and event.object == key and index != here[0]:
                return False
        return False

    def last(self, here: Here, kinds: tuple[Kind, ...], i: int, *, unscaled: bool = False) -> int:
        """The latest node before ``here`` with an event of these kinds that concerns optimizer ``i``."""
        key = self.opts[i] if self.opts else None
        # Not as a list: the event is near nearly always, and the path as long as the code.
        for index in islice(self.path(here), 1, None):
            event = self.event(index)
            if event is None or event.kind not in kinds or (unscaled and event.subject is not None):
                continue
            if event.kind in (e.UNSCALE, e.SCALER_STEP, e.STEP) and event.object != key:
                continue
            if all(keys is None or key in keys for keys in (event.facts.get("owners"), event.facts.get("feeds"))):
                return index
        return here[0]

    def latest(self, here: Here, kinds: tuple[Kind, ...], i: int) -> Event:
        """The latest such event, or where there is none the one at ``here``."""
        event = self.event(self.last(here, kinds, i))
        assert event is not None, "nothing is asked where nothing happens"
        return event

    def each(self, here: Here, kinds: tuple[Kind, ...], i: int) -> list[int]:
        """The nodes of such events that concern optimizer ``i``, since its gradients were unscaled, used or cleared."""
        key = self.opts[i]
        found: list[int] = []
        fed = 0
        for index in list(self.path(here))[1:]:
            event = self.event(index)
            if event is None:
                continue
            feeds, owners = event.facts.get("feeds"), event.facts.get("owners")
            if event.kind == e.BACKWARD and (feeds is None or key in feeds):
                fed = len(found)
            mine = owners is None or key in owners
            if event.kind in (e.UNSCALE, e.SCALER_STEP, e.STEP) and event.object == key:
                break
            if event.kind == e.ZERO_GRAD and mine:
                # What comes before the first backward finds no gradients.
                found = found[:fed] or found
                break
            counts = not (event.facts.get("measures_only") or event.facts.get("undone"))
            if event.kind in kinds and mine and counts and index not in found:
                found.append(index)
        return found or [here[0]]

    def witness(self, label: str, here: Here, blamed: int, settled: int) -> list[Event]:
        """The events of the path that matter to a fault, in the order in which they happen."""
        kinds = LABELS[label][1].witness
        chosen: list[Event] = []
        last = None
        about = {x for n in (blamed, settled) if (x := _about(self.event(n))) is not None}
        missing = {blamed, settled}
        # What a fault of one event says, and one that tells of backwards or regions, takes more than its two events.
        goes_on = blamed == settled or e.BACKWARD in kinds or e.AUTOCAST_ENTER in kinds
        for index in self.path(here):
            event = self.event(index)
            if event is None or event is last:
                continue
            if index in (blamed, settled) or (event.kind in kinds and not _other(event, about)):
                chosen.append(event)
                last = event
            missing.discard(index)
            if len(chosen) >= SHOWN or not (missing or goes_on):
                break
            if kinds and event.kind == kinds[0] and len(chosen) > 1 and any(x is self.event(blamed) for x in chosen):
                break
        chosen.reverse()
        return chosen


def _about(event: Event | None) -> int | None:
    return event.object if event is not None and event.kind.optimizer else None


def _other(event: Event, about: set[int]) -> bool:
    """Whether an event is about another optimizer than those concerned."""
    key = _about(event)
    return bool(about) and key is not None and key not in about
