"""What an event does to the state of a program, and which faults it commits: the part of judging that needs no order.

:mod:`.check` moves sets of states over the graph of a source, :mod:`.chain` one state along the events of a run.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator

from . import automaton as a
from . import events as e
from .events import Event, Kind, Program, Site, Test
from .named import NamedTuple
from .rules import LABELS

#: Autocast regions that are remembered at once.
DEPTH = 64
#: The instance of a context that stands where a region could, and opens none (``nullcontext()``).
NULL = -2
#: Events that the path to a fault shows.
SHOWN = 6


class Region(NamedTuple):
    """An open autocast region. ``entered`` is the node that entered it, ``told`` whether its backward was reported."""

    instance: int
    enabled: bool
    device: str
    dtype: str
    cache: bool
    entered: int
    told: bool = False


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
    """Moves the state of a program event by event."""

    def __init__(self, program: Program, tests: list[Test]) -> None:
        self.program = program
        self.tests = tests
        #: Keys of the optimizers, in the order in which a state holds them.
        self.opts: list[int] = []
        self.index: dict[int, int] = {}
        self.scaler_bit: dict[int, int] = {}
        self.updated: set[int | None] = set()
        self.zeroed: set[int] = set()
        self.handed: set[int] = set()
        #: Optimizers of which a step is in view.
        self.stepped: set[int] = set()
        #: Whether an event has come near a fault, committed or excused.
        self.faulted = False
        #: Whether the way on depends on the loss scale somewhere, as it does where skipped steps are looked for.
        self.asks_scale = False
        #: Tests that decide whether an iteration ends an accumulation window, and the truth that ends it.
        self.windows: dict[int, bool] = {}
        #: Tests for an argument that decide so, as far as is known: nobody who gives it is in view.
        self.flags: dict[int, bool] = {}
        #: Window tests under which gradients of more than one backward are stepped.
        self.accumulates: set[int] = set()

    @abstractmethod
    def _event(self, index: int) -> Event | None: ...

    @abstractmethod
    def _path(self, here: Here) -> Iterator[int]:
        """The numbers of the events that led here, and of places without one, latest first."""

    @abstractmethod
    def _blame(self, label: str, blamed: int, settled: int, here: Here) -> None:
        """A fault was committed."""

    def _apply(self, index: int, event: Event, state: State, here: Here) -> State:
        """The state after an event, with the faults that it commits."""
        handle = HANDLERS.get(event.kind)
        return state if handle is None else handle(self, Moment(index, event, state, here))

    def _move(
        self,
        now: Moment,
        i: int,
        name: str,
        *,
        by: int = -1,
        divided: bool = True,
        held: bool = False,
        inside: str = "",
        apart: bool = False,
        partly: bool = False,
    ) -> None:
        """Move the gradients of optimizer ``i``, and settle the faults that nothing excuses."""
        now.opts[i], faults = a.move(
            now.opts[i], name, by=by, divided=divided, held=held, inside=inside, apart=apart, partly=partly
        )
        for label in faults:
            self.faulted = True
            excuse = EXCUSES.get(LABELS[label][1].unless)
            if excuse is None or not excuse(self, now, i):
                self._settle(label, now.index, i, now.here)

    def _owners(self, event: Event) -> tuple[int, ...]:
        """Keys of the optimizers whose gradients an event is about; all of them where that is not known."""
        owners = event.facts.get("owners")
        if owners is None:
            return tuple(self.opts)
        return tuple(key for key in owners if key in self.index)

    # Autocast regions.

    def _enter(self, now: Moment) -> State:
        state, facts, index = now.state, now.event.facts, now.index
        if facts.get("null"):
            outer = state.regions[-1] if state.regions else Region(NULL, False, "", "", True, index)
            return state._replace(regions=(*state.regions, outer._replace(instance=NULL)))
        instance = facts.get("instance", now.subject)
        if instance >= 0 and any(region.instance == instance for region in state.regions):
            self._blame("enter@entered", index, index, now.here)
        region = Region(instance, facts["enabled"], facts["device"], facts["dtype"], facts["cache"], index)
        if len(state.regions) >= DEPTH:
            return state
        known, truth, regions, opts, used, renewed, stale = state
        return State(known, truth, (*regions, region), opts, used, renewed, stale)

    def _exit(self, now: Moment) -> State:
        known, truth, open_regions, opts, used, renewed, stale = now.state
        regions = open_regions[: now.event.facts.get("depth", len(open_regions) - 1)]
        nested = any(region.instance != NULL for region in regions)
        return State(known, truth, regions, opts, used, renewed, stale if nested else -1)

    def _clear_cache(self, now: Moment) -> State:
        return now.state._replace(stale=-1)

    def _forward(self, now: Moment) -> State:
        """A module runs forward, with the low-precision copies of weights that have been written since."""
        state = now.state
        region = state.regions[-1] if state.regions else None
        if state.stale < 0 or region is None or not (region.enabled and region.cache):
            return state
        if not now.event.facts.get("cached", True):
            return state
        self._blame("write@region-then-forward", state.stale, now.index, now.here)
        return state._replace(stale=-1)

    def _in_region(self, now: Moment) -> None:
        """Something runs backward, or writes parameters, in a region that may be open."""
        state, event = now.state, now.event
        if not state.regions:
            return
        region = state.regions[-1]
        of_optimizer = event.object in self.index
        writes = event.kind == e.PARAM_WRITE or (of_optimizer and event.kind != e.BACKWARD)
        if writes and region.cache and any(each.instance != NULL for each in state.regions):
            now.state = state = state._replace(stale=now.index)
        if event.kind == e.PARAM_WRITE or not region.enabled or region.told:
            return
        if (event.kind != e.BACKWARD and not of_optimizer) or event.facts.get("custom"):
            return
        label = "backward@region" if event.kind == e.BACKWARD else "step@region"
        self._blame(label, now.index, region.entered, now.here)
        now.state = state._replace(regions=tuple(each._replace(told=True) for each in state.regions))

    def _write(self, now: Moment) -> State:
        self._in_region(now)
        return now.state

    def _outside(self, now: Moment) -> State:
        """A module is captured, or run by another thread, in a region whose cache or state that does not respect."""
        state = now.state
        region = state.regions[-1] if state.regions else None
        if region is not None and region.enabled:
            label = self._lost(now.event.facts["how"], region, now.here)
            if label:
                self._blame(label, now.index, region.entered, now.here)
        return state

    def _lost(self, how: str, region: Region, here: Here) -> str:
        """The fault of leaving a region in some way, if it is one."""
        cuda = region.device == "cuda"
        if how == "trace":
            return "trace@cached-region" if region.cache else ""
        if how == "graphed":
            return "graphed@cached-region" if region.cache and cuda else ""
        if how == "graph":
            return "graph@cached-region" if region.cache and cuda and self._ran_since(region.entered, here) else ""
        if how == "thread":
            return "thread@region"
        return "replicas@region" if how == "replicas" and cuda and region.dtype == "bfloat16" else ""

    def _ran_since(self, entered: int, here: Here) -> bool:
        """Whether a module has run forward since a region was entered."""
        for index in self._path(here):
            event = self._event(index)
            if event is not None and event.kind == e.FORWARD:
                return True
            if index == entered:
                break
        return False

    def _loss(self, now: Moment) -> State:
        state, facts, index = now.state, now.event.facts, now.index
        region = state.regions[-1] if state.regions else None
        inside = region is not None and region.enabled
        if region is not None and inside and facts.get("function") == "binary_cross_entropy":
            label = "bce@region-cpu" if region.device in ("cpu", "mps") else "bce@region"
            self._blame(label, index, region.entered, now.here)
        low = facts.get("low_precision")
        if low and not inside:
            self._blame("loss@outside-bf16" if low == "bfloat16" else "loss@outside", index, index, now.here)
        return state

    # Scalers.

    def _scaler_made(self, now: Moment) -> State:
        state, bit = now.state, self.scaler_bit.get(now.subject, 0)
        return state._replace(renewed=state.renewed | bit) if state.used & bit else state

    def _scaler_loaded(self, now: Moment) -> State:
        state, bit = now.state, self.scaler_bit.get(now.subject, 0)
        return state._replace(renewed=state.renewed & ~bit)

    def _scaler_saved(self, now: Moment) -> State:
        if any(opt.stage == a.STAGE_STEPPED and opt.by == now.subject for opt in now.opts):
            self._settle("state@stepped", now.index, 0, now.here)
        return now.state

    def _scaled(self, now: Moment) -> State:
        if now.event.facts.get("twice"):
            self._blame("scale@scaled", now.index, now.index, now.here)
        return now.state

    def _update(self, now: Moment) -> State:
        opts, scaler = now.opts, now.subject
        if self._complete(now.event, now.state):
            # What the iterations before have gathered is complete, even where this one adds nothing to it.
            opts[:] = [opt._replace(held=False) for opt in opts]
        mine = [i for i, opt in enumerate(opts) if opt.by in (scaler, -1)]
        if now.event.facts.get("new_scale"):
            for i in mine:
                grads = a.LAPSED if opts[i].grads == a.UNSCALED else opts[i].grads
                opts[i] = opts[i]._replace(grads=grads, stage=a.READY)
        else:
            recorded = any(opts[i].stage != a.READY for i in mine)
            for i in mine:
                self._move(now, i, a.UPDATE if recorded else a.UPDATE_ALONE)
        return now.after()

    def _unscale(self, now: Moment) -> State:
        event = now.event
        if event.object in self.index:
            i = self.index[event.object]
            if "framework" not in event.facts:
                self._move(now, i, a.UNSCALE, by=now.subject)
                self._borrow(now, i)
            elif self._has_scaled(now, i) and now.opts[i].stage != a.STAGE_UNSCALED:
                self._move(now, i, a.UNSCALE, by=now.subject)
        return now.after()

    def _scaler_step(self, now: Moment) -> State:
        self._in_region(now)
        event = now.event
        if event.object in self.index:
            i = self.index[event.object]
            if "framework" in event.facts:
                self._step_counts(now)
                self._framework_step(now, i)
            else:
                state, bit = now.state, self.scaler_bit.get(now.subject, 0)
                if state.renewed & bit and now.opts[i].veteran:
                    self._settle("new@used", now.index, i, now.here)
                now.state = state._replace(used=state.used | bit, renewed=state.renewed & ~bit)
                self._step_counts(now)
                self._move(now, i, a.SCALER_STEP, by=now.subject)
                self._borrow(now, i)
        return now.after()

    def _borrow(self, now: Moment, i: int) -> None:
        """Optimizers that share parameters with one that is unscaled, or stepped, have these unscaled with it."""
        if now.event.facts.get("unscales", True):
            for key in self.program.things[self.opts[i]].facts.get("shares", ()):
                if key in self.index:
                    self._move(now, self.index[key], a.BORROW)

    def _has_scaled(self, now: Moment, i: int) -> bool:
        """Whether the scaler that acts has scaled what optimizer ``i`` holds."""
        return now.opts[i].by == now.subject and now.opts[i].grads in a.UNDER_SCALE

    def _framework_step(self, now: Moment, i: int) -> None:
        """What a framework does to one optimizer: it unscales what it has scaled, steps, and updates the scale.

        Where it is not known that the framework steps this optimizer, it is taken to do so with what it has scaled.
        """
        opt = now.opts[i]
        own = self._has_scaled(now, i) or (opt.by == now.subject and opt.grads == a.UNSCALED)
        if now.event.facts["framework"] or own:
            self._move(now, i, a.SCALER_STEP, by=now.subject)
            self._move(now, i, a.UPDATE)
        else:
            self._move(now, i, a.STEP if opt.grads == a.RAW else a.HANDOFF)

    def _restore(self, now: Moment) -> State:
        for key in self._owners(now.event):
            if now.opts[self.index[key]].by == now.subject:
                self._move(now, self.index[key], a.RESTORE)
        return now.after()

    # Gradients.

    def _backward(self, now: Moment) -> State:
        event = now.event
        self._scaled(now)
        self._in_region(now)
        if event.facts.get("uneven"):
            self.faulted = True
            self._blame("backward@uneven", now.index, now.index, now.here)
        self._feed(now)
        return now.after()

    def _feed(self, now: Moment) -> None:
        """A backward adds gradients to those of the optimizers that it reaches."""
        facts = now.event.facts
        held = self._held(now.state)
        feeds = facts.get("feeds")
        certain = len(now.opts) == 1 or feeds is not None
        averaged = certain and _averages(now.event, now.state)
        if now.subject >= 0:
            name = a.BACKWARD_SCALED if certain else a.MAYBE_SCALED
        else:
            name = a.BACKWARD_RAW if certain else a.MAYBE_RAW
        if facts.get("opaque"):
            name = a.HANDOFF
        for i, key in enumerate(self.opts):
            if feeds is not None and key not in feeds:
                continue
            if averaged:
                self._averaged_early(now, i)
            self._move(
                now,
                i,
                name,
                by=now.subject,
                divided=bool(facts.get("divided")),
                held=held,
                inside=facts.get("inside", "") if key in self.stepped else "",
                apart=bool(facts.get("apart")),
            )

    def _averaged_early(self, now: Moment, i: int) -> None:
        """A backward adds to gradients that the one before it, in the same window, has averaged over processes."""
        opt = now.opts[i]
        if opt.apart or opt.grads not in a.PENDING or not (opt.held or opt.inside == e.MICRO):
            return
        earlier = self._event(self._last(now.here, (e.BACKWARD,), i))
        if earlier is not None and _averages(earlier, now.state):
            self._settle("backward@averaged", now.index, i, now.here)

    def _held(self, state: State) -> bool:
        """Whether it is known that this iteration does not end the accumulation window."""
        for key, boundary in self.windows.items():
            bit = 1 << key
            if state.known & bit and bool(state.truth & bit) != boundary:
                return True
        return False

    def _complete(self, event: Event, state: State) -> bool:
        """Whether it is known that this iteration ends the accumulation window."""
        known = {key: bool(state.truth & (1 << key)) for key in self.windows if state.known & (1 << key)}
        known.update((key, truth) for key, truth in event.guards if key in self.windows)
        return bool(known) and all(truth == self.windows[key] for key, truth in known.items())

    def _step(self, now: Moment) -> State:
        self._in_region(now)
        if now.event.object in self.index:
            self._step_counts(now)
            self._move(now, self.index[now.event.object], a.STEP)
        return now.after()

    def _step_counts(self, now: Moment) -> None:
        """Note the windows that a step ends."""
        event = now.event
        if event.object is not None and now.opts[self.index[event.object]].many:
            self.accumulates.update(key for key, _ in event.guards if key in self.windows)

    def _clip(self, now: Moment) -> State:
        facts = now.event.facts
        touched = self._touched(now)
        partly = facts.get("owners") is not None and any(now.opts[i].grads == a.UNSCALED for i in touched)
        for i in touched:
            if facts.get("nonfinite_error") and now.opts[i].grads == a.UNSCALED:
                self._settle("clip-nonfinite", now.index, i, now.here)
            if facts.get("undone"):
                continue
            if facts.get("measures_only"):
                self._move(now, i, a.READ)
            else:
                self._move(now, i, a.CLIP, partly=partly)
        return now.after()

    def _by_hand(self, now: Moment) -> State:
        """Gradients are read, edited or divided by the loss scale, without a function of torch for it."""
        for i in self._touched(now) if not now.event.facts.get("undone") else ():
            self._move(now, i, BY_HAND[now.event.kind])
        return now.after()

    def _touched(self, now: Moment) -> list[int]:
        """Indexes of the optimizers whose gradients an event touches.

        Where the event does not say whose they are, and one optimizer is unscaled, they are taken to be that one's.
        """
        opts, owners = now.opts, now.event.facts.get("owners")
        if owners is not None:
            return [self.index[key] for key in owners if key in self.index]
        unscaled = [i for i, opt in enumerate(opts) if opt.grads == a.UNSCALED]
        return unscaled if len(opts) > 1 and unscaled else list(range(len(opts)))

    def _normalise(self, now: Moment) -> State:
        now.opts = [opt._replace(undivided=False) for opt in now.opts]
        return now.after()

    def _average(self, now: Moment) -> State:
        now.opts = [opt._replace(apart=False) for opt in now.opts]
        return now.after()

    def _zero(self, now: Moment) -> State:
        event = now.event
        counted = any(self.tests[key].counts for key, _ in event.guards)
        rescues = self._rescues(event, now.here)
        for key in self._owners(event):
            i = self.index[key]
            if counted or rescues:
                # Zeroed on a schedule of its own, which is the window's, or given up on purpose.
                now.opts[i] = now.opts[i]._replace(held=False, inside="")
            self._move(now, i, a.ZERO)
        return now.after()

    def _rescues(self, event: Event, here: Here) -> bool:
        """Whether gradients are cleared where something went wrong: under a test under which nothing runs backward."""
        if event.facts.get("rescue"):
            return True
        around = [(key, truth) for key, truth in event.guards if key not in self.windows]
        if not around:
            return False
        fed = next((x for i in self._path(here) if (x := self._event(i)) is not None and x.kind == e.BACKWARD), None)
        return fed is not None and not set(fed.guards).issuperset(around)

    # Optimizers, and where programs begin and end.

    def _optimizer_made(self, now: Moment) -> State:
        event = now.event
        if event.subject in self.index:
            i = self.index[event.subject]
            if event.facts.get("found"):
                now.opts[i] = a.Opt()
            else:
                self._move(now, i, a.NEW)
        return now.after()

    def _hand_off(self, now: Moment) -> State:
        things = now.event.facts.get("things", ())
        handed = [i for i, opt in enumerate(now.opts) if self.opts[i] in things or (opt.by >= 0 and opt.by in things)]
        for i in handed:
            self._move(now, i, a.HANDOFF)
        return now.after()

    def _loop_exit(self, now: Moment) -> State:
        facts = now.event.facts
        if not facts.get("complete"):
            now.opts = [opt._replace(held=False, many=False) for opt in now.opts]
        elif not facts.get("within"):
            now.opts = [opt._replace(inside="") for opt in now.opts]
        return now.after()

    def _again(self, now: Moment) -> State:
        # Other code has run in between; only an open accumulation window is meant to last.
        lasting = [(opt.held or opt.inside == e.LOOSE) and opt.grads in a.PENDING for opt in now.opts]
        opts = tuple(opt if lasts else a.Opt() for opt, lasts in zip(now.opts, lasting, strict=True))
        return State(now.state.known, now.state.truth, (), opts, 0, 0, -1)

    def _end(self, now: Moment) -> State:
        for i, opt in enumerate(now.opts):
            if self._left_stepped(opt):
                self._settle("end@stepped", now.index, i, now.here)
        return now.state

    def _left_stepped(self, opt: a.Opt) -> bool:
        """Whether a scaler has stepped an optimizer and is never updated."""
        thing = self.program.things[opt.by] if opt.by >= 0 else None
        return (
            opt.stage == a.STAGE_STEPPED
            and thing is not None
            and opt.by in self.scaler_bit
            and not thing.facts.get("shared")
            and opt.by not in self.updated
            and opt.by not in self.handed
        )

    def _schedule(self, now: Moment) -> State:
        """A scheduler of which the source is read moves: beside the step that a scaler may skip, or inside a window."""
        event, loops = now.event, now.event.facts.get("loops")
        if event.object not in self.index or loops is None:
            return now.state
        i = self.index[event.object]
        opt = now.opts[i]
        if (opt.held or opt.inside) and opt.grads in a.PENDING:
            feeding = self._event(self._last(now.here, (e.BACKWARD,), i))
            if feeding is not None and feeding.facts.get("loops") == loops:
                self._blame("scheduler:micro-batch", now.index, now.index, now.here)
        elif opt.grads in (a.STEPPED, a.CLEAN) and not self.asks_scale:
            stepping = self._event(self._last(now.here, (e.SCALER_STEP,), i))
            if stepping is not None and _follows(event, stepping):
                self._blame("scheduler:skipped", now.index, now.index, now.here)
        return now.state

    # Faults that something excuses.

    def _cleared_elsewhere(self, now: Moment, i: int) -> bool:
        """Gradients that are left to the next backward may be cleared by code that is not in view."""
        facts = self.program.things[self.opts[i]].facts
        owned = facts.get("constructed") and not facts.get("hooked")
        return not owned or self.opts[i] in self.zeroed or bool(self.handed)

    def _looked_at(self, now: Moment, i: int) -> bool:
        """Whether an optimizer is stepped by itself because its gradients were found to be finite."""
        if now.event.facts.get("checked"):
            return True
        return any((of := self.tests[key].of_gradients) is None or self.opts[i] in of for key, _ in now.event.guards)

    def _one_scaler(self, now: Moment, i: int) -> bool:
        """Unless two scalers that were seen to be made have both scaled what feeds an optimizer for certain."""
        key = self.opts[i]
        scalers = set()
        for index in list(self._path(now.here))[1:]:
            event = self._event(index)
            if event is None or (event.kind == e.ZERO_GRAD and key in self._owners(event)):
                break
            if event.kind == e.BACKWARD and key in (event.facts.get("feeds") or ()):
                if event.subject is None or not self.program.things[event.subject].facts.get("constructed"):
                    return True
                scalers.add(event.subject)
            if len(scalers) > 1:
                return False
        return True

    def _divided_elsewhere(self, now: Moment, i: int) -> bool:
        facts = self.program.things[self.opts[i]].facts
        return bool(facts.get("divided") or self.program.facts.get("averaged"))

    def _earlier_loop(self, now: Moment, i: int) -> bool:
        """What an earlier loop has left is cleared: the last backward ran in a loop outside of which they are."""
        backward = self._event(self._last(now.here, (e.BACKWARD,), i))
        if backward is None or not backward.facts.get("loops"):
            return False
        return backward.facts["loops"][-1] not in now.event.facts.get("loops", ())

    def _another_scaler(self, now: Moment, i: int) -> bool:
        """Another scaler's backward is not known to have reached what this one steps."""
        updating = self._event(self._last(now.here, (e.UPDATE,), i))
        return updating is not None and updating.subject != now.event.subject

    # From a fault to the event that is to blame, and to those that led there.

    def _settle(self, label: str, index: int, i: int, here: Here) -> None:
        """Find the event to blame for a fault that was settled at node ``index``."""
        self.faulted = True
        fault = LABELS[label][1]
        if fault.each:
            for blamed in self._each(here, fault.blame, i):
                self._blame(label, blamed, index, here)
            return
        blamed = self._last(here, fault.blame, i, unscaled=fault.unscaled) if fault.blame else index
        if fault.vague:
            event = self._event(blamed)
            label = fault.vague if event is not None and event.facts.get("vague") else label
        self._blame(label, blamed, index, here)

    def _last(self, here: Here, kinds: tuple[Kind, ...], i: int, *, unscaled: bool = False) -> int:
        """The latest node before ``here`` with an event of these kinds that concerns optimizer ``i``."""
        key = self.opts[i] if self.opts else None
        for index in list(self._path(here))[1:]:
            event = self._event(index)
            if event is None or event.kind not in kinds or (unscaled and event.subject is not None):
                continue
            if event.kind in (e.UNSCALE, e.SCALER_STEP, e.STEP) and event.object != key:
                continue
            if all(keys is None or key in keys for keys in (event.facts.get("owners"), event.facts.get("feeds"))):
                return index
        return here[0]

    def _each(self, here: Here, kinds: tuple[Kind, ...], i: int) -> list[int]:
        """The nodes of such events that concern optimizer ``i``, since its gradients were unscaled, used or cleared."""
        key = self.opts[i]
        found: list[int] = []
        for index in list(self._path(here))[1:]:
            event = self._event(index)
            if event is None:
                continue
            owners = event.facts.get("owners")
            mine = owners is None or key in owners
            if event.kind in (e.UNSCALE, e.SCALER_STEP, e.STEP) and event.object == key:
                break
            if event.kind == e.ZERO_GRAD and mine:
                break
            if event.kind in kinds and mine and index not in found:
                found.append(index)
        return found or [here[0]]

    def _witness(self, label: str, here: Here, blamed: int, settled: int) -> list[Event]:
        """The events of the path that matter to a fault, in the order in which they happen."""
        kinds = LABELS[label][1].witness
        chosen: list[Event] = []
        last = None
        about = {x for n in (blamed, settled) if (x := _about(self._event(n))) is not None}
        for index in self._path(here):
            event = self._event(index)
            if event is None or event is last:
                continue
            if index in (blamed, settled) or (event.kind in kinds and not _other(event, about)):
                chosen.append(event)
                last = event
            if len(chosen) >= SHOWN:
                break
            if index == blamed != settled and not any(k in kinds for k in (e.BACKWARD, e.AUTOCAST_ENTER)):
                break
            if kinds and event.kind == kinds[0] and len(chosen) > 1 and any(x is self._event(blamed) for x in chosen):
                break
        chosen.reverse()
        return chosen


