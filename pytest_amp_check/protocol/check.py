"""Judges a program: moves sets of states over its graphs and turns the faults of the automaton into findings.

No path is enumerated. A state is what the protocol remembers; every (node, state) pair is visited once, and the pair it
was first reached from is kept, so that the path to a fault can be shown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from . import automaton as a
from . import events as e
from .effects import apply
from .events import Event, Graph, Kind, Node, Program, Site, Test
from .finding import Finding, Step, merge
from .judge import Blame, Here, Judge, Region, State
from .report import describe, judge_event, make_finding, of_framework, place, whole
from .rules import LABELS
from .words import Denied

__all__ = ["check", "judge_event", "merge"]

#: Pairs of (node, state) after which a graph is explored again with less remembered. Where nothing is, and states are
#: joined, there is no limit: what is met at a node can only lose what it tells.
LIMIT = 40_000
#: Optimizers up to which that many are gone through. With more of them each takes longer, and there are more to come.
SEVERAL = 8
#: How many tests are remembered where all of them are too many, and states are joined: the first that fits.
WIDER = (8, 4, 2, 0)
#: Nodes of one graph that are gone through again for its faults one by one, in which the work grows with the square of
#: the code. They take some ten seconds; a function with 400 faults under 1,200 conditions has as many.
MOST_SPENT = 3_000_000
#: Nodes that the events of one graph may look back at in one exploration, which take some five seconds.
MOST_LOOKED = 10_000_000
#: States of a place from which on they are joined.
JOINED = 4

#: Places, with the one that each was reached from. A place is a node, the tests that are known there, which of these
#: came out as true (both bit sets), and the number of what else is known.
Trail = dict[Here, "Here | None"]
#: A state without its tests.
Core = tuple[tuple[Region, ...], tuple[a.Opt, ...], int, int, int]
#: What a way asks: the test and the answer, the tests that are true and that are false then (bit sets), and whether the
#: answer moves the state.
_Asking = tuple[int, bool, int, int, bool]
#: A way on: where it leads, the test that it asks (a bit set), what it asks, and the tests that are remembered from
#: there on.
_Way = tuple[int, int, "_Asking | None", int]


#: A finding, with the path and line of the function whose reading came upon it.
Found = tuple[Finding, tuple[str, int]]


def check(program: Program, select: frozenset[str] | None = None) -> list[Finding]:
    """All findings in a program, sorted; only of the rules in ``select`` where that is given."""
    kept: dict[tuple[str, str, int, int], Finding] = {}
    found = [*_in_graphs(program)]
    # What is saved of a scaler that is made anew all the time is lost all the same: that is one mistake, not two.
    remade = (finding.names for finding, _ in found if finding.label == "new@used")
    program.facts["remade"] = {names.get("scaler", "the scaler") for names in remade}
    for finding, entry in (*found, *_in_whole(program), *_not_read(program)):
        if select is None or finding.code in select:
            finding.entries[entry] = finding.calls
            merge(kept, finding)
    return sorted(kept.values(), key=Finding.order)


def in_graphs(program: Program) -> list[Finding]:
    """Return what the functions of a program do wrong that no caller of theirs can put right."""
    kept: dict[tuple[str, str, int, int], Finding] = {}
    for graph in program.graphs:
        for finding in _Judge(graph, program, knows_callers=False).findings():
            finding.entries[graph.entry] = finding.calls
            merge(kept, finding)
    return sorted(kept.values(), key=Finding.order)


def _in_graphs(program: Program) -> Iterator[Found]:
    """What each function does wrong, and each of its events by itself."""
    for graph in program.graphs:
        judge = _Judge(graph, program)
        for finding in judge.findings():
            yield finding, graph.entry
        graph.joined = judge.widened
        if judge.exceeded:
            path, line = graph.entry
            program.facts.setdefault("unread", Site(path, line or 1, function=graph.name or "<module>"))
        for node in graph.nodes:
            if node.event is not None:
                for finding in judge_event(node.event, program):
                    yield finding, graph.entry


def _in_whole(program: Program) -> Iterator[Found]:
    """What takes the whole program to be seen, for each function that holds the event to blame."""
    for label, event, values, others in whole(program):
        witness = tuple(Step(other.site, describe(other)) for other in others)
        certain = not LABELS[label][1].supposed
        finding = make_finding(label, event.site, [event, *others], values, witness, certain=certain)
        for graph in program.graphs:
            if any(node.event is event for node in graph.nodes):
                yield finding, graph.entry


def _not_read(program: Program) -> Iterator[Found]:
    unread = program.facts.get("unread")
    if unread is not None:
        finding = make_finding("source:too-long", unread, [], {"function": unread.function}, ())
        yield finding, (unread.path, 0)


def _never_used(events: Sequence[Event]) -> set[int | None]:
    """Return the optimizers that events only construct, load or save, if another optimizer is stepped.

    Factories construct many optimizers of the same parameters, of which a script steps one. With each of them in a
    state, the states of a script soon exceed the budget.
    """
    if not any(event.kind in (e.SCALER_STEP, e.STEP) for event in events):
        return set()
    constructed: set[int | None] = set()
    used: set[int | None] = set()
    owners: list[tuple[int, ...]] = []
    for event in events:
        if event.kind == e.OPTIMIZER_NEW:
            constructed.add(event.subject)
        elif event.kind == e.HANDOFF:
            used.update(event.facts.get("given", ()))
        elif event.kind not in (e.OPTIMIZER_LOAD, e.SAVE):
            used |= {event.subject, event.object}
            owners.append(event.facts.get("owners") or ())
    for each in owners:
        # Gradients that a used optimizer has, too, are that one's.
        if used.isdisjoint(each):
            used.update(each)
    return constructed - used


def _exclude(some: set[tuple[int, bool]], others: set[tuple[int, bool]]) -> bool:
    """Whether two places stand under opposite truths of a test."""
    return any((key, not truth) in others for key, truth in some)


class _Cores:
    """What states hold besides tests, by number: numbers are compared, and found again, much faster."""

    __slots__ = ("_common", "_numbers", "moved", "of", "past")

    def __init__(self, start: Core) -> None:
        self.of = [start]
        self._numbers = {start: 0}
        self._common: dict[tuple[int, int], int] = {}
        #: What becomes of one where a test comes out as true or false.
        self.past: dict[tuple[int, int, bool], int] = {}
        #: What becomes of one at an event, with the tests that the event may ask and their truth.
        self.moved: dict[tuple[int, int, int, int], int] = {}

    def number(self, core: Core) -> int:
        known = self._numbers.get(core)
        if known is None:
            known = self._numbers[core] = len(self.of)
            self.of.append(core)
        return known

    def joined(self, one: int, other: int) -> int:
        """What two of them have in common; of what differs nothing is known."""
        common = self._common.get((one, other))
        if common is None:
            regions, opts, used, renewed, stale = self.of[one]
            _, others, also_used, also_renewed, also_stale = self.of[other]
            opts = tuple(a.joined(mine, theirs) for mine, theirs in zip(opts, others, strict=True))
            common = self._common[one, other] = self.number(
                (regions, opts, used & also_used, renewed & also_renewed, stale if stale == also_stale else -1)
            )
        return common


class _Judge(Judge):
    """The judgement of one graph.

    ``knows_callers`` is False if other code calls the function of the graph. Then a violation is not reported that a
    call elsewhere mends, or that takes two flags of which a caller may know that they agree.
    """

    def __init__(self, graph: Graph, program: Program, *, knows_callers: bool = True) -> None:
        super().__init__(program, graph.tests)
        self.graph = graph
        self.knows_callers = knows_callers
        self._short: list[list[tuple[int, int, bool]]] | None = None
        self.gave_up = False
        #: Nodes that were gone through for single faults, and whether some fault was left out for want of more.
        self.spent = 0
        self.exceeded = False
        #: Nodes that events of one exploration have looked back at.
        self.looked = 0
        #: Whether not all ways were gone with all that is known on them.
        self.widened = False
        self.trail: Trail = {}
        self.faults: dict[tuple[str, int], tuple[Here, Blame]] = {}
        self.committed: dict[tuple[str, int, int], int] = {}
        #: Of these, those that something excuses which cannot be seen.
        self.doubtful: set[tuple[str, int, int]] = set()
        #: What tests that came out in some way imply.
        self.implied: dict[tuple[int, bool], tuple[int, int]] = {}
        #: In how many states each node was met, and in how many of them no backward had run before.
        self.visits: list[int] = []
        self.idle: list[int] = []
        #: Whether an event has looked back along its path, or has come upon a fault: it may do else on another path.
        self.traced = False
        self._survey()

    def event(self, index: int) -> Event | None:
        return self.graph.nodes[index].event

    def unscaled_under(self, i: int) -> Iterator[tuple[int, bool]]:
        for node in self.graph.nodes:
            if node.event is not None and node.event.kind == e.UNSCALE and node.event.object == self.opts[i]:
                yield from node.event.guards

    def fed_before(self, event: Event) -> tuple[int, ...]:
        return ()  # which turn of a loop it is, the graph does not tell

    def _survey(self) -> None:
        events = [node.event for node in self.graph.nodes if node.event is not None]
        established = {x.subject if x.kind == e.OPTIMIZER_NEW else x.object for x in events if x.kind.establishes}
        for event in events:
            if event.kind == e.ZERO_GRAD:
                established.update(event.facts.get("owners") or ())
        self.unused = _never_used(events)
        established -= self.unused
        self.opts: list[int] = sorted(key for key in established if key is not None)
        self.index = {key: i for i, key in enumerate(self.opts)}
        self.scalers = sorted({x.subject for x in events if x.kind == e.SCALER_NEW and x.subject is not None})
        self.scaler_bit = {key: 1 << i for i, key in enumerate(self.scalers)}
        self.updated = {x.subject for x in events if x.kind == e.UPDATE}
        changing = self.varying = self._changing()
        for event in events:
            if event.kind == e.ZERO_GRAD:
                lasting = frozenset((key, truth) for key, truth in event.guards if not changing >> key & 1)
                for key in self.owners(event):
                    self.clearing.setdefault(key, []).append((event.facts.get("loops", ()), lasting))
        self.zeroed = set(self.clearing)
        self.stepped = {x.object for x in events if x.kind in (e.SCALER_STEP, e.STEP) and x.object is not None}
        self.given = {key for x in events if x.kind == e.HANDOFF for key in x.facts.get("given", ())}
        for event in events:
            if event.kind == e.SCALER_STEP and event.object is not None:
                self.stepped_under.setdefault(event.object, []).append(frozenset(event.guards))
            if event.kind in (e.SCALER_STEP, e.UNSCALE) and event.object in self.index:
                self.serves.setdefault(event.subject, set()).add(self.index[event.object])
            if event.kind == e.HANDOFF:
                things = event.facts.get("things", ())
                self.handed.update(things)
                for matter in event.facts.get("about", e.MATTERS):
                    self.spoken[matter].update(things)
        self.sole = self._sole(events)
        for event in events:
            if event.kind == e.RESTORE:
                for key in self.owners(event):
                    self.restored.setdefault(key, []).append(frozenset(event.guards))
        self.clears_some = any(x.kind == e.ZERO_GRAD and x.facts.get("owners") == () for x in events)
        self.windows = self._windows(events)
        asked = {key for x in events if x.kind == e.BACKWARD for key, _ in x.guards}
        self.flags = self._flags(events, asked)
        #: Tests beside which another keeps the step from a loop's first turn.
        self.later = {
            key
            for x in events
            if x.kind in (e.SCALER_STEP, e.STEP) and any(self.graph.tests[k].later is truth for k, truth in x.guards)
            for key, _ in x.guards
        }
        self.kinds = {event.kind for event in events}
        asked_of = {key for node in self.graph.nodes for _, key, _ in node.ways if key >= 0}
        self.asks_scale = any(self.graph.tests[key].of_scale for key in asked_of)
        #: Whether some loss is scaled unevenly, on whatever path.
        self.uneven = any(event.facts.get("twice") or event.facts.get("uneven") for event in events)
        self.live: list[int] = []

    def _sole(self, events: list[Event]) -> frozenset[int]:
        """The optimizer that is stepped, or those of which a test that keeps its truth lets only one be stepped."""
        changing = self._changing()
        steps: dict[int, list[set[tuple[int, bool]]]] = {}
        for event in events:
            if event.kind in (e.SCALER_STEP, e.STEP) and event.object in self.index:
                lasting = {(key, truth) for key, truth in event.guards if not changing >> key & 1}
                steps.setdefault(self.index[event.object], []).append(lasting)
        for one, mine in steps.items():
            for other, theirs in steps.items():
                if other > one and not all(_exclude(here, there) for here in mine for there in theirs):
                    return frozenset()
        return frozenset(steps)

    def _changing(self) -> int:
        """The tests (as a bit set) that may come out else when they are asked again."""
        changing = 0
        for node in self.graph.nodes:
            changing |= node.forgets
        return changing

    def _may_fault(self) -> bool:
        """Whether the events of the graph can commit any fault of the automaton; most graphs need not be explored."""
        if self.uneven or any(kind.faults for kind in self.kinds):
            return True
        return e.BACKWARD in self.kinds and (bool(self.windows) or e.STEP in self.kinds)

    def _windows(self, events: list[Event]) -> dict[int, bool]:
        """The tests that decide whether an iteration ends an accumulation window, and the truth that ends it."""
        everywhere: set[tuple[int, bool]] | None = None
        for event in events:
            if event.kind == e.BACKWARD:
                guards = set(event.guards)
                everywhere = guards if everywhere is None else everywhere & guards
        if everywhere is None:
            return {}
        windows: dict[int, bool] = {}
        for event in events:
            if event.kind in (e.SCALER_STEP, e.STEP):
                for key, truth in event.guards:
                    test = self.graph.tests[key]
                    # What is stepped only as long as a counter is small gathers nothing.
                    counts = test.counts and test.reached in (None, truth)
                    if counts and (key, truth) not in everywhere:
                        # A step under the opposite takes what the loop has left over.
                        windows.setdefault(key, truth)
                        if event.object in self.index:
                            self.ended.setdefault(key, set()).add(self.index[event.object])
        return windows

    def _flags(self, events: list[Event], asked: set[int]) -> dict[int, bool]:
        """The tests for an argument under which steps stand, and no backward does, with the truth that leads there.

        Where each optimizer has some of its own, these freeze it, and say nothing of a window.
        """
        found: dict[int | None, set[tuple[int, bool]]] = {}
        for event in events:
            if event.kind in (e.SCALER_STEP, e.STEP):
                found.setdefault(event.object, set()).update(
                    (key, truth)
                    for key, truth in event.guards
                    if self.graph.tests[key].flag and key not in asked and key not in self.windows
                )
        each = list(found.values())
        return dict(set.intersection(*each) if each and all(each) else set().union(*each))

    def _boundaries(self) -> Iterator[Test]:
        """Window tests that are true for the first micro-batch already."""
        for key in self.windows:
            test = self.graph.tests[key]
            if test.off_by_one and self.windows[key] and key in self.accumulates and key not in self.later:
                yield test

    def _live_tests(self, least: int, remembered: int = -1) -> list[int]:
        """For each node, the tests that some way on from it may still ask; others need not be remembered.

        Nor those under which no event stands that is worth more than ``least``, or that are not in ``remembered``.
        """
        nodes = self.graph.nodes
        live = [0] * len(nodes)
        before: list[list[int]] = [[] for _ in nodes]
        for i, node in enumerate(nodes):
            for target, _, _ in node.ways:
                before[target].append(i)
        worth = self._worth_remembering(least) & remembered
        asked = [self._asked(node) for node in nodes]
        windows = sum(1 << key for key in self.windows)
        work = deque(reversed(range(len(nodes))))
        queued = [True] * len(nodes)
        while work:
            i = work.popleft()
            queued[i] = False
            node = nodes[i]
            bits = asked[i]
            for target, _, _ in node.ways:
                bits |= live[target]
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

    def _asked(self, node: Node) -> int:
        """The tests (as a bit set) that are asked at a node, and those whose truth is known with theirs."""
        bits = 0
        for _, key, _ in node.ways:
            if key >= 0:
                bits |= 1 << key
                for _, other, _ in self.graph.tests[key].implies:
                    bits |= 1 << other
        return bits

    def _worth_remembering(self, least: int) -> int:
        """The tests (as a bit set) under which some event stands that moves the state."""
        bits = 0
        # Graphs of one file have their tests in one list: those that are not asked in this one are not gone through.
        for key in {key for node in self.graph.nodes for _, key, _ in node.ways if key >= 0}:
            for each in (key, *(other for _, other, _ in self.graph.tests[key].implies)):
                if self.graph.tests[each].turn:
                    bits |= 1 << each
        for node in self.graph.nodes:
            if node.event is not None and node.event.kind == e.OPTIMIZER_NEW and node.event.subject in self.unused:
                continue
            if node.event is not None and (node.event.kind.worth > least or node.event.facts.get("twice")):
                for key, _ in node.event.guards:
                    bits |= 1 << key
        return bits

    def findings(self) -> Iterator[Finding]:
        if self._may_fault():
            # What tests tell of what seldom matters is worth less work.
            for least, limit in ((e.UNTESTED, self._most() // 4), (e.SELDOM, self._most())):
                self.live = self._live_tests(least)
                self._explore(limit)
                if not self.gave_up:
                    break
            if self.gave_up:
                # The ways that were gone can be gone.
                self.widened = True
                yield from self._found()
                self._widen()
        for test in self._boundaries():
            if test.site is not None:
                yield make_finding("window:off-by-one", test.site, [], {"window": str(test.text)}, ())
        for test in _left_over(self):
            if test.site is not None:
                yield make_finding("window:left-over", test.site, [], _counted(test), ())
        yield from self._found()

    def _most(self) -> int:
        """How many pairs are gone through before less is remembered."""
        return LIMIT * SEVERAL // max(SEVERAL, len(self.opts))

    def _found(self) -> Iterator[Finding]:
        """The findings of the faults that the latest exploration has come upon."""
        settled = {(label, blame.settled) for (label, _), (_, blame) in self.faults.items()}
        for (label, _), (here, blame) in self.faults.items():
            if self.spent > MOST_SPENT:
                self.exceeded = True
                return
            finding = None if self._yields(label, blame, settled) else self._report(label, here, blame)
            if finding is not None:
                yield finding

    def _widen(self) -> None:
        """Explore again with few tests remembered and states joined, so that ways are gone that cannot be.

        Then what happens in whatever way is found, and what does on a way that can be gone.
        """
        tests = self._most_telling()
        for size in WIDER:
            self.live = self._live_tests(e.SELDOM, sum(1 << key for key in tests[:size]))
            self._explore(self._most() // 2 if size else None, joining=True)
            if not self.gave_up:
                break
        if self.gave_up:
            # Not every state was met, so that nothing can be said to happen in all of them.
            self.exceeded = True
            self.faults = {}
            return
        self.faults = {key: found for key, found in self.faults.items() if self._always(found[1]) or self._may(*found)}

    def _may(self, here: Here, blame: Blame) -> bool:
        """Return True if a fault is committed on the path on which it was met; False once the budget is exceeded."""
        if self.spent > MOST_SPENT:
            self.exceeded = True
            return False
        return _can_be_gone(self, here, blame)

    def _always(self, blame: Blame) -> bool:
        """Whether a fault is committed in every state in which the event is met that settles it.

        A step is blamed alone for what only an update can mend: of a scaler that has none, no way does.
        """
        event = self.event(blame.blamed)
        if LABELS[blame.label][1].blame == (e.SCALER_STEP,) and event is not None and event.subject not in self.updated:
            return True
        return self.committed[blame] >= max(1, self.visits[blame.settled])

    def _most_telling(self) -> list[int]:
        """The tests that more than one place asks, in the order in which they tell paths apart.

        First those that end windows, then those that choose between a way with a scaler and one without, then those
        under which the most different events stand.
        """
        places: dict[int, int] = {}
        for node in self.graph.nodes:
            for key in {key for _, key, _ in node.ways if key >= 0}:
                for known in (key, *(other for _, other, _ in self.graph.tests[key].implies)):
                    places[known] = places.get(known, 0) + 1
        kinds: dict[int, set[Kind]] = {}
        chosen: dict[tuple[int, bool], list[int]] = {}
        for node in self.graph.nodes:
            event = node.event
            if event is not None and event.kind.worth > e.SELDOM:
                for key, truth in event.guards:
                    kinds.setdefault(key, set()).add(event.kind)
                    if event.kind in (e.BACKWARD, e.STEP, e.SCALER_STEP):
                        chosen.setdefault((key, truth), [0, 0])[event.subject is not None] += 1
        telling = [key for key in kinds if places.get(key, 0) > 1 or key in self.windows]

        def order(key: int) -> tuple[bool, int, int, int, int]:
            raw, scaled = chosen.get((key, True), (0, 0))
            raw_else, scaled_else = chosen.get((key, False), (0, 0))
            chooses = max(min(scaled, raw_else), min(raw, scaled_else))
            return key not in self.windows, -chooses, -len(kinds[key]), -places.get(key, 0), key

        return sorted(telling, key=order)

    def _yields(self, label: str, blame: Blame, settled: set[tuple[str, int]]) -> bool:
        """Whether another fault of the same cause says more."""
        fault, event = LABELS[label][1], self.event(blame.blamed)
        return (
            any((stronger, blame.settled) in settled for stronger in fault.yields_where_settled)
            or any(self._holds(stronger, blame.blamed) for stronger in fault.yields_to)
            or (fault.needs_update and event is not None and event.subject not in self.updated)
        )

    def _holds(self, label: str, blamed: int) -> bool:
        """Whether an event is to blame for a fault, on every path where only that counts."""
        _, blame = self.faults.get((label, blamed), (None, None))
        if blame is None or not LABELS[label][1].every_path:
            return blame is not None
        return self.committed[blame] >= self.visits[blame.settled] - self.idle[blame.settled]

    def idles(self, index: int) -> None:
        self.traced = True
        self.idle[index] += 1

    def _explore(self, limit: int | None, *, joining: bool = False) -> None:
        self.gave_up = False
        self.looked = 0
        self.trail, self.faults, self.committed, self.doubtful = {}, {}, {}, set()
        self.accumulates.clear()
        met: dict[tuple[int, ...], list[int]] = {}
        cores = _Cores(((), tuple(a.Opt() for _ in self.opts), 0, 0, -1))
        start: Here = (0, 0, 0, 0)
        self.trail[start] = None
        work = deque([start])
        nodes, ways = self.graph.nodes, self._ways_on()
        deciding = self._deciding()
        known_moves, known_pasts = cores.moved.get, cores.past.get
        trail, visits = self.trail, [0] * len(nodes)
        self.visits, self.idle = visits, [0] * len(nodes)
        while work:
            if (limit is not None and len(trail) > limit) or self.looked > MOST_LOOKED:
                self.gave_up = True
                return
            here = work.popleft()
            index, known, truth, core = here
            node = nodes[index]
            if node.event is not None:
                visits[index] += 1
                asked = (index, core, known & deciding, truth & deciding)
                moved = known_moves(asked)
                core = moved if moved is not None else self._moved(cores, asked, node.event, here)
            if node.forgets:
                known &= ~node.forgets
                truth &= ~node.forgets
            for target, bit, asking, keep in ways[index]:
                if asking is None:
                    place: Here = (target, known & keep, truth & keep, core)
                else:
                    key, answer, true, false, moves = asking
                    then_known, then_truth, onward = known, truth, core
                    if not known & bit:
                        # What has come out else denies it: as in _assume, without a call for each way.
                        if known & true & ~truth or truth & false or true & false:
                            continue
                        then_known, then_truth = known | true | false, truth | true
                    elif (truth & bit != 0) is not answer:
                        continue
                    if moves:
                        past = known_pasts((core, key, answer))
                        onward = self.past(cores, core, key, answer) if past is None else past
                    place = (target, then_known & keep, then_truth & keep, onward)
                if joining and place not in trail:
                    place = self._joined(cores, met.setdefault(place[:3], []), place)
                if place not in trail:
                    trail[place] = here
                    work.append(place)

    def _moved(self, cores: _Cores, asked: tuple[int, int, int, int], event: Event, here: Here) -> int:
        """What an event makes of a state, worked out once for all ways that lead there, where it asks for no more."""
        index, known, truth, core = here
        self.traced = False
        after = apply(self, index, event, State(known, truth, *cores.of[core]), here)
        moved = core if after[2:] == cores.of[core] else cores.number(after[2:])
        if not self.traced:
            cores.moved[asked] = moved
        return moved

    def _joined(self, cores: _Cores, met: list[int], place: Here) -> Here:
        """A place, or where it has been met in many states, that of what they have in common."""
        index, known, truth, core = place
        if len(met) >= JOINED:
            core = cores.joined(met[-1], core)
        if core not in met[JOINED:]:
            met.append(core)
        return (index, known, truth, core)

    def _deciding(self) -> int:
        """The tests (as a bit set) that events themselves ask: those of windows, and of averaging over processes."""
        asked = {key for node in self.graph.nodes if node.event for key, _ in node.event.facts.get("averaged") or ()}
        return sum(1 << key for key in asked | self.windows.keys())

    def _ways_on(self) -> list[list[_Way]]:
        """The ways on from each node, with what going them asks and tells."""
        moving = self.windows.keys() | self.flags.keys()

        def way(target: int, key: int, answer: bool) -> _Way:
            if key < 0:
                return target, 0, None, self.live[target]
            return target, 1 << key, (key, answer, *self._implied(key, answer), key in moving), self.live[target]

        return [[way(*each) for each in ways] for ways in self.short_ways()]

    def short_ways(self) -> list[list[tuple[int, int, bool]]]:
        """The ways on from each node, leading past those at which nothing happens, and nothing is asked."""
        # Asked for again for each finding, of which there may be as many as nodes.
        if self._short is None:
            self._short = self._shortened()
        return self._short

    def _shortened(self) -> list[list[tuple[int, int, bool]]]:
        nodes = self.graph.nodes
        past = list(range(len(nodes)))
        for i, node in enumerate(nodes):
            alone = len(node.ways) == 1 and node.ways[0][1] < 0
            if alone and node.event is None and not node.forgets and node.skips is None:
                past[i] = node.ways[0][0]

        def end(target: int) -> int:
            seen: set[int] = set()
            while past[target] != target and target not in seen:
                seen.add(target)
                target = past[target]
            for one in seen:
                past[one] = target
            return target

        return [[(end(target), key, truth) for target, key, truth in node.ways] for node in nodes]

    def answered(self, known: int, truth: int, key: int, answer: bool) -> tuple[int, int] | None:
        """The tests that are known after a way was gone, and their truth; None if it cannot be."""
        if key < 0:
            return known, truth
        if known >> key & 1:
            return (known, truth) if bool(truth >> key & 1) is answer else None
        return self._assume(known, truth, key, answer)

    def _assume(self, known: int, truth: int, key: int, answer: bool) -> tuple[int, int] | None:
        """The tests that are known after one came out that was not, and their truth; None if one of these denies it."""
        true, false = self._implied(key, answer)
        if known & true & ~truth or truth & false or true & false:
            return None
        return known | true | false, truth | true

    def _implied(self, key: int, answer: bool) -> tuple[int, int]:
        """The tests (as bit sets) that are true, and those that are false, where one comes out as it does: with it."""
        found = self.implied.get((key, answer))
        if found is None:
            true, false = (1 << key, 0) if answer else (0, 1 << key)
            for when, other, result in self.graph.tests[key].implies:
                if when is answer:
                    true, false = (true | 1 << other, false) if result else (true, false | 1 << other)
            found = self.implied[key, answer] = true, false
        return found

    def past(self, cores: _Cores, core: int, key: int, answer: bool) -> int:
        """What becomes of a state where a test comes out that decides about an accumulation window."""
        known = cores.past.get((core, key, answer))
        if known is None:
            regions, opts, used, renewed, stale = cores.of[core]
            if self.windows.get(key, answer) != answer:
                ended = self.ended.get(key, set())
                opts = tuple(a.move(opt, a.HOLD)[0] if i in ended else opt for i, opt in enumerate(opts))
            elif self.flags.get(key, answer) != answer:
                opts = tuple(o._replace(inside=o.inside or e.LOOSE) if o.grads in a.PENDING else o for o in opts)
            known = cores.past[core, key, answer] = cores.number((regions, opts, used, renewed, stale))
        return known

    def blame(self, label: str, blamed: int, settled: int, here: Here, *, sure: bool = True) -> None:
        """Keep the first path that commits a fault, and count the states that do."""
        self.traced = True
        self.faults.setdefault((label, blamed), (here, Blame(label, blamed, settled)))
        key = (label, blamed, settled)
        self.committed[key] = self.committed.get(key, 0) + 1
        if not sure:
            self.doubtful.add(key)

    def path(self, here: Here) -> Iterator[int]:
        self.traced = True
        place: Here | None = here
        while place is not None:
            self.looked += 1
            yield place[0]
            place = self.trail[place]

    def _report(self, label: str, here: Here, blame: Blame) -> Finding | None:
        fault = LABELS[label][1]
        if not self._holds(label, blame.blamed):
            return None
        nodes = self.graph.nodes
        blamed, settled = nodes[blame.blamed].event, nodes[blame.settled].event
        assert blamed is not None
        involved = [blamed]
        if settled is not None and settled is not blamed:
            involved.append(settled)
            if _are_tries(blamed.site, settled.site):
                return None
        if fault.of_training and not self.stepped and blamed.site.in_test():
            return None
        path = self.witness(label, here, blame.blamed, blame.settled)
        if not self.knows_callers and (fault.owned or any(map(self._has_scaled_twin, (*involved, *path)))):
            return None
        partner = settled if settled is not blamed else next((x for x in reversed(path) if x is not blamed), blamed)
        beside = partner.site if partner is not None else blamed.site
        made = blamed.facts.get("forward") if fault.of_loss else None
        if made is not None:
            beside = made.site
        lent = made is not None and beside.path != blamed.site.path
        site = place(blamed.site, beside, reads=fault.reads or lent)
        certain = self.committed[label, blame.blamed, blame.settled] >= max(1, self.visits[blame.settled])
        if fault.next_turn:
            # The first turn of a loop cannot commit these; what else may spare them is a test around the two events.
            certain = not any(key not in self.windows for x in involved for key, _ in x.guards)
        condition = "" if certain else self._condition(here, blamed, involved, fault.spared_by)
        guessed = (
            self.widened
            or (label, blame.blamed, blame.settled) in self.doubtful
            or any(x.facts.get("guessed") for x in involved)
        )
        certain = certain and not guessed and (self.owned(blamed.subject) or not fault.owned)
        steps = [Step(event.site, describe(event)) for event in path]
        names = [*involved, *reversed(path)]
        label, values = of_framework(label, names, self.program)
        skip = self._skip(here, blame.blamed) if fault.skipped else None
        if skip is not None:
            values = {**values, "skip": skip[0]}
            steps.insert(-1, Step(skip[1], "the step is skipped"))
        return make_finding(label, site, names, values, tuple(steps), certain=certain, condition=condition)

    def _has_scaled_twin(self, event: Event) -> bool:
        """Return True if an event is what a flag chooses in the place of calls of a scaler."""
        if event.subject is not None:
            return False
        scalers = {key for key, thing in enumerate(self.program.things) if thing.role == "scaler"}
        events = (node.event for node in self.graph.nodes if node.event is not None)
        others = {guard for other in events if other.subject in scalers for guard in other.guards}
        return any((key, not truth) in others for key, truth in event.guards)

    def _skip(self, here: Here, since: int) -> tuple[str, Site] | None:
        """The latest statement on a path that skips what is left of an iteration, if one does since an event."""
        for index in self.path(here):
            skips = self.graph.nodes[index].skips
            if skips is not None or index == since:
                return skips
        return None

    def _condition(self, here: Here, blamed: Event, involved: list[Event], sparing: tuple[Kind, ...]) -> str:
        """The answers to tests on the path that lead to what is blamed, or past what would have spared it."""
        self.spent += len(self.graph.nodes)
        answers = self._answers(here)
        about = {event.object for event in involved if event.object is not None}
        about.update(key for event in involved for key in event.facts.get("owners") or ())
        led = [(key, truth) for key, truth in blamed.guards if answers.get(key) is truth]
        for node in self.graph.nodes:
            event = node.event
            if event is not None and event.kind in sparing and (not about or event.object in {None, *about}):
                led += [(key, not truth) for key, truth in event.guards if answers.get(key) is (not truth)]
        words = []
        for key, truth in dict.fromkeys(led):
            said, answer = self.graph.tests[key].text, truth
            if isinstance(said, Denied):
                said, answer = said.of, not truth
            if text := str(said):
                words.append(f"`{text}` is {'true' if answer else 'false'}")
        return "when " + " and ".join(words[-2:]) if words else ""

    def _answers(self, here: Here) -> dict[int, bool]:
        """How the tests on a path came out when they were asked last."""
        answers: dict[int, bool] = {}
        ways, place = self.short_ways(), here
        while (before := self.trail[place]) is not None:
            gone = [(key, truth) for target, key, truth in ways[before[0]] if target == place[0]]
            if len(gone) == 1:
                answers.setdefault(*gone[0])
            place = before
        return answers


def _are_tries(site: Site, other: Site) -> bool:
    """Whether two places lie in two calls of one function by a test, which tries it out: no training goes on there."""
    mine, theirs = site.frames(), other.frames()
    if len(mine) < 2 or len(theirs) < 2 or not mine[0].in_test():
        return False
    of_one = (mine[1].path, mine[1].function) == (theirs[1].path, theirs[1].function)
    return of_one and (mine[0].line, mine[0].column) != (theirs[0].line, theirs[0].column)


def _left_over(judge: _Judge) -> Iterator[Test]:
    """Window tests by which alone their optimizers are stepped, and after which micro-batches are known to be left."""
    tests = [judge.graph.tests[key] for key in judge.windows if judge.windows[key] and key in judge.accumulates]
    tests = [test for test in tests if test.left_over is not None and not test.off_by_one]
    if not tests or judge.program.facts.get("fragment"):
        return
    events = [node.event for node in judge.graph.nodes if node.event is not None]
    fed = [frozenset(event.guards) for event in events if event.kind == e.BACKWARD]
    for test in tests:
        ended = {judge.opts[i] for i in judge.ended.get(test.key, ())}
        steps = [event for event in events if event.kind in (e.SCALER_STEP, e.STEP) and event.object in ended]
        # What else a step stands under, its backward does, too: no test of its own ends the last window.
        alone = all(frozenset(event.guards) - {(test.key, True)} in fed for event in steps)
        windowed = all((test.key, True) in event.guards for event in steps)
        if alone and windowed and not ended & judge.spoken[e.STEPS]:
            yield test


def _counted(test: Test) -> dict[str, str]:
    assert test.left_over is not None
    left, turns = test.left_over
    number = f"the last {left} of" if left > 1 else "the last of"
    return {"window": str(test.text), "left": f"{number} {turns} micro-batches"}


def _can_be_gone(judge: _Judge, here: Here, blame: Blame) -> bool:
    """Whether a fault is committed on the way on which it was met, with all that is known on it."""
    places: list[Here] = [here]
    while (before := judge.trail[places[-1]]) is not None:
        places.append(before)
    judge.spent += len(places)
    kept = judge.faults, judge.committed, judge.doubtful, judge.idle
    judge.faults, judge.committed, judge.doubtful, judge.idle = {}, {}, set(), [0] * len(judge.idle)
    gone = _go(judge, places[::-1])
    found = (blame.label, blame.blamed) in judge.faults
    judge.faults, judge.committed, judge.doubtful, judge.idle = kept
    return gone and found


def _go(judge: _Judge, places: list[Here]) -> bool:
    """Go from place to place, nothing forgotten but what events make unknown; says whether no test forbids it."""
    cores = _Cores(((), tuple(a.Opt() for _ in judge.opts), 0, 0, -1))
    ways = judge.short_ways()
    known = truth = core = 0
    for number, here in enumerate(places):
        node = judge.graph.nodes[here[0]]
        if node.event is not None:
            core = cores.number(apply(judge, here[0], node.event, State(known, truth, *cores.of[core]), here)[2:])
        known &= ~node.forgets
        truth &= ~node.forgets
        if number + 1 == len(places):
            break
        for target, key, answer in ways[here[0]]:
            answers = judge.answered(known, truth, key, answer) if target == places[number + 1][0] else None
            if answers is not None:
                known, truth = answers
                core = judge.past(cores, core, key, answer)
                break
        else:
            return False
    return True
