"""Judges a program: moves sets of states over its graphs and turns the faults of the automaton into findings.

No path is enumerated. A state is what the protocol remembers; every (node, state) pair is visited once, and the pair it
was first reached from is kept, so that the path to a fault can be shown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from . import automaton as a
from . import events as e
from .events import Event, Graph, Program, Site, Test
from .finding import Finding, Step
from .rules import LABELS, RULES

#: Pairs of (node, state) after which a graph is explored again with fewer tests remembered, or is given up.
LIMIT = 60_000
#: Autocast regions that are remembered at once.
DEPTH = 64
#: The instance of a context that stands where a region could, and opens none (``nullcontext()``).
NULL = -2

OPTIMIZER_KINDS = frozenset({e.OPTIMIZER_NEW, e.SCALER_STEP, e.UNSCALE, e.STEP, e.ZERO_GRAD})
#: Kinds after which a thing is known to be an optimizer; ``step`` alone could be a scheduler's.
ESTABLISHING = frozenset({e.OPTIMIZER_NEW, e.SCALER_STEP, e.UNSCALE, e.ZERO_GRAD})
#: Kinds of events that leave the state as it is.
STILL = frozenset(
    {
        e.AUTOCAST_NEW,
        e.SCOPE_LOST,
        e.DEPRECATED,
        e.SAVE,
        e.FILL,
        e.SCALE,
        e.MODULE_CAST,
        e.PENALTY,
        e.LOSS,
        e.FORWARD,
        e.AUTOGRAD_GRAD,
        e.GRAD_READ,
        e.SCALER_STATE,
    }
)
#: Those that move it, but seldom by what a test about them has decided.
MINOR = frozenset(
    {
        e.AUTOCAST_ENTER,
        e.AUTOCAST_EXIT,
        e.HANDOFF,
        e.PARAM_WRITE,
        e.OPTIMIZER_NEW,
        e.SCALER_NEW,
        e.SCALER_LOAD,
        e.LOOP_EXIT,
        e.AGAIN,
        e.END,
    }
)
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
#: Faults that only count when every path that reaches the place commits them.
ON_EVERY_PATH = frozenset({"step@discarded", "update@nothing"})


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


#: (node, state) pairs; the value is the pair it was reached from.
Trail = dict[tuple[int, State], tuple[int, State] | None]


def check(program: Program, select: frozenset[str] | None = None) -> list[Finding]:
    """All findings in a program, sorted; only of the rules in ``select`` where that is given."""
    found: dict[tuple[str, str, int, int], Finding] = {}

    def add(finding: Finding) -> None:
        if select is not None and finding.code not in select:
            return
        key = (finding.code, finding.site.path, finding.site.line, finding.site.column)
        known = found.get(key)
        if known is None or (finding.certain and not known.certain):
            found[key] = finding

    gave_up: list[Site] = []
    for graph in program.graphs:
        judge = _Judge(graph, program)
        for finding in judge.findings():
            add(finding)
        if judge.gave_up:
            entry = next((n.event.site for n in graph.nodes if n.event), None)
            if entry is not None:
                gave_up.append(entry)
        for node in graph.nodes:
            if node.event is not None:
                for finding in judge_event(node.event, program):
                    add(finding)
    for rule in RULES.values():
        if rule.whole is not None:
            for label, event, values, others in rule.whole(program):
                witness = tuple(Step(other.site, describe(other)) for other in others)
                add(_finding(label, event.site, [event, *others], values, witness))
    for site in gave_up:
        values = {"function": site.function} if site.function not in ("", "<module>") else {}
        add(_finding("source:too-many-paths", site, [], values, ()))
    unread = program.facts.get("unread")
    if unread is not None:
        add(_finding("source:too-long", unread, [], {"function": unread.function}, ()))
    return sorted(found.values(), key=Finding.order)


def judge_event(event: Event, program: Program) -> Iterator[Finding]:
    """Findings of the rules that judge one event by itself."""
    for rule in RULES.values():
        judge = rule.on.get(event.kind)
        if judge is None:
            continue
        for label, values in judge(event, program):
            yield _finding(label, event.site, [event], values, (), certain=not event.facts.get("possible"))


def _finding(
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
    message = _fill(fault.message, names)
    severity = values.get("severity") or fault.severity or rule.severity
    return Finding(rule.code, rule.name, severity, message, site, certain=certain, condition=condition, witness=witness)


class _Names(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return DEFAULT_NAMES.get(key, key)


def _fill(template: str, names: Mapping[str, str]) -> str:
    """The message with the user's names; a name that is not known is put in words, without the backticks."""
    for key, words in DEFAULT_NAMES.items():
        if key not in names:
            template = template.replace("`{" + key + "}`", words)
    return template.format_map(_Names(names))