#: Kind of event -> what it does to a state. Events of other kinds leave it as it is.
HANDLERS: dict[Kind, Callable[[Judge, Moment], State]] = {
    e.AUTOCAST_ENTER: Judge._enter,
    e.AUTOCAST_EXIT: Judge._exit,
    e.AUTOCAST_CACHE_CLEAR: Judge._clear_cache,
    e.FORWARD: Judge._forward,
    e.PARAM_WRITE: Judge._write,
    e.CAPTURE: Judge._outside,
    e.THREAD: Judge._outside,
    e.LOSS: Judge._loss,
    e.SCALER_NEW: Judge._scaler_made,
    e.SCALER_LOAD: Judge._scaler_loaded,
    e.SCALER_STATE: Judge._scaler_saved,
    e.SCALE: Judge._scaled,
    e.BACKWARD: Judge._backward,
    e.UNSCALE: Judge._unscale,
    e.RESTORE: Judge._restore,
    e.CLIP: Judge._clip,
    e.GRAD_READ: Judge._by_hand,
    e.GRAD_EDIT: Judge._by_hand,
    e.GRAD_DIVIDE: Judge._by_hand,
    e.GRAD_NORMALISE: Judge._normalise,
    e.GRAD_AVERAGE: Judge._average,
    e.SCALER_STEP: Judge._scaler_step,
    e.STEP: Judge._step,
    e.UPDATE: Judge._update,
    e.ZERO_GRAD: Judge._zero,
    e.OPTIMIZER_NEW: Judge._optimizer_made,
    e.SCHEDULER_STEP: Judge._schedule,
    e.HANDOFF: Judge._hand_off,
    e.LOOP_EXIT: Judge._loop_exit,
    e.AGAIN: Judge._again,
    e.END: Judge._end,
}
#: Kind of event -> the input that it is to the automaton.
BY_HAND = {e.GRAD_READ: a.READ, e.GRAD_EDIT: a.EDIT, e.GRAD_DIVIDE: a.DIVIDE}
#: What excuses a fault, by the name that faults give it (:attr:`.rule.Fault.unless`).
EXCUSES: dict[str, Callable[[Judge, Moment, int], bool]] = {
    "cleared-elsewhere": Judge._cleared_elsewhere,
    "finite": Judge._looked_at,
    "one-scaler": Judge._one_scaler,
    "divided-elsewhere": Judge._divided_elsewhere,
    "earlier-loop": Judge._earlier_loop,
    "another-scaler": Judge._another_scaler,
}


