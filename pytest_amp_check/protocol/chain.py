"""Judges a run as it happens: one state along a chain of events, in bounded memory.

A run is a graph with one path, so what :mod:`.check` finds by exploring is found here by going along. What is found in
a run is certain: it has happened.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from . import automaton as a
from . import events as e
from .effects import apply
from .events import Event, Graph, Node, Program, Site
from .finding import Finding, Step
from .frameworks import FRAMEWORKS
from .judge import Here, Judge, State
from .report import advised, alone, describe, make_finding, place, whole
from .rules import ALONE, LABELS
from .selection import shows

#: Latest events that are kept, so that the path to a fault can be shown.
RECENT = 512
#: Pending events after which it is time to settle: what the first iteration leaves open, the next ones tell.
PENDING = 256
#: Different events (kind, place, things) that are kept for the rules that judge a run as a whole.
DISTINCT = 4096

#: Events that may be the first of a scaler, those that a scaler is visited by, and steps of an optimizer. Each event is
#: looked up in them: they stand here so that they are made once.
_OF_SCALERS = (e.SCALE, e.SCALER_STEP, e.UNSCALE, e.UPDATE, e.BACKWARD)
_VISITS = (e.SCALER_STEP, e.UNSCALE, e.UPDATE)
_STEPS = (e.SCALER_STEP, e.STEP)

#: Kind, place and things of an event: what makes it the same event again.
Identity = tuple[str, int, int | None, int | None]
#: The same in the same state, with the facts that tell.
Repeat = tuple[Identity, State, tuple[object, ...]]


class Chain(Judge):
    """The judgement of one run. Events are added in the order in which they happen.

    Memory is bounded by the number of different places in the program, not by the length of the run.
    """

    exact = True

    def __init__(
        self,
        program: Program,
        own: Callable[[Site], Site] = lambda site: site,
        framework: Callable[[Site], str] = lambda site: "",
    ) -> None:
        super().__init__(program, [])
        #: The place where a finding stands that is made at another: the program's own, where a library called torch.
        self.own = own
        #: The framework whose code calls torch at a place, "" where that is the program's own.
        self.framework = framework
        self.state = State(0, 0, (), (), 0, 0, -1)
        self.count = 0
        self.recent: deque[Event] = deque(maxlen=RECENT)
        #: Events that open regions and the latest stale write refer to, however long ago they were.
        self.pinned: dict[int, Event] = {}
        self.pending: list[Event] = []
        self.distinct: dict[Identity, Event] = {}
        self.found: dict[tuple[str, Identity], Finding] = {}
        #: How often faults that count only when they are committed each time were, and the event that settles them.
        self.often: dict[tuple[str, Identity], tuple[int, Identity]] = {}
        self.visits: dict[Identity, int] = {}
        self.judged: dict[tuple[str, Identity], Finding] = {}
        #: The optimizer whose fault is being settled.
        self.concerned: int | None = None
        #: For each optimizer, the places of the backwards that fed it since it was stepped.
        self.fed_at: dict[int, set[Site]] = {}
        #: Findings of gradients that were not cleared -> the optimizers. Clearing them later takes the findings back.
        self.uncleared: dict[tuple[str, Identity], set[int]] = {}
        #: Where events have led that came near no fault. A loop turns in a few states: its events are looked up here.
        self.onward: dict[Repeat, State] = {}

    def add(self, event: Event) -> None:
        """Take note of an event. Its facts may still be completed until the chain is settled."""
        self.pending.append(event)

    def settle(self) -> None:
        """Judge what is pending; its facts are final now."""
        pending, self.pending = self.pending, []
        for event in pending:
            self._establish(event)
        for event in pending:
            self._go(event)

    def close(self, *, broken: bool = False) -> None:
        """The run has ended; one that an exception has broken off leaves nothing undone."""
        self.settle()
        if broken:
            for key in self.uncleared:
                self.found.pop(key, None)
        last = self.recent[-1] if self.recent else None
        if last is not None and not broken:
            self._go(Event(e.END, last.site))

    def adopt(self, optimizer: int, event: Event) -> None:
        """An optimizer is found that a backward has fed which is settled already."""
        self._establish(Event(e.STEP, event.site, None, optimizer))
        i = self.index[optimizer]
        opts = list(self.state.opts)
        if opts[i] == a.Opt():
            kind = a.BACKWARD_RAW if event.subject is None else a.BACKWARD_SCALED
            opts[i], _ = a.move(opts[i], kind, by=-1 if event.subject is None else event.subject)
            self.state = self.state._replace(opts=tuple(opts))

    def forget(self, optimizer: int) -> None:
        """An optimizer is gone."""
        self.settle()
        i = self.index.get(optimizer)
        if i is None:
            return
        here = (self.count - 1,)
        if self.left_stepped(self.state.opts[i]):
            self.commit("end@stepped", here[0], i, here)
        del self.opts[i]
        self.index = {key: i for i, key in enumerate(self.opts)}
        self.state = self.state._replace(opts=self.state.opts[:i] + self.state.opts[i + 1 :])
        for known in (self.zeroed, self.handed):
            known.discard(optimizer)
        self.fed_at.pop(optimizer, None)
        self.onward.clear()

    def findings(self, select: frozenset[str] | None = None) -> list[Finding]:
        """All findings so far, sorted; only of the rules in ``select`` where that is given."""
        self.settle()
        found: dict[tuple[str, str, int, int], Finding] = {}
        labels = {label for label, _ in self.found}
        for (label, identity), finding in self.found.items():
            fault = LABELS[label][1]
            if not labels.isdisjoint(fault.yields_where_settled):
                continue
            if fault.every_path:
                times, settled = self.often[label, identity]
                if times < self.visits[settled]:
                    continue
            if any((stronger, identity) in self.found for stronger in fault.yields_to):
                continue
            if fault.needs_update and identity[2] not in self.updated:
                continue
            found.setdefault(_place_of(finding), finding)
        for finding in (*self.judged.values(), *self._whole()):
            follows = LABELS[finding.label][1].follows
            if not follows or not any(code.startswith(follows) for code, *_ in found):
                found.setdefault(_place_of(finding), finding)
        chosen = [f for f in found.values() if select is None or shows(select, f)]
        return sorted(chosen, key=Finding.order)

    def judge(self, event: Event) -> None:
        """Judge one event by itself, once more: its facts have been completed after it was settled."""
        for label, values in alone(event, self.program):
            key = (label, _identity(event))
            self.committed(key, None)
            if key not in self.judged:
                witness = tuple(Step(site, text) for site, text in event.facts.get("witness", ()))
                self.judged[key] = make_finding(label, self.own(event.site), [event], values, witness)

    # One event after the other.

    def _establish(self, event: Event) -> None:
        """Take note of what an event is about, before any of those that are pending is judged."""
        if event.subject is not None and event.kind in _OF_SCALERS:
            self.scaler_bit.setdefault(event.subject, 0)
        key = event.subject if event.kind == e.OPTIMIZER_NEW else event.object
        if key is not None and event.kind.optimizer and key not in self.index:
            self.index[key] = len(self.opts)
            self.opts.append(key)
            self.state = self.state._replace(opts=(*self.state.opts, a.Opt()))

    def _go(self, event: Event) -> None:
        index = self.count
        self.count += 1
        self.recent.append(event)
        identity = _identity(event)
        self._note(event, identity)
        if event.kind in ALONE:
            self.judge(event)
        repeat = self._repeat(event, identity)
        onward = self.onward.get(repeat) if repeat is not None else None
        if onward is not None:
            self.state = onward
            return
        if event.kind == e.AUTOCAST_ENTER:
            self.pinned[index] = event
        self.faulted = False
        self.state = apply(self, index, event, self.state, (index,))
        if repeat is not None and not self.faulted:
            if len(self.onward) >= DISTINCT:
                self.onward.clear()
            self.onward[repeat] = self.state
        if not self.state.regions:
            self.pinned.clear()
        elif self.state.stale == index:
            self.pinned[index] = event

    def _note(self, event: Event, identity: Identity) -> None:
        """Take note of what has happened, in whatever state."""
        if identity not in self.distinct and len(self.distinct) < DISTINCT:
            self.distinct[identity] = event
        if event.kind in _VISITS:
            self.visits[identity] = self.visits.get(identity, 0) + 1
        if event.kind in _STEPS and event.object is not None:
            self.fed_at.pop(event.object, None)
        if event.kind == e.UPDATE:
            self.updated.add(event.subject)
        elif event.kind == e.ZERO_GRAD:
            self.zeroed.update(self.owners(event))
            for key, owners in list(self.uncleared.items()):
                if not event.facts.get("guessed") and not owners.isdisjoint(self.owners(event)):
                    self.uncleared.pop(key)
                    self.found.pop(key, None)

    def _repeat(self, event: Event, identity: Identity) -> Repeat | None:
        """What decides where an event leads; None where more does."""
        names = event.kind.tells
        state = self.state
        if names is None or state.regions:
            return None
        facts = event.facts
        if event.kind == e.BACKWARD:
            for key in facts.get("feeds") or ():
                if event.site not in self.fed_at.get(key, ()):
                    return None
        elif event.object is not None and self.program.things[event.object].facts.get("shares"):
            return None
        told: list[object] = []
        for name in names:
            fact = facts.get(name)
            told.append(frozenset(fact) if isinstance(fact, set) else fact)
        return identity, state, tuple(told)

    def fed_before(self, event: Event) -> list[int]:
        again = []
        for key in event.facts.get("feeds") or ():
            i = self.index.get(key)
            if i is None:
                continue
            places = self.fed_at.setdefault(key, set())
            if event.site in places:
                again.append(i)
            places.add(event.site)
        return again

    # From a fault to a finding.

    def event(self, index: int) -> Event | None:
        known = self.pinned.get(index)
        if known is not None:
            return known
        offset = index - (self.count - len(self.recent))
        return self.recent[offset] if offset >= 0 else None

    def path(self, here: Here) -> Iterator[int]:
        first = self.count - len(self.recent)
        return iter(range(here[0], first - 1, -1))

    def committed(self, fault: tuple[str, Identity], optimizer: int | None) -> None:
        """A fault was committed, for the first time or again, on an optimizer's gradients where that is known."""

    def commit(self, label: str, index: int, i: int, here: Here, *, sure: bool = True) -> None:
        self.concerned = self.opts[i] if self.opts else None
        super().commit(label, index, i, here, sure=sure)
        self.concerned = None
        event = self.event(index)
        if label == "backward@stale" and event is not None:
            self.uncleared.setdefault((label, _identity(event)), set()).add(self.opts[i])

    def blame(self, label: str, blamed: int, settled: int, here: Here, *, sure: bool = True) -> None:
        event, partner = self.event(blamed), self.event(settled)
        if event is None or partner is None:
            return
        fault, key = LABELS[label][1], (label, _identity(event))
        self.committed(key, self.concerned)
        if fault.every_path:
            self.often[key] = (self.often.get(key, (0,))[0] + 1, _identity(partner))
        if key in self.found:
            return
        path = self.witness(label, here, blamed, settled)
        involved = [event] if partner is event else [event, partner]
        other = partner if partner is not event else next((x for x in reversed(path) if x is not event), event)
        site = self.own(place(event.site, other.site, reads=fault.reads))
        steps = tuple(Step(x.site, describe(x)) for x in path)
        by = next(filter(None, (self.framework(x.site) for x in involved)), "")
        if by and label in FRAMEWORKS[by].ordained and self.framework(partner.site):
            return
        said, values = advised(label, by)
        self.found[key] = make_finding(said, site, [*involved, *reversed(path)], values, steps)

    def _whole(self) -> Iterator[Finding]:
        """Findings of the rules that judge a run as a whole."""
        graph = Graph("run")
        for event in self.distinct.values():
            if graph.nodes:
                graph.nodes[-1].ways.append((len(graph.nodes), -1, True))
            graph.nodes.append(Node(event))
        seen = Program()
        seen.graphs, seen.things, seen.facts = [graph], self.program.things, self.program.facts
        for label, event, values, others in whole(seen):
            witness = tuple(Step(other.site, describe(other)) for other in others)
            yield make_finding(label, self.own(event.site), [event, *others], values, witness)


def _identity(event: Event) -> Identity:
    # Sites are kept: the same place of a run is the same object.
    return (event.kind, id(event.site), event.subject, event.object)


def _place_of(finding: Finding) -> tuple[str, str, int, int]:
    return (finding.code, finding.site.path, finding.site.line, finding.site.column)