class _Judge:
    """The judgement of one graph."""

    def __init__(self, graph: Graph, program: Program) -> None:
        self.graph = graph
        self.program = program
        self.gave_up = False
        self.trail: Trail = {}
        self.faults: dict[tuple[str, int], tuple[int, State, Blame]] = {}
        self.committed: dict[tuple[str, int, int], int] = {}
        self.visits: dict[int, int] = {}
        #: Window tests under which gradients of more than one backward are stepped.
        self.accumulates: set[int] = set()
        self._survey()

    # What the graph holds, before any state moves.

    def _survey(self) -> None:
        events = [node.event for node in self.graph.nodes if node.event is not None]
        established = {x.subject if x.kind == e.OPTIMIZER_NEW else x.object for x in events if x.kind in ESTABLISHING}
        for event in events:
            if event.kind == e.ZERO_GRAD:
                established.update(event.facts.get("owners") or ())
        established.discard(None)
        self.opts: list[int] = sorted(key for key in established if key is not None)
        self.index = {key: i for i, key in enumerate(self.opts)}
        self.scalers = sorted({x.subject for x in events if x.kind == e.SCALER_NEW and x.subject is not None})
        self.scaler_bit = {key: 1 << i for i, key in enumerate(self.scalers)}
        self.updated = {x.subject for x in events if x.kind == e.UPDATE}
        self.zeroed = {o for x in events if x.kind == e.ZERO_GRAD for o in self._owners(x)}
        self.handed = {o for x in events if x.kind == e.HANDOFF for o in x.facts.get("things", ())}
        self.windows = self._windows(events)
        self.kinds = {event.kind for event in events}
        self.live: list[int] = []

    def _may_fault(self) -> bool:
        """Whether the events of the graph can commit any fault of the automaton; most graphs need not be explored."""
        kinds = self.kinds
        if kinds & {e.SCALER_STEP, e.UNSCALE, e.UPDATE, e.SCALER_STATE}:
            return True
        if e.AUTOCAST_ENTER in kinds and kinds & {e.BACKWARD, e.STEP, e.LOSS, e.AUTOCAST_ENTER}:
            return True
        return (e.BACKWARD in kinds and (bool(self.windows) or e.STEP in kinds)) or e.LOSS in kinds

    def _windows(self, events: list[Event]) -> dict[int, bool]:
        """The tests that decide whether an iteration ends an accumulation window, and the truth that ends it."""
        everywhere: set[int] | None = None
        for event in events:
            if event.kind == e.BACKWARD:
                keys = {key for key, _ in event.guards}
                everywhere = keys if everywhere is None else everywhere & keys
        if everywhere is None:
            return {}
        return {
            key: truth
            for event in events
            if event.kind in (e.SCALER_STEP, e.STEP)
            for key, truth in event.guards
            if self.graph.tests[key].counts and key not in everywhere
        }

    def _boundaries(self) -> Iterator[Test]:
        """Window tests that are true for the first micro-batch already."""
        for key in self.windows:
            test = self.graph.tests[key]
            if test.off_by_one and self.windows[key] and key in self.accumulates:
                yield test

    def _live_tests(self, still: frozenset[str]) -> list[int]:
        """For each node, the tests that some way on from it may still ask; others need not be remembered."""
        nodes = self.graph.nodes
        live = [0] * len(nodes)
        before: list[list[int]] = [[] for _ in nodes]
        for i, node in enumerate(nodes):
            for target, _, _ in node.ways:
                before[target].append(i)
        worth = self._worth_remembering(still)
        windows = 0
        for key in self.windows:
            windows |= 1 << key
        work = deque(range(len(nodes) - 1, -1, -1))
        queued = [True] * len(nodes)
        while work:
            i = work.popleft()
            queued[i] = False
            node = nodes[i]
            bits = 0
            for target, key, _ in node.ways:
                bits |= live[target]
                if key >= 0:
                    bits |= 1 << key
                    for _, other, _ in self.graph.tests[key].implies:
                        bits |= 1 << other
            bits &= worth & ~node.forgets
            if node.event is not None and node.event.kind == e.BACKWARD:
                # Whether the window is open is asked of the tests known here.
                bits |= windows
            if bits != live[i]:
                live[i] = bits
                for previous in before[i]:
                    if not queued[previous]:
                        queued[previous] = True
                        work.append(previous)
        return live

    def _worth_remembering(self, still: frozenset[str]) -> int:
        """The tests (as a bit set) under which some event stands that moves the state."""
        bits = 0
        for test in self.graph.tests:
            if test.turn:
                bits |= 1 << test.key
        for node in self.graph.nodes:
            if node.event is not None and node.event.kind not in still:
                for key, _ in node.event.guards:
                    bits |= 1 << key
        return bits

    def _owners(self, event: Event) -> tuple[int, ...]:
        """Keys of the optimizers whose gradients an event is about; all of them where that is not known."""
        owners = event.facts.get("owners")
        if owners is None:
            return tuple(self.opts)
        return tuple(key for key in owners if key in self.index)

    # Moving the states.

    def findings(self) -> Iterator[Finding]:
        if self._may_fault():
            for still in (STILL, STILL | MINOR):
                self.live = self._live_tests(still)
                self._explore()
                if not self.gave_up:
                    break
        for test in self._boundaries():
            if test.site is not None:
                yield _finding("window:off-by-one", test.site, [], {"window": str(test.text)}, ())
        entered = {blame.settled for (label, _), (_, _, blame) in self.faults.items() if label == "backward@region"}
        for (label, _), (node, state, blame) in self.faults.items():
            if label == "step@region" and blame.settled in entered:
                continue
            if any((stronger, blame.blamed) in self.faults for stronger in YIELDS_TO.get(label, ())):
                continue
            finding = self._report(label, node, state, blame)
            if finding is not None:
                yield finding

    def _explore(self) -> None:
        self.gave_up = False
        for found in (self.trail, self.faults, self.committed, self.visits):
            found.clear()
        self.accumulates.clear()
        start = (0, State(0, 0, (), tuple(a.Opt() for _ in self.opts), 0, 0, -1))
        self.trail[start] = None
        work = deque([start])
        nodes = self.graph.nodes
        while work:
            if len(self.trail) > LIMIT:
                self.gave_up = True
                return
            here = work.popleft()
            index, state = here
            node = nodes[index]
            if node.event is not None:
                self.visits[index] = self.visits.get(index, 0) + 1
                after = self._apply(index, node.event, state, here)
            else:
                after = state
            if node.forgets:
                after = State(after.known & ~node.forgets, after.truth & ~node.forgets, *after[2:])
            for target, key, truth in node.ways:
                onward = after if key < 0 else self._assume(after, key, truth)
                if onward is None:
                    continue
                keep = self.live[target]
                if onward.known & ~keep:
                    onward = State(onward.known & keep, onward.truth & keep, *onward[2:])
                pair = (target, onward)
                if pair not in self.trail:
                    self.trail[pair] = here
                    work.append(pair)

    def _assume(self, state: State, key: int, truth: bool) -> State | None:
        """The state after a test came out as ``truth``, or None where it came out otherwise before."""
        bit = 1 << key
        if state.known & bit:
            if bool(state.truth & bit) != truth:
                return None
            known, value = state.known, state.truth
        else:
            known, value = state.known | bit, state.truth | bit if truth else state.truth
            for when, other, result in self.graph.tests[key].implies:
                if when != truth:
                    continue
                other_bit = 1 << other
                if known & other_bit:
                    if bool(value & other_bit) != result:
                        return None
                else:
                    known |= other_bit
                    value = value | other_bit if result else value
        opts = state.opts
        boundary = self.windows.get(key)
        if boundary is not None and boundary != truth:
            opts = tuple(a.move(opt, a.HOLD)[0] for opt in opts)
        return State(known, value, state.regions, opts, state.used, state.renewed, state.stale)

    def _blame(self, label: str, blamed: int, settled: int, here: tuple[int, State]) -> None:
        """Keep the first path that commits a fault, and count the states that do."""
        self.faults.setdefault((label, blamed), (*here, Blame(label, blamed, settled)))
        key = (label, blamed, settled)
        self.committed[key] = self.committed.get(key, 0) + 1

    def _apply(self, index: int, event: Event, state: State, here: tuple[int, State]) -> State:
        kind = event.kind
        if kind == e.AUTOCAST_ENTER:
            return self._enter(index, event, state, here)
        if kind == e.AUTOCAST_EXIT:
            regions = state.regions[: event.facts.get("depth", len(state.regions) - 1)]
            nested = any(region.instance != NULL for region in regions)
            return state._replace(regions=regions, stale=state.stale if nested else -1)
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
        if kind == e.SCALER_NEW:
            bit = self.scaler_bit.get(event.subject if event.subject is not None else -1, 0)
            return state._replace(renewed=state.renewed | bit) if state.used & bit else state
        if kind == e.SCALER_LOAD:
            bit = self.scaler_bit.get(event.subject if event.subject is not None else -1, 0)
            return state._replace(renewed=state.renewed & ~bit)
        if kind in (e.BACKWARD, e.SCALER_STEP, e.STEP, e.PARAM_WRITE):
            state = self._in_region(index, event, state, here)
        return self._optimizers(index, event, state, here)

    def _enter(self, index: int, event: Event, state: State, here: tuple[int, State]) -> State:
        facts = event.facts
        if facts.get("null"):
            outer = state.regions[-1] if state.regions else Region(NULL, False, "", "", True, index)
            return state._replace(regions=(*state.regions, outer._replace(instance=NULL)))
        instance = -1 if event.subject is None else event.subject
        if instance >= 0 and any(region.instance == instance for region in state.regions):
            self._blame("enter@entered", index, index, here)
        region = Region(instance, facts["enabled"], facts["device"], facts["dtype"], facts["cache"], index)
        return state._replace(regions=(*state.regions, region)) if len(state.regions) < DEPTH else state

    def _in_region(self, index: int, event: Event, state: State, here: tuple[int, State]) -> State:
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

    def _loss(self, index: int, event: Event, state: State, here: tuple[int, State]) -> None:
        inside = bool(state.regions) and state.regions[-1].enabled
        if inside and event.facts.get("function") == "binary_cross_entropy":
            device = state.regions[-1].device
            self._blame(
                "bce@region-cpu" if device in ("cpu", "mps") else "bce@region", index, state.regions[-1].entered, here
            )
        low = event.facts.get("low_precision")
        if low and not inside:
            self._blame("loss@outside-bf16" if low == "bfloat16" else "loss@outside", index, index, here)

    def _optimizers(self, index: int, event: Event, state: State, here: tuple[int, State]) -> State:
        """The state after an event that is about gradients, with the faults it commits."""
        kind = event.kind
        opts = list(state.opts)
        scaler = -1 if event.subject is None else event.subject
        used, renewed = state.used, state.renewed

        def move(i: int, name: str, **how: object) -> None:
            opts[i], faults = a.move(opts[i], name, **how)  # type: ignore[arg-type]
            for label in faults:
                facts = self.program.things[self.opts[i]].facts
                if label == "backward@stale":
                    known = facts.get("constructed") and not facts.get("hooked")
                    if not known or self.opts[i] in self.zeroed or self.handed:
                        continue
                if label == "plain-step@unscaled" and any(self.graph.tests[k].of_gradients for k, _ in event.guards):
                    continue
                if label == "step@undivided" and facts.get("divided"):
                    continue
                self._settle(label, index, i, here)

        if kind == e.BACKWARD:
            self._backward(event, opts, scaler, move, self._held(state))
        elif kind in (e.UNSCALE, e.SCALER_STEP) and event.object in self.index:
            i = self.index[event.object]
            bit = self.scaler_bit.get(scaler, 0)
            if kind == e.SCALER_STEP:
                if renewed & bit and opts[i].veteran:
                    self._settle("new@used", index, i, here)
                used, renewed = used | bit, renewed & ~bit
                self._step_counts(event, opts)
            move(i, a.UNSCALE if kind == e.UNSCALE else a.SCALER_STEP, by=scaler)
        elif kind == e.STEP and event.object in self.index:
            self._step_counts(event, opts)
            move(self.index[event.object], a.STEP)
        elif kind == e.UPDATE:
            self._update(event, opts, scaler, move)
        elif kind == e.CLIP:
            for i in self._clipped(event, opts):
                if event.facts.get("nonfinite_error") and opts[i].grads == a.UNSCALED:
                    self._settle("clip-nonfinite", index, i, here)
                if not event.facts.get("undone"):
                    move(i, a.READ if event.facts.get("measures_only") else a.CLIP)
        elif kind in (e.GRAD_READ, e.GRAD_EDIT, e.GRAD_DIVIDE):
            name = {e.GRAD_READ: a.READ, e.GRAD_EDIT: a.EDIT, e.GRAD_DIVIDE: a.DIVIDE}[kind]
            for i in self._clipped(event, opts) if not event.facts.get("undone") else ():
                move(i, name)
        elif kind == e.GRAD_NORMALISE:
            opts = [opt._replace(undivided=False) for opt in opts]
        elif kind == e.ZERO_GRAD:
            owners = self._owners(event)
            counted = any(self.graph.tests[key].counts for key, _ in event.guards)
            for key in owners:
                i = self.index[key]
                if counted:
                    # Zeroed on a schedule of its own, which is the window's.
                    opts[i] = opts[i]._replace(held=False)
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
            opts = [opt._replace(held=False, many=False) for opt in opts]
        elif kind == e.AGAIN:
            # Other code has run in between; only an open accumulation window is meant to last.
            opts = [opt if opt.held and opt.grads in a.PENDING else a.Opt() for opt in opts]
            used = renewed = 0
            state = state._replace(regions=(), stale=-1)
        elif kind == e.END:
            self._end(index, state, here)
        return state._replace(opts=tuple(opts), used=used, renewed=renewed)

    def _step_counts(self, event: Event, opts: list[a.Opt]) -> None:
        """Note the windows that a step ends."""
        if event.object is not None and opts[self.index[event.object]].many:
            self.accumulates.update(key for key, _ in event.guards if key in self.windows)

    def _held(self, state: State) -> bool:
        """Whether it is known that this iteration does not end the accumulation window."""
        for key, boundary in self.windows.items():
            bit = 1 << key
            if state.known & bit and bool(state.truth & bit) != boundary:
                return True
        return False

    def _backward(self, event: Event, opts: list[a.Opt], scaler: int, move: Callable[..., None], held: bool) -> None:
        feeds = event.facts.get("feeds")
        sure = len(opts) == 1
        divided = bool(event.facts.get("divided"))
        for i, key in enumerate(self.opts):
            if feeds is not None and key not in feeds:
                continue
            certain = sure or feeds is not None
            if event.facts.get("opaque"):
                move(i, a.HANDOFF)
            elif scaler >= 0:
                move(i, a.BACKWARD_SCALED if certain else a.MAYBE_SCALED, by=scaler, divided=divided, held=held)
            else:
                move(i, a.BACKWARD_RAW if certain else a.MAYBE_RAW, divided=divided, held=held)

    def _update(self, event: Event, opts: list[a.Opt], scaler: int, move: Callable[..., None]) -> None:
        mine = [i for i, opt in enumerate(opts) if opt.by in (scaler, -1)]
        if event.facts.get("new_scale"):
            for i in mine:
                opts[i] = opts[i]._replace(stage=a.READY)
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

    def _end(self, index: int, state: State, here: tuple[int, State]) -> None:
        for i, opt in enumerate(state.opts):
            thing = self.program.things[opt.by] if opt.by >= 0 else None
            if (
                opt.stage == a.STAGE_STEPPED
                and thing is not None
                and opt.by in self.scaler_bit
                and not thing.facts.get("shared")
                and opt.by not in self.updated
                and opt.by not in self.handed
            ):
                self._settle("end@stepped", index, i, here)

    # From a fault to a finding.

    def _path(self, here: tuple[int, State]) -> Iterator[tuple[int, State]]:
        """The pairs that led here, latest first."""
        pair: tuple[int, State] | None = here
        while pair is not None:
            yield pair
            pair = self.trail[pair]

    def _last(self, here: tuple[int, State], kinds: tuple[str, ...], i: int, *, raw: bool = False) -> int:
        """The latest node before ``here`` with an event of these kinds that concerns optimizer ``i``."""
        key = self.opts[i] if self.opts else None
        for index, _ in list(self._path(here))[1:]:
            event = self.graph.nodes[index].event
            if event is None or event.kind not in kinds:
                continue
            if event.kind in (e.UNSCALE, e.SCALER_STEP, e.STEP) and event.object != key:
                continue
            owners = event.facts.get("owners")
            if owners is not None and key not in owners:
                continue
            if raw and event.subject is not None:
                continue
            return index
        return here[0]

    def _settle(self, label: str, index: int, i: int, here: tuple[int, State]) -> None:
        """Find the event to blame for a fault that was settled at node ``index``."""
        blamed = index
        kinds = BLAMED.get(label)
        if kinds is not None:
            blamed = self._last(here, kinds, i, raw=label == "step@raw")
        self._blame(label, blamed, index, here)

    def _report(self, label: str, node: int, state: State, blame: Blame) -> Finding | None:
        if label in ON_EVERY_PATH and self.committed[label, blame.blamed, blame.settled] < self.visits[blame.settled]:
            return None
        nodes = self.graph.nodes
        blamed, settled = nodes[blame.blamed].event, nodes[blame.settled].event
        assert blamed is not None
        involved = [blamed]
        if settled is not None and settled is not blamed:
            involved.append(settled)
        path = self._witness(label, (node, state), blame)
        partner = settled if settled is not blamed else next((x for x in reversed(path) if x is not blamed), blamed)
        site = _place(label, blamed.site, partner.site if partner is not None else blamed.site)
        certain = self.committed[label, blame.blamed, blame.settled] >= self.visits.get(blame.settled, 1)
        if label in SECOND_TURN:
            # The first turn of a loop cannot commit these; what else may spare them is a test around the two events.
            certain = not any(key not in self.windows for x in involved for key, _ in x.guards)
        condition = "" if certain else self._condition(blamed)
        steps = tuple(Step(event.site, describe(event)) for event in path)
        names = [*involved, *reversed(path)]
        return _finding(label, site, names, {}, steps, certain=certain, condition=condition)

    def _condition(self, event: Event) -> str:
        words = []
        for key, truth in event.guards:
            text = str(self.graph.tests[key].text)
            if text:
                words.append(f"`{text}` is {'true' if truth else 'false'}")
        return "when " + " and ".join(words[-2:]) if words else ""

    def _witness(self, label: str, here: tuple[int, State], blame: Blame) -> list[Event]:
        """The events of the path that matter to a fault, in the order in which they happen."""
        kinds = WITNESS.get(label, ())
        chosen: list[Event] = []
        last = None
        about = {x for n in (blame.blamed, blame.settled) if (x := _about(self.graph.nodes[n].event)) is not None}
        for index, _ in self._path(here):
            event = self.graph.nodes[index].event
            if event is None or event is last:
                continue
            if index in (blame.blamed, blame.settled) or (event.kind in kinds and not _other(event, about)):
                chosen.append(event)
                last = event
            if len(chosen) >= 6:
                break
            if index == blame.blamed and not any(k in kinds for k in (e.BACKWARD, e.AUTOCAST_ENTER)):
                break
            if (
                kinds
                and event.kind == kinds[0]
                and len(chosen) > 1
                and any(x is self.graph.nodes[blame.blamed].event for x in chosen)
            ):
                break
        chosen.reverse()
        return chosen


