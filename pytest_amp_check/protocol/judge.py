"""What an event does to the state of a program, and which faults it commits: the part of judging that needs no order.

:mod:`.check` moves sets of states over the graph of a source, :mod:`.chain` one state along the events of a run.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping

from . import automaton as a
from . import events as e
from .events import Event, Program, Site, Test
from .finding import ERROR, SEVERITIES, Finding, Step
from .frameworks import FRAMEWORKS, PRECISION_FREE
from .named import NamedTuple
from .rule import Labels, Verdicts
from .rules import ALONE, LABELS, WHOLE

#: Autocast regions that are remembered at once.
DEPTH = 64
#: The instance of a context that stands where a region could, and opens none (``nullcontext()``).
NULL = -2

#: Faults that only count when every path that reaches the place commits them.
ON_EVERY_PATH = frozenset({"step@discarded", "step@apart", "update@nothing"})
#: Kinds that no state depends on.
IDLE = frozenset(
    {
        e.AUTOCAST_NEW,
        e.SCOPE_LOST,
        e.CUSTOM_FUNCTION,
        e.COMPILED,
        e.COMM_HOOK,
        e.DEPRECATED,
        e.SAVE,
        e.OPTIMIZER_LOAD,
        e.FILL,
        e.SCALE,
        e.MODULE_CAST,
        e.PENALTY,
        e.AUTOGRAD_GRAD,
        e.SCHEDULER_STEP,
        e.GRAD_INVALID,
        e.DIVIDED_TWICE,
        e.OVERHEAD,
    }
)
#: Kinds after which a thing is known to be an optimizer; ``step`` alone could be a scheduler's.
ESTABLISHING = frozenset({e.OPTIMIZER_NEW, e.SCALER_STEP, e.UNSCALE, e.ZERO_GRAD})
OPTIMIZER_KINDS = frozenset({e.OPTIMIZER_NEW, e.SCALER_STEP, e.UNSCALE, e.STEP, e.ZERO_GRAD})
DEFAULT_NAMES = {
    "scaler": "the scaler",
    "optimizer": "the optimizer",
    "loss": "the loss",
    "module": "the model",
    "params": "the gradients",
    "context": "autocast",
    "call": "this call",
    "window": "the step condition",
    "function": "this code",
}


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


def alone(event: Event, program: Program) -> Labels:
    """Labels of the faults of one event by itself, with values for their messages."""
    for rule in ALONE.get(event.kind, ()):
        yield from rule.on[event.kind](event, program)


def whole(program: Program) -> Verdicts:
    """Labels of the faults of a program as a whole, with what is blamed, values for messages and the witness."""
    kinds = {event.kind for event in program.events()}
    for kind, rule in WHOLE:
        if kind in kinds:
            yield from rule.whole[kind](program)


def judge_event(event: Event, program: Program) -> Iterator[Finding]:
    """Findings of the rules that judge one event by itself."""
    for label, values in alone(event, program):
        yield make_finding(label, event.site, [event], values, (), certain=not event.facts.get("possible"))


def make_finding(
    label: str,
    site: Site,
    events: list[Event],
    values: Mapping[str, str],
    witness: tuple[Step, ...],
    *,
    certain: bool = True,
    condition: str = "",
) -> Finding:
    rule, fault = LABELS[label]
    names: dict[str, str] = {}
    for event in reversed(events):
        names.update((k, text) for k, v in event.names.items() if (text := str(v)))
    names.update(values)
    message = _fill(fault.message.replace("{advice}", values.get("advice", "")), names)
    severity = values.get("severity") or fault.severity or rule.severity
    return Finding(
        rule.code,
        rule.name,
        severity,
        message,
        site,
        certain=certain,
        condition=condition,
        witness=witness,
        label=label,
        names=names,
    )


def of_framework(label: str, events: list[Event], program: Program) -> tuple[str, dict[str, str]]:
    """The label of a fault where a framework does the scaling, and what its message says then.

    The severity is no higher than it is known that the framework scales at all.
    """
    if label in PRECISION_FREE:
        return label, {}
    for event in events:
        thing = program.things[event.subject] if event.subject is not None else None
        framework = FRAMEWORKS.get(thing.facts.get("framework", "")) if thing is not None else None
        if thing is None or framework is None:
            continue
        rule, fault = LABELS[label]
        values = {}
        worst = max(fault.severity or rule.severity, thing.facts.get("doubt") or ERROR, key=SEVERITIES.index)
        values["severity"] = worst
        advice = framework.advice.get(label)
        if advice is not None:
            label = f"{label}-framework"
            values.update(framework=framework.title, advice=advice)
        elif framework.scaler:
            values["scaler"] = f"{event.names.get('scaler') or thing.name}.{framework.scaler}"
        return label, values
    return label, {}


class _Names(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return DEFAULT_NAMES.get(key, key)


def _fill(template: str, names: Mapping[str, str]) -> str:
    """The message with the user's names.

    A name that is not known is put in words, without the backticks; in the midst of code it is called as everybody
    calls it.
    """
    unknown = [key for key, words in DEFAULT_NAMES.items() if names.get(key, words) == words]
    for key in unknown:
        template = template.replace("`{" + key + "}`", DEFAULT_NAMES[key])
    parts = template.split("`")
    for key in unknown:
        usual = DEFAULT_NAMES[key].rpartition(" ")[2]
        parts[1::2] = [code.replace("{" + key + "}", usual) for code in parts[1::2]]
    return "`".join(parts).format_map(_Names(names))


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

    def _owners(self, event: Event) -> tuple[int, ...]:
        """Keys of the optimizers whose gradients an event is about; all of them where that is not known."""
        owners = event.facts.get("owners")
        if owners is None:
            return tuple(self.opts)
        return tuple(key for key in owners if key in self.index)

    def _apply(self, index: int, event: Event, state: State, here: Here) -> State:
        kind = event.kind
        if event.facts.get("twice"):
            self._blame("scale@scaled", index, index, here)
        if kind == e.SCHEDULER_STEP and event.object in self.index and "loops" in event.facts:
            self._schedule(index, event, state, here)
        if kind in IDLE:
            return state
        if kind == e.AUTOCAST_ENTER:
            return self._enter(index, event, state, here)
        if kind == e.AUTOCAST_EXIT:
            regions = state.regions[: event.facts.get("depth", len(state.regions) - 1)]
            nested = any(region.instance != NULL for region in regions)
            known, truth, _, opts, used, renewed, stale = state
            return State(known, truth, regions, opts, used, renewed, stale if nested else -1)
        if kind == e.AUTOCAST_CACHE_CLEAR:
            return state._replace(stale=-1)
        if kind == e.FORWARD:
            if (
                state.stale >= 0
                and event.facts.get("cached", True)
                and state.regions
                and state.regions[-1].enabled
                and state.regions[-1].cache
            ):
                self._blame("write@region-then-forward", state.stale, index, here)
                return state._replace(stale=-1)
            return state
        if kind == e.LOSS:
            self._loss(index, event, state, here)
            return state
        if kind in (e.CAPTURE, e.THREAD):
            self._outside(index, event, state, here)
            return state
        if kind == e.SCALER_NEW:
            bit = self.scaler_bit.get(event.subject if event.subject is not None else -1, 0)
            return state._replace(renewed=state.renewed | bit) if state.used & bit else state
        if kind == e.SCALER_LOAD:
            bit = self.scaler_bit.get(event.subject if event.subject is not None else -1, 0)
            return state._replace(renewed=state.renewed & ~bit)
        if kind in (e.BACKWARD, e.SCALER_STEP, e.STEP, e.PARAM_WRITE):
            state = self._in_region(index, event, state, here)
        return self._optimizers(index, event, state, here)

    def _enter(self, index: int, event: Event, state: State, here: Here) -> State:
        facts = event.facts
        if facts.get("null"):
            outer = state.regions[-1] if state.regions else Region(NULL, False, "", "", True, index)
            return state._replace(regions=(*state.regions, outer._replace(instance=NULL)))
        instance = facts.get("instance", -1 if event.subject is None else event.subject)
        if instance >= 0 and any(region.instance == instance for region in state.regions):
            self._blame("enter@entered", index, index, here)
        region = Region(instance, facts["enabled"], facts["device"], facts["dtype"], facts["cache"], index)
        if len(state.regions) >= DEPTH:
            return state
        known, truth, regions, opts, used, renewed, stale = state
        return State(known, truth, (*regions, region), opts, used, renewed, stale)

    def _in_region(self, index: int, event: Event, state: State, here: Here) -> State:
        if not state.regions:
            return state
        writes = event.object in self.index or event.kind == e.PARAM_WRITE
        nested = any(region.instance != NULL for region in state.regions)
        if event.kind != e.BACKWARD and nested and state.regions[-1].cache and writes:
            state = state._replace(stale=index)
        region = state.regions[-1]
        if event.kind == e.PARAM_WRITE or not region.enabled or region.told:
            return state
        if (event.kind != e.BACKWARD and event.object not in self.index) or event.facts.get("custom"):
            return state
        label = "backward@region" if event.kind == e.BACKWARD else "step@region"
        self._blame(label, index, region.entered, here)
        regions = tuple(r._replace(told=True) for r in state.regions)
        return state._replace(regions=regions)

    def _outside(self, index: int, event: Event, state: State, here: Here) -> None:
        """A module is captured, or run by another thread, in a region whose cache or state that does not respect."""
        region = state.regions[-1] if state.regions else None
        if region is None or not region.enabled:
            return
        how = event.facts["how"]
        cuda = region.device == "cuda"
        if how == "trace" and region.cache:
            self._blame("trace@cached-region", index, region.entered, here)
        elif how == "graphed" and region.cache and cuda:
            self._blame("graphed@cached-region", index, region.entered, here)
        elif how == "graph" and region.cache and cuda and self._ran_since(region.entered, here):
            self._blame("graph@cached-region", index, region.entered, here)
        elif how == "thread":
            self._blame("thread@region", index, region.entered, here)
        elif how == "replicas" and cuda and region.dtype == "bfloat16":
            self._blame("replicas@region", index, region.entered, here)

    def _ran_since(self, entered: int, here: Here) -> bool:
        """Whether a module has run forward since a region was entered."""
        for index in self._path(here):
            event = self._event(index)
            if event is not None and event.kind == e.FORWARD:
                return True
            if index == entered:
                break
        return False

    def _loss(self, index: int, event: Event, state: State, here: Here) -> None:
        inside = bool(state.regions) and state.regions[-1].enabled
        if inside and event.facts.get("function") == "binary_cross_entropy":
            device = state.regions[-1].device
            self._blame(
                "bce@region-cpu" if device in ("cpu", "mps") else "bce@region", index, state.regions[-1].entered, here
            )
        low = event.facts.get("low_precision")
        if low and not inside:
            self._blame("loss@outside-bf16" if low == "bfloat16" else "loss@outside", index, index, here)

    def _optimizers(self, index: int, event: Event, state: State, here: Here) -> State:
        """The state after an event that is about gradients, with the faults it commits."""
        kind = event.kind
        opts = list(state.opts)
        scaler = -1 if event.subject is None else event.subject
        used, renewed = state.used, state.renewed

        def move(i: int, name: str, **how: object) -> None:
            opts[i], faults = a.move(opts[i], name, **how)  # type: ignore[arg-type]
            if faults:
                self.faulted = True
            for label in faults:
                facts = self.program.things[self.opts[i]].facts
                if label == "backward@stale":
                    known = facts.get("constructed") and not facts.get("hooked")
                    if not known or self.opts[i] in self.zeroed or self.handed:
                        continue
                if label == "plain-step@unscaled" and (
                    event.facts.get("checked")
                    or any((of := self.tests[k].of_gradients) is None or self.opts[i] in of for k, _ in event.guards)
                ):
                    continue
                if label == "step@uneven" and not self._two_scalers(here, i):
                    continue
                if label == "step@undivided" and (facts.get("divided") or self.program.facts.get("averaged")):
                    continue
                self._settle(label, index, i, here)

        if kind == e.BACKWARD:
            if event.facts.get("uneven"):
                self.faulted = True
                self._blame("backward@uneven", index, index, here)
            self._backward(event, opts, scaler, move, state, here)
        elif kind in (e.UNSCALE, e.SCALER_STEP) and "framework" in event.facts and event.object in self.index:
            self._framework(event, opts, scaler, move)
        elif kind == e.RESTORE:
            for key in self._owners(event):
                if opts[self.index[key]].by == scaler:
                    move(self.index[key], a.RESTORE)
        elif kind in (e.UNSCALE, e.SCALER_STEP) and event.object in self.index:
            i = self.index[event.object]
            bit = self.scaler_bit.get(scaler, 0)
            if kind == e.SCALER_STEP:
                if renewed & bit and opts[i].veteran:
                    self._settle("new@used", index, i, here)
                used, renewed = used | bit, renewed & ~bit
                self._step_counts(event, opts)
            move(i, a.UNSCALE if kind == e.UNSCALE else a.SCALER_STEP, by=scaler)
            shares = self.program.things[self.opts[i]].facts.get("shares", ())
            for key in shares if event.facts.get("unscales", True) else ():
                if key in self.index:
                    move(self.index[key], a.BORROW)
        elif kind == e.STEP and event.object in self.index:
            self._step_counts(event, opts)
            move(self.index[event.object], a.STEP)
        elif kind == e.UPDATE:
            if self._complete(event, state):
                # What the iterations before have gathered is complete, even where this one adds nothing to it.
                opts = [opt._replace(held=False) for opt in opts]
            self._update(event, opts, scaler, move)
        elif kind == e.CLIP:
            clipped = self._clipped(event, opts)
            partly = event.facts.get("owners") is not None and any(opts[i].grads == a.UNSCALED for i in clipped)
            for i in clipped:
                if event.facts.get("nonfinite_error") and opts[i].grads == a.UNSCALED:
                    self._settle("clip-nonfinite", index, i, here)
                if not event.facts.get("undone"):
                    if event.facts.get("measures_only"):
                        move(i, a.READ)
                    else:
                        move(i, a.CLIP, partly=partly)
        elif kind in (e.GRAD_READ, e.GRAD_EDIT, e.GRAD_DIVIDE):
            name = {e.GRAD_READ: a.READ, e.GRAD_EDIT: a.EDIT, e.GRAD_DIVIDE: a.DIVIDE}[kind]
            for i in self._clipped(event, opts) if not event.facts.get("undone") else ():
                move(i, name)
        elif kind == e.GRAD_NORMALISE:
            opts = [opt._replace(undivided=False) for opt in opts]
        elif kind == e.GRAD_AVERAGE:
            opts = [opt._replace(apart=False) for opt in opts]
        elif kind == e.ZERO_GRAD:
            owners = self._owners(event)
            counted = any(self.tests[key].counts for key, _ in event.guards)
            rescues = self._rescues(event, here)
            for key in owners:
                i = self.index[key]
                if counted or rescues:
                    # Zeroed on a schedule of its own, which is the window's, or given up on purpose.
                    opts[i] = opts[i]._replace(held=False, inside="")
                move(i, a.ZERO)
        elif kind == e.OPTIMIZER_NEW and event.subject in self.index:
            i = self.index[event.subject]
            if event.facts.get("found"):
                opts[i] = a.Opt()
            else:
                move(i, a.NEW)
        elif kind == e.HANDOFF:
            for i in self._handed(event, opts):
                move(i, a.HANDOFF)
        elif kind == e.SCALER_STATE:
            if any(opt.stage == a.STAGE_STEPPED and opt.by == scaler for opt in opts):
                self._settle("state@stepped", index, 0, here)
        elif kind == e.LOOP_EXIT:
            if not event.facts.get("complete"):
                opts = [opt._replace(held=False, many=False) for opt in opts]
            elif not event.facts.get("within"):
                opts = [opt._replace(inside="") for opt in opts]
        elif kind == e.AGAIN:
            # Other code has run in between; only an open accumulation window is meant to last.
            lasting = [(opt.held or opt.inside == e.LOOSE) and opt.grads in a.PENDING for opt in opts]
            opts = [opt if lasts else a.Opt() for opt, lasts in zip(opts, lasting, strict=True)]
            used = renewed = 0
            state = state._replace(regions=(), stale=-1)
        elif kind == e.END:
            self._end(index, state, here)
        return state._replace(opts=tuple(opts), used=used, renewed=renewed)

    def _framework(self, event: Event, opts: list[a.Opt], scaler: int, move: Callable[..., None]) -> None:
        """What a framework does to one optimizer: it unscales what it has scaled, steps, and updates the scale.

        Where it is not known that the framework steps this optimizer, it is taken to do so with what it has scaled.
        """
        i = self.index[event.object] if event.object is not None else 0
        scaled = opts[i].by == scaler and opts[i].grads in a.UNDER_SCALE
        if event.kind == e.UNSCALE:
            if scaled and opts[i].stage != a.STAGE_UNSCALED:
                move(i, a.UNSCALE, by=scaler)
            return
        self._step_counts(event, opts)
        if event.facts["framework"] or scaled or (opts[i].by == scaler and opts[i].grads == a.UNSCALED):
            move(i, a.SCALER_STEP, by=scaler)
            move(i, a.UPDATE)
        else:
            move(i, a.STEP if opts[i].grads == a.RAW else a.HANDOFF)

    def _step_counts(self, event: Event, opts: list[a.Opt]) -> None:
        """Note the windows that a step ends."""
        if event.object is not None and opts[self.index[event.object]].many:
            self.accumulates.update(key for key, _ in event.guards if key in self.windows)

    def _rescues(self, event: Event, here: Here) -> bool:
        """Whether gradients are cleared where something went wrong: under a test under which nothing runs backward."""
        if event.facts.get("rescue"):
            return True
        around = [(key, truth) for key, truth in event.guards if key not in self.windows]
        if not around:
            return False
        fed = next((x for i in self._path(here) if (x := self._event(i)) is not None and x.kind == e.BACKWARD), None)
        return fed is not None and not set(fed.guards).issuperset(around)

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

    def _backward(
        self, event: Event, opts: list[a.Opt], scaler: int, move: Callable[..., None], state: State, here: Here
    ) -> None:
        held = self._held(state)
        feeds = event.facts.get("feeds")
        sure = len(opts) == 1
        divided = bool(event.facts.get("divided"))
        loop = event.facts.get("inside", "")
        apart = bool(event.facts.get("apart"))
        averaged = _averages(event, state)
        for i, key in enumerate(self.opts):
            if feeds is not None and key not in feeds:
                continue
            certain = sure or feeds is not None
            inside = loop if key in self.stepped else ""
            if averaged and certain:
                self._averaged_early(opts[i], i, state, here)
            if event.facts.get("opaque"):
                move(i, a.HANDOFF)
            elif scaler >= 0:
                kind = a.BACKWARD_SCALED if certain else a.MAYBE_SCALED
                move(i, kind, by=scaler, divided=divided, held=held, inside=inside, apart=apart)
            else:
                kind = a.BACKWARD_RAW if certain else a.MAYBE_RAW
                move(i, kind, divided=divided, held=held, inside=inside, apart=apart)

    def _averaged_early(self, opt: a.Opt, i: int, state: State, here: Here) -> None:
        """A backward adds to gradients that the one before it, in the same window, has averaged over processes."""
        if opt.apart or opt.grads not in a.PENDING or not (opt.held or opt.inside == e.MICRO):
            return
        earlier = self._event(self._last(here, (e.BACKWARD,), i))
        if earlier is not None and _averages(earlier, state):
            self._settle("backward@averaged", here[0], i, here)

    def _update(self, event: Event, opts: list[a.Opt], scaler: int, move: Callable[..., None]) -> None:
        mine = [i for i, opt in enumerate(opts) if opt.by in (scaler, -1)]
        if event.facts.get("new_scale"):
            for i in mine:
                grads = a.LAPSED if opts[i].grads == a.UNSCALED else opts[i].grads
                opts[i] = opts[i]._replace(grads=grads, stage=a.READY)
            return
        recorded = [i for i in mine if opts[i].stage != a.READY]
        for i in mine:
            move(i, a.UPDATE if recorded else a.UPDATE_ALONE)

    def _clipped(self, event: Event, opts: list[a.Opt]) -> list[int]:
        """Indexes of the optimizers whose gradients an event touches.

        Where the event does not say whose they are, and one optimizer is unscaled, they are taken to be that one's.
        """
        owners = event.facts.get("owners")
        if owners is not None:
            return [self.index[key] for key in owners if key in self.index]
        if len(opts) > 1 and any(opt.grads == a.UNSCALED for opt in opts):
            return [i for i, opt in enumerate(opts) if opt.grads == a.UNSCALED]
        return list(range(len(opts)))

    def _handed(self, event: Event, opts: list[a.Opt]) -> list[int]:
        things = event.facts.get("things", ())
        return [i for i, opt in enumerate(opts) if self.opts[i] in things or (opt.by >= 0 and opt.by in things)]

    def _end(self, index: int, state: State, here: Here) -> None:
        for i, opt in enumerate(state.opts):
            if self._left_stepped(opt):
                self._settle("end@stepped", index, i, here)

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

    def _follows_from_missing_update(self, label: str, scaler: int | None) -> bool:
        """Whether a fault is what a scaler without any update leads to, which is told at its step."""
        return label == "state@stepped" and scaler not in self.updated

    def _last(self, here: Here, kinds: tuple[str, ...], i: int, *, raw: bool = False) -> int:
        """The latest node before ``here`` with an event of these kinds that concerns optimizer ``i``."""
        key = self.opts[i] if self.opts else None
        for index in list(self._path(here))[1:]:
            event = self._event(index)
            if event is None or event.kind not in kinds:
                continue
            if event.kind in (e.UNSCALE, e.SCALER_STEP, e.STEP) and event.object != key:
                continue
            owners = event.facts.get("owners")
            if owners is not None and key not in owners:
                continue
            feeds = event.facts.get("feeds")
            if feeds is not None and key not in feeds:
                continue
            if raw and event.subject is not None:
                continue
            return index
        return here[0]

    def _clips(self, here: Here, i: int) -> list[int]:
        """The nodes that clipped the gradients of optimizer ``i`` since they were last unscaled, used or cleared."""
        key = self.opts[i]
        found: list[int] = []
        for index in list(self._path(here))[1:]:
            event = self._event(index)
            if event is None:
                continue
            owners = event.facts.get("owners")
            if event.kind in (e.UNSCALE, e.SCALER_STEP, e.STEP) and event.object == key:
                break
            if event.kind == e.ZERO_GRAD and (owners is None or key in owners):
                break
            if event.kind == e.CLIP and (owners is None or key in owners) and index not in found:
                found.append(index)
        return found or [here[0]]

    def _settle(self, label: str, index: int, i: int, here: Here) -> None:
        """Find the event to blame for a fault that was settled at node ``index``."""
        self.faulted = True
        if label in EACH_CLIP:
            for clip in self._clips(here, i):
                self._blame(label, clip, index, here)
            return
        blamed = index
        kinds = BLAMED.get(label)
        if kinds is not None:
            blamed = self._last(here, kinds, i, raw=label == "step@raw")
        if label == "zero@window" and self._before_the_loop(index, i, here):
            return  # what an earlier loop has left is cleared, not what this window has gathered
        if label == "update@pending":
            updating, stepping = self._event(blamed), self._event(index)
            if updating is not None and stepping is not None and updating.subject != stepping.subject:
                return  # another scaler's backward is not known to have reached what this one steps
        if label == "step@undivided":
            event = self._event(blamed)
            if event is not None and event.facts.get("vague"):
                label = "step@undivided-vague"
        self._blame(label, blamed, index, here)

    def _schedule(self, index: int, event: Event, state: State, here: Here) -> None:
        """A scheduler of which the source is read moves: beside the step that a scaler may skip, or inside a window."""
        i = self.index[event.object if event.object is not None else -1]
        opt, loops = state.opts[i], event.facts["loops"]
        if (opt.held or opt.inside) and opt.grads in a.PENDING:
            feeding = self._event(self._last(here, (e.BACKWARD,), i))
            if feeding is not None and feeding.facts.get("loops") == loops:
                self._blame("scheduler:micro-batch", index, index, here)
        elif opt.grads in (a.STEPPED, a.CLEAN) and not self.asks_scale:
            stepping = self._event(self._last(here, (e.SCALER_STEP,), i))
            if (
                stepping is not None
                and stepping.kind == e.SCALER_STEP
                and "framework" not in stepping.facts
                and stepping.facts.get("loops") == loops
                and (_beside(stepping.site, event.site) or _beside(event.site, stepping.site))
                and set(event.guards) <= set(stepping.guards)
            ):
                self._blame("scheduler:skipped", index, index, here)

    def _two_scalers(self, here: Here, i: int) -> bool:
        """Whether two scalers that were seen to be made have both scaled what feeds an optimizer for certain."""
        key = self.opts[i]
        scalers = set()
        for index in list(self._path(here))[1:]:
            event = self._event(index)
            if event is None or (event.kind == e.ZERO_GRAD and key in self._owners(event)):
                break
            if event.kind == e.BACKWARD and key in (event.facts.get("feeds") or ()):
                if event.subject is None or not self.program.things[event.subject].facts.get("constructed"):
                    return False
                scalers.add(event.subject)
            if len(scalers) > 1:
                return True
        return False

    def _before_the_loop(self, index: int, i: int, here: Here) -> bool:
        """Whether gradients are cleared outside of the loop in which the last backward ran."""
        zeroing = self._event(index)
        backward = self._event(self._last(here, (e.BACKWARD,), i, raw=False))
        if zeroing is None or backward is None or not backward.facts.get("loops"):
            return False
        return backward.facts["loops"][-1] not in zeroing.facts.get("loops", ())

    def _witness(self, label: str, here: Here, blamed: int, settled: int) -> list[Event]:
        """The events of the path that matter to a fault, in the order in which they happen."""
        kinds = WITNESS.get(label, ())
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
            if len(chosen) >= 6:
                break
            if index == blamed != settled and not any(k in kinds for k in (e.BACKWARD, e.AUTOCAST_ENTER)):
                break
            if kinds and event.kind == kinds[0] and len(chosen) > 1 and any(x is self._event(blamed) for x in chosen):
                break
        chosen.reverse()
        return chosen


def _averages(event: Event, state: State) -> bool:
    """Whether a backward averages the gradients over processes, as far as is known of the tests that decide it."""
    tests = event.facts.get("averaged")
    if tests is None or event.facts.get("apart"):
        return False
    known = {(key, bool(state.truth & (1 << key))) for key, _ in tests if state.known & (1 << key)}
    return not any((key, not truth) in known or (key, not truth) in event.guards for key, truth in tests)


def _beside(site: Site, other: Site) -> bool:
    """Whether the function in which a place lies holds another place too, or calls what holds it."""
    return any((each.function, each.caller) == (site.function, site.caller) for each in other.frames())


def _about(event: Event | None) -> int | None:
    return event.object if event is not None and event.kind in OPTIMIZER_KINDS else None


def _other(event: Event, about: set[int]) -> bool:
    """Whether an event is about another optimizer than those concerned."""
    key = _about(event)
    return bool(about) and key is not None and key not in about


#: Labels that blame each clip of the window.
EACH_CLIP = frozenset({"clip@scaled", "clip@partly"})
#: label -> kinds of the event to blame, where that is not the event that settles the fault.
BLAMED: dict[str, tuple[str, ...]] = {
    "step@raw": (e.BACKWARD,),
    "step@stepped": (e.SCALER_STEP,),
    "unscale@step-pending": (e.SCALER_STEP,),
    "end@stepped": (e.SCALER_STEP,),
    "update@pending": (e.UPDATE,),
    "new@used": (e.SCALER_NEW,),
    "backward@unscaled": (e.UNSCALE,),
    "unscale@window": (e.UNSCALE,),
    "step@unscaled-updated": (e.UPDATE,),
    "step@early": (e.UNSCALE,),
    "step@uneven": (e.BACKWARD,),
    "step@divided": (e.GRAD_DIVIDE,),
    "unscale@divided": (e.GRAD_DIVIDE,),
    "step@discarded": (e.ZERO_GRAD,),
    "step@undivided": (e.BACKWARD,),
    "step@undivided-vague": (e.BACKWARD,),
    "step@apart": (e.BACKWARD,),
    "backward@averaged": (e.BACKWARD,),
}

#: Faults between an event of one turn of a loop and one of a later turn.
SECOND_TURN = frozenset(
    {
        "step@undivided",
        "step@undivided-vague",
        "unscale@window",
        "zero@window",
        "step@stepped",
        "unscale@step-pending",
        "new@used",
        "backward@stale",
        "write@region-then-forward",
        "backward@averaged",
        "scheduler:micro-batch",
        "scheduler:skipped",
    }
)

#: label -> labels of the same cause, which say more where they blame the same event.
YIELDS_TO: dict[str, tuple[str, ...]] = {
    "backward@unscaled": ("unscale@window",),
    "unscale@unscaled": ("unscale@window", "backward@unscaled"),
    "end@stepped": ("step@stepped", "unscale@step-pending"),
    "unscale@step-pending": ("step@stepped",),
    "scheduler:skipped": ("scheduler:micro-batch",),
}

#: label -> kinds of events that the witness shows besides the blamed and the settling one; the first kind begins it.
WITNESS: dict[str, tuple[str, ...]] = {
    "clip@scaled": (e.BACKWARD,),
    "clip@partly": (e.UNSCALE, e.BACKWARD),
    "step@borrowed": (e.BACKWARD, e.UNSCALE, e.SCALER_STEP),
    "clip-nonfinite": (e.UNSCALE,),
    "edit@scaled": (e.BACKWARD,),
    "read@scaled": (e.BACKWARD,),
    "plain-step@scaled": (e.BACKWARD,),
    "plain-step@unscaled": (e.UNSCALE,),
    "plain-step@stepped": (e.SCALER_STEP,),
    "step@raw": (e.BACKWARD,),
    "step@uneven": (e.BACKWARD,),
    "step@divided": (e.BACKWARD,),
    "update@pending": (e.BACKWARD,),
    "update@window": (e.BACKWARD,),
    "unscale@window": (e.UNSCALE, e.BACKWARD),
    "step@early": (e.UNSCALE, e.BACKWARD),
    "backward@unscaled": (e.UNSCALE,),
    "unscale@unscaled": (e.UNSCALE,),
    "unscale@stepped": (e.SCALER_STEP,),
    "step@discarded": (e.BACKWARD,),
    "step@undivided": (e.BACKWARD,),
    "step@undivided-vague": (e.BACKWARD,),
    "step@apart": (e.BACKWARD,),
    "backward@averaged": (e.BACKWARD,),
    "zero@window": (e.BACKWARD,),
    "bce@region": (e.AUTOCAST_ENTER,),
    "backward@region": (e.AUTOCAST_ENTER,),
    "step@region": (e.AUTOCAST_ENTER,),
    "state@stepped": (e.SCALER_STEP,),
    "trace@cached-region": (e.AUTOCAST_ENTER,),
    "graphed@cached-region": (e.AUTOCAST_ENTER,),
    "graph@cached-region": (e.AUTOCAST_ENTER, e.FORWARD),
    "thread@region": (e.AUTOCAST_ENTER,),
    "replicas@region": (e.AUTOCAST_ENTER,),
    "write@region-then-forward": (e.AUTOCAST_ENTER,),
    "scheduler:skipped": (e.SCALER_STEP,),
    "scheduler:micro-batch": (e.BACKWARD,),
}

_DESCRIPTIONS = {
    e.AUTOCAST_ENTER: "autocast is entered",
    e.AUTOCAST_EXIT: "autocast is left",
    e.SCALER_NEW: "the scaler is constructed",
    e.OPTIMIZER_NEW: "the optimizer is constructed",
    e.UNSCALE: "the gradients are divided by the loss scale",
    e.RESTORE: "the gradients are divided by the loss scale",
    e.CLIP: "the gradients are clipped",
    e.GRAD_READ: "the gradients are read",
    e.GRAD_EDIT: "the gradients are edited",
    e.GRAD_DIVIDE: "the gradients are divided by the loss scale by hand",
    e.SCALER_STEP: "the scaler steps the optimizer",
    e.STEP: "the optimizer is stepped directly",
    e.UPDATE: "the loss scale is updated",
    e.ZERO_GRAD: "the gradients are zeroed",
    e.FORWARD: "the model runs forward",
    e.PARAM_WRITE: "parameters are written",
    e.CAPTURE: "the model is captured",
    e.THREAD: "another thread runs the model",
    e.SCHEDULER_STEP: "the learning rate moves on",
    e.SCALER_STATE: "the scaler's state is taken",
    e.SAVE: "the checkpoint is written",
    e.MODULE_CAST: "the model's parameters are cast",
    e.AGAIN: "the function is called again",
    e.END: "the program ends",
}


def describe(event: Event) -> str:
    """What an event did, in words."""
    if event.kind == e.BACKWARD:
        if event.subject is not None:
            return "the gradients become multiplied by the loss scale"
        return "gradients of an unscaled loss are added"
    return _DESCRIPTIONS.get(event.kind, event.kind)


def place(label: str, blamed: Site, partner: Site) -> Site:
    """Where to put a finding: at the blamed event, unless that lies in a helper which is right in itself.

    That is a helper in another file than the event that makes it wrong, or one that only reads.
    """
    mine, theirs = blamed.frames(), partner.frames()
    if label != "read@scaled":
        together = blamed.path != partner.path and mine[0] is theirs[0]
    else:
        together = (mine[0].path, mine[0].function) == (theirs[0].path, theirs[0].function)
    if not together:
        # Of a chain of calls that is too long, the outermost ones are not known.
        return blamed
    depth = 0
    while depth < len(mine) - 1 and depth < len(theirs) - 1 and mine[depth] is theirs[depth]:
        depth += 1
    return mine[depth]