def _averages(event: Event, state: State) -> bool:
    """Whether a backward averages the gradients over processes, as far as is known of the tests that decide it."""
    tests = event.facts.get("averaged")
    if tests is None or event.facts.get("apart"):
        return False
    known = {(key, bool(state.truth & (1 << key))) for key, _ in tests if state.known & (1 << key)}
    return not any((key, not truth) in known or (key, not truth) in event.guards for key, truth in tests)


def _follows(scheduler: Event, step: Event) -> bool:
    """Whether a scheduler moves beside each step of a scaler of the program's own, whatever became of that."""
    return (
        step.kind == e.SCALER_STEP
        and "framework" not in step.facts
        and step.facts.get("loops") == scheduler.facts["loops"]
        and (_beside(step.site, scheduler.site) or _beside(scheduler.site, step.site))
        and set(scheduler.guards) <= set(step.guards)
    )


def _beside(site: Site, other: Site) -> bool:
    """Whether the function in which a place lies holds another place too, or calls what holds it."""
    return any((each.function, each.caller) == (site.function, site.caller) for each in other.frames())


def _about(event: Event | None) -> int | None:
    return event.object if event is not None and event.kind.optimizer else None


def _other(event: Event, about: set[int]) -> bool:
    """Whether an event is about another optimizer than those concerned."""
    key = _about(event)
    return bool(about) and key is not None and key not in about