def _about(event: Event | None) -> int | None:
    return event.object if event is not None and event.kind in OPTIMIZER_KINDS else None


def _other(event: Event, about: set[int]) -> bool:
    """Whether an event is about another optimizer than those concerned."""
    key = _about(event)
    return bool(about) and key is not None and key not in about


#: label -> kinds of the event to blame, where that is not the event that settles the fault.
BLAMED: dict[str, tuple[str, ...]] = {
    "clip@scaled": (e.CLIP,),
    "step@raw": (e.BACKWARD,),
    "step@stepped": (e.SCALER_STEP,),
    "unscale@step-pending": (e.SCALER_STEP,),
    "end@stepped": (e.SCALER_STEP,),
    "update@pending": (e.UPDATE,),
    "new@used": (e.SCALER_NEW,),
    "backward@unscaled": (e.UNSCALE,),
    "unscale@window": (e.UNSCALE,),
    "step@unscaled-updated": (e.UPDATE,),
    "step@divided": (e.GRAD_DIVIDE,),
    "unscale@divided": (e.GRAD_DIVIDE,),
    "step@discarded": (e.ZERO_GRAD,),
    "step@undivided": (e.BACKWARD,),
}

#: Faults between an event of one turn of a loop and one of a later turn.
SECOND_TURN = frozenset(
    {
        "step@undivided",
        "unscale@window",
        "zero@window",
        "step@stepped",
        "unscale@step-pending",
        "new@used",
        "backward@stale",
        "write@region-then-forward",
    }
)

#: label -> labels of the same cause, which say more where they blame the same event.
YIELDS_TO: dict[str, tuple[str, ...]] = {
    "backward@unscaled": ("unscale@window",),
    "unscale@unscaled": ("unscale@window", "backward@unscaled"),
    "end@stepped": ("step@stepped", "unscale@step-pending"),
    "unscale@step-pending": ("step@stepped",),
}

#: label -> kinds of events that the witness shows besides the blamed and the settling one; the first kind begins it.
WITNESS: dict[str, tuple[str, ...]] = {
    "clip@scaled": (e.BACKWARD,),
    "clip-nonfinite": (e.UNSCALE,),
    "edit@scaled": (e.BACKWARD,),
    "read@scaled": (e.BACKWARD,),
    "plain-step@scaled": (e.BACKWARD,),
    "plain-step@unscaled": (e.UNSCALE,),
    "plain-step@stepped": (e.SCALER_STEP,),
    "step@raw": (e.BACKWARD,),
    "step@divided": (e.BACKWARD,),
    "update@pending": (e.BACKWARD,),
    "update@window": (e.BACKWARD,),
    "unscale@window": (e.UNSCALE, e.BACKWARD),
    "backward@unscaled": (e.UNSCALE,),
    "unscale@unscaled": (e.UNSCALE,),
    "unscale@stepped": (e.SCALER_STEP,),
    "step@discarded": (e.BACKWARD,),
    "step@undivided": (e.BACKWARD,),
    "zero@window": (e.BACKWARD,),
    "bce@region": (e.AUTOCAST_ENTER,),
    "backward@region": (e.AUTOCAST_ENTER,),
    "step@region": (e.AUTOCAST_ENTER,),
    "state@stepped": (e.SCALER_STEP,),
    "write@region-then-forward": (e.AUTOCAST_ENTER,),
}

_DESCRIPTIONS = {
    e.AUTOCAST_ENTER: "autocast is entered",
    e.AUTOCAST_EXIT: "autocast is left",
    e.SCALER_NEW: "the scaler is constructed",
    e.OPTIMIZER_NEW: "the optimizer is constructed",
    e.UNSCALE: "the gradients are divided by the loss scale",
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


def _place(label: str, blamed: Site, partner: Site) -> Site:
    """Where to put a finding: at the blamed event, unless that lies in a helper which is right in itself.

    That is a helper in another file than the event that makes it wrong, or one that only reads.
    """
    mine, theirs = blamed.frames(), partner.frames()
    if blamed.path == partner.path and label != "read@scaled":
        return blamed
    depth = 0
    while depth < len(mine) - 1 and depth < len(theirs) - 1 and mine[depth] is theirs[depth]:
        depth += 1
    return mine[depth]
