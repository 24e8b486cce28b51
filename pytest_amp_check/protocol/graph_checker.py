"""Checker for programs: explore the states over each graph, and turn violations of the automaton into findings.

Paths are not enumerated. A state is the memory of the protocol, and every (node, state) pair is visited once. The
predecessor of each pair is kept to show the path to a violation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence

from . import automaton as a
from . import events as e
from .checker import AutocastRegion, Checker, Here, PathState, Violation
from .effects import apply_event
from .events import Event, EventKind, Graph, Node, Predicate, Program, Site
from .finding import Finding, TraceStep, merge_finding
from .findings_builder import (
    adapt_to_framework,
    check_event,
    choose_location,
    describe_event,
    make_finding,
    program_violations,
)
from .rules import LABELS
from .source_text import NegatedText

__all__ = ["check", "check_event", "merge_finding"]

#: Number of (node, state) pairs after which a graph is explored again with fewer remembered predicates. There is no
#: limit when no predicates are remembered and states are joined, because further visits of a node can only lose
#: information.
LIMIT = 40_000
#: Number of optimizers up to which the full number of pairs is explored. Each further optimizer makes a pair more
#: expensive and adds pairs.
SEVERAL = 8
#: Numbers of remembered predicates, tried in this order, when states are joined because all predicates are too many.
WIDER = (8, 4, 2, 0)
#: Budget of nodes revisited to examine single violations of one graph, which is quadratic in the code size. The budget
#: takes about ten seconds; a function with 400 violations under 1,200 conditions uses it up.
MOST_SPENT = 3_000_000
#: Budget of nodes that events of one graph may look back at in one exploration: about five seconds.
MOST_LOOKED = 10_000_000
#: Number of states of a node above which states are joined.
JOINED = 4

#: Predecessor of each point. A point is a node, the known predicates, the true predicates (both bit sets), and the
#: number of the core state.
Trail = dict[Here, "Here | None"]
#: A state without predicates.
Core = tuple[tuple[AutocastRegion, ...], tuple[a.OptimizerState, ...], int, int, int]
#: Condition of an edge: predicate and truth, the implied true and false predicates (bit sets), and True if the truth
#: changes the state.
_Asking = tuple[int, bool, int, int, bool]
#: An outgoing edge: target node, predicate of the edge (a bit set), condition, and the predicates remembered at the
#: target.
_Way = tuple[int, int, "_Asking | None", int]


#: A finding, with the path and line of the entry point of the graph.
Found = tuple[Finding, tuple[str, int]]


def check(program: Program, select: frozenset[str] | None = None) -> list[Finding]:
    """Return all findings of a program, sorted. With ``select``, return only findings of these rules."""
    kept: dict[tuple[str, str, int, int], Finding] = {}
    found = [*_check_graphs(program)]
    # A scaler that is recreated repeatedly also loses its saved state: this is one mistake, not two.
    remade = (finding.names for finding, _ in found if finding.label == "new@used")
    program.attributes.remade = {names.get("scaler", "the scaler") for names in remade}
    for finding, entry in (*found, *_check_program(program), *_report_budget_exceeded(program)):
        if select is None or finding.code in select:
            finding.entries[entry] = finding.calls
            merge_finding(kept, finding)
    return sorted(kept.values(), key=Finding.order)


def check_without_callers(program: Program) -> list[Finding]:
    """Return the violations of the functions of a program that no caller can prevent."""
    kept: dict[tuple[str, str, int, int], Finding] = {}
    for graph in program.graphs:
        for finding in _GraphChecker(graph, program, knows_callers=False).collect_findings():
            finding.entries[graph.entry_point] = finding.calls
            merge_finding(kept, finding)
    return sorted(kept.values(), key=Finding.order)


def _check_graphs(program: Program) -> Iterator[Found]:
    """Yield the findings of each graph, and of each single event."""
    for graph in program.graphs:
        judge = _GraphChecker(graph, program)
        for finding in judge.collect_findings():
            yield finding, graph.entry_point
        graph.was_widened = judge.was_widened
        if judge.budget_exceeded:
            path, line = graph.entry_point
            found = Site(path, line or 1, function=graph.name or "<module>")
            program.attributes.unread = program.attributes.unread or found
        for node in graph.nodes:
            if node.event is not None:
                for finding in check_event(node.event, program):
                    yield finding, graph.entry_point


def _check_program(program: Program) -> Iterator[Found]:
    """Yield the findings that need the whole program, once for each function with the cause."""
    for label, event, values, others in program_violations(program):
        witness = tuple(TraceStep(other.site, describe_event(other)) for other in others)
        certain = not LABELS[label][1].certainty.always_possible
        finding = make_finding(label, event.site, [event, *others], values, witness, certain=certain)
        for graph in program.graphs:
            if any(node.event is event for node in graph.nodes):
                yield finding, graph.entry_point


def _report_budget_exceeded(program: Program) -> Iterator[Found]:
    unread = program.attributes.unread
    if unread is not None:
        finding = make_finding("source:too-long", unread, [], {"function": unread.function}, ())
        yield finding, (unread.path, 0)


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
    return isinstance(event, e.ScaledLoss) and (event.twice or (isinstance(event, e.Backward) and event.uneven))


def _are_exclusive(some: set[tuple[int, bool]], others: set[tuple[int, bool]]) -> bool:
    """Return True if two sets of guards contain opposite truths of a predicate."""
    return any((key, not truth) in others for key, truth in some)


def _decided(guards: e.Guards) -> list[tuple[int, bool]]:
    """Return the predicates of which an event needs one truth. Beside a disjunction, an event may need either."""
    return [(key, truth) for key, truth in guards if (key, not truth) not in guards]


class _StateInterner:
    """Numbered core states. Numbers are compared and looked up much faster than states."""

    __slots__ = ("_joined_states", "_state_numbers", "after_event", "after_predicate", "states")

    def __init__(self, start: Core) -> None:
        self.states = [start]
        self._state_numbers = {start: 0}
        self._joined_states: dict[tuple[int, int], int] = {}
        #: State after a predicate is true or false.
        self.after_predicate: dict[tuple[int, int, bool], int] = {}
        #: State after an event, given the predicates that the event may depend on.
        self.after_event: dict[tuple[int, int, int, int], int] = {}

    def intern_state(self, core: Core) -> int:
        known = self._state_numbers.get(core)
        if known is None:
            known = self._state_numbers[core] = len(self.states)
            self.states.append(core)
        return known

    def join(self, one: int, other: int) -> int:
        """Return the join of two states. Fields that differ become unknown."""
        common = self._joined_states.get((one, other))
        if common is None:
            regions, opts, used, renewed, stale = self.states[one]
            _, others, also_used, also_renewed, also_stale = self.states[other]
            opts = tuple(a.join(mine, theirs) for mine, theirs in zip(opts, others, strict=True))
            common = self._joined_states[one, other] = self.intern_state(
                (regions, opts, used & also_used, renewed & also_renewed, stale if stale == also_stale else -1)
            )
        return common


class _GraphChecker(Checker):
    """The checker of one graph.

    ``knows_callers`` is False if other code calls the function of the graph. Then a violation is not reported if a call
    elsewhere may prevent the violation, or if the violation needs two flags that a caller may keep consistent.
    """

    def __init__(self, graph: Graph, program: Program, *, knows_callers: bool = True) -> None:
        super().__init__(program, graph.predicates)
        self.graph = graph
        self.knows_callers = knows_callers
        self._short_edges: list[list[tuple[int, int, bool]]] | None = None
        self.limit_reached = False
        #: Nodes revisited for single violations, and True if violations were dropped when the budget was exceeded.
        self.nodes_revisited = 0
        self.budget_exceeded = False
        #: Nodes that events of one exploration looked back at.
        self.nodes_looked_back = 0
        #: True if not all paths were explored with full path conditions.
        self.was_widened = False
        self.predecessors: Trail = {}
        self.violations: dict[tuple[str, int], tuple[Here, Violation]] = {}
        self.violation_counts: dict[tuple[str, int, int], int] = {}
        #: Violations that may have an invisible exemption.
        self.doubtful_violations: set[tuple[str, int, int]] = set()
        #: Predicates implied by the truth of a predicate.
        self.implications: dict[tuple[int, bool], tuple[int, int]] = {}
        #: Number of states at each node, and number of these states without an earlier backward.
        self.visit_counts: list[int] = []
        self.idle_counts: list[int] = []
        #: True if an event looked back along its path or reported a violation. The result may differ on another path.
        self.depends_on_path = False
        self._summarize_events()

    def event_at(self, index: int) -> Event | None:
        return self.graph.nodes[index].event

    def find_unscale_guards(self, i: int) -> Iterator[tuple[int, bool]]:
        for node in self.graph.nodes:
            if isinstance(node.event, e.Unscale) and node.event.object == self.optimizer_keys[i]:
                yield from node.event.guards

    def find_already_accumulated(self, event: e.Backward) -> tuple[int, ...]:
        return ()  # the graph does not show the number of the iteration

    def _summarize_events(self) -> None:
        events = [node.event for node in self.graph.nodes if node.event is not None]
        established = {
            x.subject if isinstance(x, e.OptimizerNew) else x.object for x in events if x.establishes_optimizer
        }
        for event in events:
            if isinstance(event, e.ZeroGrad):
                established.update(event.owners or ())
        self.unused_optimizers = _find_unused_optimizers(events)
        established -= self.unused_optimizers
        self.optimizer_keys: list[int] = sorted(key for key in established if key is not None)
        self.optimizer_index = {key: i for i, key in enumerate(self.optimizer_keys)}
        self.scaler_keys = sorted({x.subject for x in events if isinstance(x, e.ScalerNew) and x.subject is not None})
        self.scaler_bits = {key: 1 << i for i, key in enumerate(self.scaler_keys)}
        self.updated_scalers = {x.subject for x in events if isinstance(x, e.Update)}
        changing = self.varying_predicates = self._find_varying_predicates()
        for event in events:
            if isinstance(event, e.ZeroGrad):
                lasting = frozenset((key, truth) for key, truth in event.guards if not changing >> key & 1)
                for key in self.owner_keys(event):
                    self.clearing_sites.setdefault(key, []).append((event.loops or (), lasting))
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
                things = event.things
                self.escaped_objects.update(things)
                for matter in event.about:
                    self.escape_effects[matter].update(things)
        self.sole_optimizers = self._find_sole_optimizers(events)
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
            and any(self.graph.predicates[k].eventually_excluded is truth for k, truth in x.guards)
            for key, _ in x.guards
        }
        self.event_kinds: set[EventKind] = set(map(type, events))
        asked_of = {key for node in self.graph.nodes for _, key, _ in node.edges if key >= 0}
        self.has_scale_branch = any(self.graph.predicates[key].compares_scales for key in asked_of)
        #: True if a loss is scaled unevenly on any path.
        self.has_uneven_scale = any(map(_is_scaled_unevenly, events))
        self.live_predicates: list[int] = []

    def _find_sole_optimizers(self, events: list[Event]) -> frozenset[int]:
        """Return the only stepped optimizer, or the optimizers that constant predicates make mutually exclusive."""
        changing = self._find_varying_predicates()
        steps: dict[int, list[set[tuple[int, bool]]]] = {}
        for event in events:
            if isinstance(event, (e.ScalerStep, e.Step)) and event.object in self.optimizer_index:
                lasting = {(key, truth) for key, truth in event.guards if not changing >> key & 1}
                steps.setdefault(self.optimizer_index[event.object], []).append(lasting)
        for one, mine in steps.items():
            for other, theirs in steps.items():
                if other > one and not all(_are_exclusive(here, there) for here in mine for there in theirs):
                    return frozenset()
        return frozenset(steps)

    def _find_varying_predicates(self) -> int:
        """Return the predicates (as a bit set) that may have another truth when evaluated again."""
        changing = 0
        for node in self.graph.nodes:
            changing |= node.forgotten_predicates
        return changing

    def _may_violate(self) -> bool:
        """Return True if the events of the graph can violate the automaton. Most graphs need no exploration."""
        if self.has_uneven_scale or any(kind.may_violate for kind in self.event_kinds):
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
                    counts = test.is_window_predicate and test.eventual_truth in (None, truth)
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

    def _find_off_by_one(self) -> Iterator[Predicate]:
        """Yield window predicates that are already true for the first microbatch."""
        for key in self.window_predicates:
            test = self.graph.predicates[key]
            if (
                test.is_off_by_one
                and self.window_predicates[key]
                and key in self.accumulating_windows
                and key not in self.delayed_step_predicates
            ):
                yield test

    def _find_running_divisors(self) -> Iterator[Finding]:
        """Yield findings about losses of a window that are divided by the number of micro-batches so far."""
        for node in self.graph.nodes:
            event = node.event
            if not isinstance(event, e.Backward) or event.running is None:
                continue
            site, text, _ = event.running
            if set(self.window_predicates.items()).isdisjoint(event.guards):
                values = {"divisor": str(text)}
                yield make_finding("window:running-divisor", site, [event], values, (), certain=False)

    def _find_scalers_made_per_step(self) -> Iterator[Finding]:
        """Yield findings about scalers that a function constructs for its own single step."""
        events = [node.event for node in self.graph.nodes if node.event is not None]
        for event in events if self.graph.entry_point[1] > 0 else ():
            if (
                not isinstance(event, e.ScalerNew)
                or event.site.caller is not None
                or not self.is_local_scaler(event.subject)
            ):
                continue
            uses = [other for other in events if other.subject == event.subject]
            steps = [other for other in uses if isinstance(other, e.ScalerStep)]
            is_kept = any(isinstance(other, (e.ScalerLoad, e.ScalerState)) for other in uses)
            # Positive keys are loops, negative keys are calls of the function.
            in_loops = any(key > 0 for step in steps for key in step.loops or ())
            if steps and not (is_kept or in_loops or event.subject in self.escaped_objects or event.site.is_in_test()):
                name = self.program.name_of(event.subject if event.subject is not None else "")
                values = {"function": event.site.function.rpartition(".")[2], **({"scaler": name} if name else {})}
                yield make_finding("new:per-step", event.site, [event], values, (), certain=False)

    def _find_clips_without_scaler(self) -> Iterator[Finding]:
        """Yield a finding about a clip that only runs where a flag switches the scaler off."""
        events = [node.event for node in self.graph.nodes if node.event is not None]
        clips = [event for event in events if isinstance(event, e.Clip) and not event.measures_only]
        steps = [event for event in events if isinstance(event, e.ScalerStep) and event.framework is None]
        plain = [event for event in events if isinstance(event, e.Step)]
        unscales = any(isinstance(event, e.Unscale) for event in events) or self.escape_effects[e.UNSCALES]
        if not (clips and steps and plain) or unscales or self._may_clip_scaled():
            return
        backwards = [event for event in events if isinstance(event, e.Backward) and event.subject is not None]
        common = set.intersection(*(set(event.guards) for event in clips))
        for key, truth in common:
            is_off = any((key, truth) in event.guards for event in plain)
            if is_off and all((key, not truth) in event.guards for event in (*steps, *backwards)):
                values = {"clip": str(clips[0].names.get("call", "the clip"))}
                witness = (TraceStep(clips[0].site, describe_event(clips[0])),)
                yield make_finding("clip:plain-only", steps[0].site, [steps[0]], values, witness, certain=False)
                return

    def _may_clip_scaled(self) -> bool:
        """Return True if a path leads from a scaled backward to a clip before the scaler steps."""
        nodes = self.graph.nodes
        work = [
            i for i, node in enumerate(nodes) if isinstance(node.event, e.Backward) and node.event.subject is not None
        ]
        seen = set(work)
        while work:
            for target, _, _ in nodes[work.pop()].edges:
                event = nodes[target].event
                if isinstance(event, e.Clip):
                    return True
                if target not in seen and not isinstance(event, (e.ScalerStep, e.Again)):
                    seen.add(target)
                    work.append(target)
        return False

    def _compute_live_predicates(self, least: int, remembered: int = -1) -> list[int]:
        """Return, for each node, the predicates that a path from the node may still depend on.

        Predicates that guard no event worth more than ``least``, and predicates outside ``remembered``, are not live.
        """
        nodes = self.graph.nodes
        live = [0] * len(nodes)
        before: list[list[int]] = [[] for _ in nodes]
        for i, node in enumerate(nodes):
            for target, _, _ in node.edges:
                before[target].append(i)
        worth = self._find_worth_remembering(least) & remembered
        asked = [self._find_asked_predicates(node) for node in nodes]
        windows = sum(1 << key for key in self.window_predicates)
        work = deque(reversed(range(len(nodes))))
        queued = [True] * len(nodes)
        while work:
            i = work.popleft()
            queued[i] = False
            node = nodes[i]
            bits = asked[i]
            for target, _, _ in node.edges:
                bits |= live[target]
            bits &= worth & ~node.forgotten_predicates
            if isinstance(node.event, e.Backward):
                # The known predicates decide here if the window is open.
                bits |= windows
            if bits != live[i]:
                live[i] = bits
                for previous in before[i]:
                    if not queued[previous]:
                        queued[previous] = True
                        work.append(previous)
        return live

    def _find_asked_predicates(self, node: Node) -> int:
        """Return the predicates (as a bit set) on the edges of a node, with all implied predicates."""
        bits = 0
        for _, key, _ in node.edges:
            if key >= 0:
                bits |= 1 << key
                for _, other, _ in self.graph.predicates[key].implications:
                    bits |= 1 << other
        return bits

    def _find_worth_remembering(self, least: int) -> int:
        """Return the predicates (as a bit set) that guard an event that changes the state."""
        bits = 0
        # Graphs of one file share one list of predicates. Predicates not used in this graph are skipped.
        for key in {key for node in self.graph.nodes for _, key, _ in node.edges if key >= 0}:
            for each in (key, *(other for _, other, _ in self.graph.predicates[key].implications)):
                if self.graph.predicates[each].asks_first_iteration:
                    bits |= 1 << each
        for node in self.graph.nodes:
            if (
                node.event is not None
                and isinstance(node.event, e.OptimizerNew)
                and node.event.subject in self.unused_optimizers
            ):
                continue
            if node.event is not None and (
                node.event.predicate_worth > least or (isinstance(node.event, e.ScaledLoss) and node.event.twice)
            ):
                for key, _ in node.event.guards:
                    bits |= 1 << key
        return bits

    def collect_findings(self) -> Iterator[Finding]:
        if self._may_violate():
            # Predicates about rarely relevant events are worth less work.
            most = self._exploration_limit()
            # The callers of a function have taken the whole budget before.
            for least, limit in ((e.UNTESTED, most // 4), (e.SELDOM, most if self.knows_callers else most // 4)):
                self.live_predicates = self._compute_live_predicates(least)
                self._explore_graph(limit)
                if not self.limit_reached:
                    break
            if self.limit_reached:
                # The explored paths are feasible.
                self.was_widened = True
                yield from self._report_violations()
                if not self.knows_callers:
                    return
                self._explore_widened()
        for test in self._find_off_by_one():
            if test.site is not None:
                yield make_finding("window:off-by-one", test.site, [], {"window": str(test.text)}, ())
        yield from self._find_running_divisors()
        yield from self._find_scalers_made_per_step()
        yield from self._find_clips_without_scaler()
        for test in _find_trailing_windows(self):
            if test.site is not None:
                yield make_finding("window:left-over", test.site, [], _describe_trailing(test), ())
        yield from self._report_violations()

    def _exploration_limit(self) -> int:
        """Return the number of pairs to explore before fewer predicates are remembered."""
        return LIMIT * SEVERAL // max(SEVERAL, len(self.optimizer_keys))

    def _report_violations(self) -> Iterator[Finding]:
        """Yield the findings of the violations from the latest exploration."""
        detected_labels = {(label, violation.detected_at) for (label, _), (_, violation) in self.violations.items()}
        for (label, _), (here, violation) in self.violations.items():
            if self.nodes_revisited > MOST_SPENT:
                self.budget_exceeded = True
                return
            finding = (
                None
                if self._is_superseded(label, violation, detected_labels)
                else self._report_finding(label, here, violation)
            )
            if finding is not None:
                yield finding

    def _explore_widened(self) -> None:
        """Explore again with few predicates and joined states, which includes infeasible paths.

        The result has the violations of all paths, and the violations on feasible paths.
        """
        tests = self._rank_predicates()
        for size in WIDER:
            self.live_predicates = self._compute_live_predicates(e.SELDOM, sum(1 << key for key in tests[:size]))
            self._explore_graph(self._exploration_limit() // 2 if size else None, joining=True)
            if not self.limit_reached:
                break
        if self.limit_reached:
            # Not every state was visited, so no violation is known to hold in all states.
            self.budget_exceeded = True
            self.violations = {}
            return
        self.violations = {
            key: found
            for key, found in self.violations.items()
            if self._is_definite(found[1]) or self._is_feasible(*found)
        }

    def _is_feasible(self, here: Here, violation: Violation) -> bool:
        """Return True if a violation occurs on the recorded path. Return False once the budget is exceeded."""
        if self.nodes_revisited > MOST_SPENT:
            self.budget_exceeded = True
            return False
        return _is_path_feasible(self, here, violation)

    def _is_definite(self, violation: Violation) -> bool:
        """Return True if a violation occurs in every state of the event that detects the violation.

        A violation whose only cause is a step is definite for a scaler without update, because no path prevents the
        violation.
        """
        event = self.event_at(violation.cause)
        if (
            LABELS[violation.label][1].cause.kinds == (e.ScalerStep,)
            and event is not None
            and event.subject not in self.updated_scalers
        ):
            return True
        return self.violation_counts[violation] >= max(1, self.visit_counts[violation.detected_at])

    def _rank_predicates(self) -> list[int]:
        """Return the predicates used at more than one node, in the order in which they distinguish paths.

        Predicates that end windows come first. Predicates that choose between code with and without a scaler follow,
        then the predicates that guard the most different events.
        """
        places: dict[int, int] = {}
        for node in self.graph.nodes:
            for key in {key for _, key, _ in node.edges if key >= 0}:
                for known in (key, *(other for _, other, _ in self.graph.predicates[key].implications)):
                    places[known] = places.get(known, 0) + 1
        kinds: dict[int, set[EventKind]] = {}
        chosen: dict[tuple[int, bool], list[int]] = {}
        for node in self.graph.nodes:
            event = node.event
            if event is not None and event.predicate_worth > e.SELDOM:
                for key, truth in event.guards:
                    kinds.setdefault(key, set()).add(type(event))
                    if isinstance(event, (e.Backward, e.Step, e.ScalerStep)):
                        chosen.setdefault((key, truth), [0, 0])[event.subject is not None] += 1
        telling = [key for key in kinds if places.get(key, 0) > 1 or key in self.window_predicates]

        def sort_key(key: int) -> tuple[bool, int, int, int, int]:
            raw, scaled = chosen.get((key, True), (0, 0))
            raw_else, scaled_else = chosen.get((key, False), (0, 0))
            chooses = max(min(scaled, raw_else), min(raw, scaled_else))
            return key not in self.window_predicates, -chooses, -len(kinds[key]), -places.get(key, 0), key

        return sorted(telling, key=sort_key)

    def _is_superseded(self, label: str, violation: Violation, detected_labels: set[tuple[str, int]]) -> bool:
        """Return True if another violation of the same cause says more."""
        kind, event = LABELS[label][1], self.event_at(violation.cause)
        return (
            any(
                (stronger, violation.detected_at) in detected_labels
                for stronger in kind.precedence.yields_where_detected
            )
            or any(self._is_confirmed(stronger, violation.cause) for stronger in kind.precedence.yields_to)
            or (kind.precedence.needs_update and event is not None and event.subject not in self.updated_scalers)
        )

    def _is_confirmed(self, label: str, cause: int) -> bool:
        """Return True if an event is the cause of a violation, on every path if the violation requires every path."""
        _, violation = self.violations.get((label, cause), (None, None))
        if violation is None or not LABELS[label][1].precedence.needs_every_path:
            return violation is not None
        return (
            self.violation_counts[violation]
            >= self.visit_counts[violation.detected_at] - self.idle_counts[violation.detected_at]
        )

    def note_idle_step(self, index: int) -> None:
        self.depends_on_path = True
        self.idle_counts[index] += 1

    def _explore_graph(self, limit: int | None, *, joining: bool = False) -> None:
        self.limit_reached = False
        self.nodes_looked_back = 0
        self.predecessors, self.violations, self.violation_counts, self.doubtful_violations = {}, {}, {}, set()
        self.accumulating_windows.clear()
        seen_cores: dict[tuple[int, ...], list[int]] = {}
        cores = _StateInterner(((), tuple(a.OptimizerState() for _ in self.optimizer_keys), 0, 0, -1))
        start: Here = (0, 0, 0, 0)
        self.predecessors[start] = None
        work = deque([start])
        nodes, edges = self.graph.nodes, self._build_edges()
        deciding = self._find_event_predicates()
        known_moves, known_pasts = cores.after_event.get, cores.after_predicate.get
        trail, visits = self.predecessors, [0] * len(nodes)
        self.visit_counts, self.idle_counts = visits, [0] * len(nodes)
        while work:
            if (limit is not None and len(trail) > limit) or self.nodes_looked_back > MOST_LOOKED:
                self.limit_reached = True
                return
            here = work.popleft()
            index, known, truth, core = here
            node = nodes[index]
            if node.event is not None:
                visits[index] += 1
                asked = (index, core, known & deciding, truth & deciding)
                moved = known_moves(asked)
                core = moved if moved is not None else self._apply_event(cores, asked, node.event, here)
            if node.forgotten_predicates:
                known &= ~node.forgotten_predicates
                truth &= ~node.forgotten_predicates
            for target, bit, asking, keep in edges[index]:
                if asking is None:
                    next_point: Here = (target, known & keep, truth & keep, core)
                else:
                    key, answer, true, false, moves = asking
                    then_known, then_truth, next_core = known, truth, core
                    if not known & bit:
                        # A known predicate contradicts the edge: the test of _assume_predicate, inlined to avoid a call
                        # for each edge.
                        if known & true & ~truth or truth & false or true & false:
                            continue
                        then_known, then_truth = known | true | false, truth | true
                    elif (truth & bit != 0) is not answer:
                        continue
                    if moves:
                        known_core = known_pasts((core, key, answer))
                        next_core = (
                            self.state_after_predicate(cores, core, key, answer) if known_core is None else known_core
                        )
                    next_point = (target, then_known & keep, then_truth & keep, next_core)
                if joining and next_point not in trail:
                    next_point = self._join_if_many(cores, seen_cores.setdefault(next_point[:3], []), next_point)
                if next_point not in trail:
                    trail[next_point] = here
                    work.append(next_point)

    def _apply_event(self, cores: _StateInterner, asked: tuple[int, int, int, int], event: Event, here: Here) -> int:
        """Return the state after an event. The result is cached for all paths unless the event depends on the path."""
        index, known, truth, core = here
        self.depends_on_path = False
        after = apply_event(self, index, event, PathState(known, truth, *cores.states[core]), here)
        moved = core if after[2:] == cores.states[core] else cores.intern_state(after[2:])
        if not self.depends_on_path:
            cores.after_event[asked] = moved
        return moved

    def _join_if_many(self, cores: _StateInterner, seen_cores: list[int], point: Here) -> Here:
        """Return a point, joined with earlier points if the node has many states."""
        index, known, truth, core = point
        if len(seen_cores) >= JOINED:
            core = cores.join(seen_cores[-1], core)
        if core not in seen_cores[JOINED:]:
            seen_cores.append(core)
        return (index, known, truth, core)

    def _find_event_predicates(self) -> int:
        """Return the predicates (as a bit set) that events depend on: window predicates and averaging over ranks."""
        asked = {
            key
            for node in self.graph.nodes
            if isinstance(node.event, e.Backward)
            for key, _ in node.event.averaged or ()
        }
        return sum(1 << key for key in asked | self.window_predicates.keys())

    def _build_edges(self) -> list[list[_Way]]:
        """Return the outgoing edges of each node, with conditions and implied predicates."""
        moving = self.window_predicates.keys() | self.flag_predicates.keys()

        def make_edge(target: int, key: int, answer: bool) -> _Way:
            if key < 0:
                return target, 0, None, self.live_predicates[target]
            return (
                target,
                1 << key,
                (key, answer, *self._find_implied(key, answer), key in moving),
                self.live_predicates[target],
            )

        return [[make_edge(*each) for each in ways] for ways in self.contract_edges()]

    def contract_edges(self) -> list[list[tuple[int, int, bool]]]:
        """Return the outgoing edges of each node, without nodes that have neither event nor predicate."""
        # Cached, because each finding needs the edges, and there may be as many findings as nodes.
        if self._short_edges is None:
            self._short_edges = self._contract_empty_nodes()
        return self._short_edges

    def _contract_empty_nodes(self) -> list[list[tuple[int, int, bool]]]:
        nodes = self.graph.nodes
        successors = list(range(len(nodes)))
        for i, node in enumerate(nodes):
            alone = len(node.edges) == 1 and node.edges[0][1] < 0
            if alone and node.event is None and not node.forgotten_predicates and node.skip_statement is None:
                successors[i] = node.edges[0][0]

        def find_end(target: int) -> int:
            seen: set[int] = set()
            while successors[target] != target and target not in seen:
                seen.add(target)
                target = successors[target]
            for one in seen:
                successors[one] = target
            return target

        return [[(find_end(target), key, truth) for target, key, truth in node.edges] for node in nodes]

    def extend_condition(self, known: int, truth: int, key: int, answer: bool) -> tuple[int, int] | None:
        """Return the known predicates after an edge, and their truth. None if the edge is infeasible."""
        if key < 0:
            return known, truth
        if known >> key & 1:
            return (known, truth) if bool(truth >> key & 1) is answer else None
        return self._assume_predicate(known, truth, key, answer)

    def _assume_predicate(self, known: int, truth: int, key: int, answer: bool) -> tuple[int, int] | None:
        """Return the path condition with a further predicate, or None if the condition contradicts the predicate."""
        true, false = self._find_implied(key, answer)
        if known & true & ~truth or truth & false or true & false:
            return None
        return known | true | false, truth | true

    def _find_implied(self, key: int, answer: bool) -> tuple[int, int]:
        """Return the true and the false predicates (as bit sets) implied by a predicate, including the predicate."""
        found = self.implications.get((key, answer))
        if found is None:
            true, false = (1 << key, 0) if answer else (0, 1 << key)
            for when, other, result in self.graph.predicates[key].implications:
                if when is answer:
                    true, false = (true | 1 << other, false) if result else (true, false | 1 << other)
            found = self.implications[key, answer] = true, false
        return found

    def state_after_predicate(self, cores: _StateInterner, core: int, key: int, answer: bool) -> int:
        """Return the state after a predicate that decides an accumulation window."""
        known = cores.after_predicate.get((core, key, answer))
        if known is None:
            regions, opts, used, renewed, stale = cores.states[core]
            if self.window_predicates.get(key, answer) != answer:
                ended = self.window_optimizers.get(key, set())
                opts = tuple(a.transition(opt, a.HOLD)[0] if i in ended else opt for i, opt in enumerate(opts))
            elif self.flag_predicates.get(key, answer) != answer:
                opts = tuple(o._replace(loop_kind=o.loop_kind or e.LOOSE) if o.grads in a.PENDING else o for o in opts)
            known = cores.after_predicate[core, key, answer] = cores.intern_state((regions, opts, used, renewed, stale))
        return known

    def report_violation(self, label: str, cause: int, detected_at: int, here: Here, *, sure: bool = True) -> None:
        """Record the first path of a violation, and count the states with the violation."""
        self.depends_on_path = True
        self.violations.setdefault((label, cause), (here, Violation(label, cause, detected_at)))
        key = (label, cause, detected_at)
        self.violation_counts[key] = self.violation_counts.get(key, 0) + 1
        if not sure:
            self.doubtful_violations.add(key)

    def walk_back(self, here: Here) -> Iterator[int]:
        self.depends_on_path = True
        point: Here | None = here
        while point is not None:
            self.nodes_looked_back += 1
            yield point[0]
            point = self.predecessors[point]

    def _report_finding(self, label: str, here: Here, violation: Violation) -> Finding | None:
        kind = LABELS[label][1]
        if not self._is_confirmed(label, violation.cause):
            return None
        nodes = self.graph.nodes
        cause, detected_at = nodes[violation.cause].event, nodes[violation.detected_at].event
        assert cause is not None
        involved = [cause]
        if detected_at is not None and detected_at is not cause:
            involved.append(detected_at)
            if _are_test_calls(cause.site, detected_at.site):
                return None
        if kind.concerns_training and not self.stepped_optimizers and cause.site.is_in_test():
            return None
        path = self.build_trace(label, here, violation.cause, violation.detected_at)
        if not self.knows_callers and (
            kind.certainty.missing_method or any(map(self._has_scaled_alternative, (*involved, *path)))
        ):
            return None
        partner = (
            detected_at if detected_at is not cause else next((x for x in reversed(path) if x is not cause), cause)
        )
        beside = partner.site if partner is not None else cause.site
        forward = cause.forward if kind.cause.concerns_loss and isinstance(cause, e.ScaledLoss) else None
        if forward is not None:
            beside = forward.site
        is_lent = forward is not None and beside.path != cause.site.path
        site = choose_location(cause.site, beside, reads=kind.cause.only_reads or is_lent)
        certain = self.violation_counts[label, violation.cause, violation.detected_at] >= max(
            1, self.visit_counts[violation.detected_at]
        )
        if kind.in_next_iteration:
            # The first iteration cannot have the violation. Other exceptions need a predicate around one of the two
            # events.
            certain = not any(key not in self.window_predicates for x in involved for key, _ in x.guards)
        condition = "" if certain else self._describe_condition(here, cause, involved, kind.sparing_kinds)
        guessed = (
            self.was_widened
            or self.graph.is_guessed
            or (label, violation.cause, violation.detected_at) in self.doubtful_violations
            or any(x.guessed for x in involved)
        )
        certain = certain and not guessed and (self.is_local_scaler(cause.subject) or not kind.certainty.missing_method)
        steps = [TraceStep(event.site, describe_event(event)) for event in path]
        names = [*involved, *reversed(path)]
        label, values = adapt_to_framework(label, names, self.program)
        skip = self._find_skip(here, violation.cause) if kind.names_skip else None
        if skip is not None:
            values = {**values, "skip": skip[0]}
            steps.insert(-1, TraceStep(skip[1], "the step is skipped"))
        return make_finding(label, site, names, values, tuple(steps), certain=certain, condition=condition)

    def _has_scaled_alternative(self, event: Event) -> bool:
        """Return True if a flag chooses between the event and calls of a scaler."""
        if event.subject is not None:
            return False
        scalers = {key for key, tracked_object in enumerate(self.program.objects) if tracked_object.role == "scaler"}
        events = (node.event for node in self.graph.nodes if node.event is not None)
        others = {guard for other in events if other.subject in scalers for guard in _decided(other.guards)}
        return any((key, not truth) in others for key, truth in _decided(event.guards))

    def _find_skip(self, here: Here, since: int) -> tuple[str, Site] | None:
        """Return the latest statement on a path since an event that skips the rest of an iteration, or None."""
        for index in self.walk_back(here):
            skips = self.graph.nodes[index].skip_statement
            if skips is not None or index == since:
                return skips
        return None

    def _describe_condition(
        self, here: Here, cause: Event, involved: list[Event], sparing_kinds: tuple[EventKind, ...]
    ) -> str:
        """Describe the predicates on the path that lead to the cause, or past an event that prevents the violation."""
        self.nodes_revisited += len(self.graph.nodes)
        answers = self._find_answers(here)
        about = {event.object for event in involved if event.object is not None}
        about.update(key for event in involved if isinstance(event, e.OwnedEvent) for key in event.owners or ())
        deciding_answers = [(key, truth) for key, truth in cause.guards if answers.get(key) is truth]
        for node in self.graph.nodes:
            event = node.event
            if isinstance(event, sparing_kinds) and (not about or event.object in {None, *about}):
                deciding_answers += [(key, not truth) for key, truth in event.guards if answers.get(key) is (not truth)]
        words = []
        for key, truth in dict.fromkeys(deciding_answers):
            source, answer = self.graph.predicates[key].text, truth
            if isinstance(source, NegatedText):
                source, answer = source.operand, not truth
            if text := str(source):
                words.append(f"`{text}` is {'true' if answer else 'false'}")
        return "when " + " and ".join(words[-2:]) if words else ""

    def _find_answers(self, here: Here) -> dict[int, bool]:
        """Return the latest truth of each predicate on a path."""
        answers: dict[int, bool] = {}
        edges, point = self.contract_edges(), here
        while (before := self.predecessors[point]) is not None:
            taken_edges = [(key, truth) for target, key, truth in edges[before[0]] if target == point[0]]
            if len(taken_edges) == 1:
                answers.setdefault(*taken_edges[0])
            point = before
        return answers


def _are_test_calls(site: Site, other: Site) -> bool:
    """Return True if two locations are in two calls of one function by a test, which runs no training."""
    mine, theirs = site.list_frames(), other.list_frames()
    if len(mine) < 2 or len(theirs) < 2 or not mine[0].is_in_test():
        return False
    of_one = (mine[1].path, mine[1].function) == (theirs[1].path, theirs[1].function)
    return of_one and (mine[0].line, mine[0].column) != (theirs[0].line, theirs[0].column)


def _find_trailing_windows(judge: _GraphChecker) -> Iterator[Predicate]:
    """Yield window predicates that guard all steps, if microbatches are known to remain after the last step."""
    tests = [
        judge.graph.predicates[key]
        for key in judge.window_predicates
        if judge.window_predicates[key] and key in judge.accumulating_windows
    ]
    tests = [test for test in tests if test.trailing_microbatches is not None and not test.is_off_by_one]
    if not tests or judge.program.attributes.fragment:
        return
    events = [node.event for node in judge.graph.nodes if node.event is not None]
    fed = [frozenset(event.guards) for event in events if isinstance(event, e.Backward)]
    for test in tests:
        ended = {judge.optimizer_keys[i] for i in judge.window_optimizers.get(test.key, ())}
        steps = [event for event in events if isinstance(event, (e.ScalerStep, e.Step)) and event.object in ended]
        # The backward has all other guards of the step, so no separate predicate ends the last window.
        alone = all(frozenset(event.guards) - {(test.key, True)} in fed for event in steps)
        windowed = all((test.key, True) in event.guards for event in steps)
        if alone and windowed and not ended & judge.escape_effects[e.STEPS]:
            yield test


def _describe_trailing(test: Predicate) -> dict[str, str]:
    assert test.trailing_microbatches is not None
    left, turns = test.trailing_microbatches
    number = f"the last {left} of" if left > 1 else "the last of"
    return {"window": str(test.text), "left": f"{number} {turns} micro-batches"}


def _is_path_feasible(judge: _GraphChecker, here: Here, violation: Violation) -> bool:
    """Return True if a violation occurs on its recorded path with the full path condition."""
    points: list[Here] = [here]
    while (before := judge.predecessors[points[-1]]) is not None:
        points.append(before)
    judge.nodes_revisited += len(points)
    saved_results = judge.violations, judge.violation_counts, judge.doubtful_violations, judge.idle_counts
    judge.violations, judge.violation_counts, judge.doubtful_violations, judge.idle_counts = (
        {},
        {},
        set(),
        [0] * len(judge.idle_counts),
    )
    feasible = _replay_path(judge, points[::-1])
    found = (violation.label, violation.cause) in judge.violations
    judge.violations, judge.violation_counts, judge.doubtful_violations, judge.idle_counts = saved_results
    return feasible and found


def _replay_path(judge: _GraphChecker, points: list[Here]) -> bool:
    """Follow a path and forget only predicates that events invalidate.

    Return True if no predicate contradicts the path.
    """
    cores = _StateInterner(((), tuple(a.OptimizerState() for _ in judge.optimizer_keys), 0, 0, -1))
    ways = judge.contract_edges()
    known = truth = core = 0
    for number, here in enumerate(points):
        node = judge.graph.nodes[here[0]]
        if node.event is not None:
            core = cores.intern_state(
                apply_event(judge, here[0], node.event, PathState(known, truth, *cores.states[core]), here)[2:]
            )
        known &= ~node.forgotten_predicates
        truth &= ~node.forgotten_predicates
        if number + 1 == len(points):
            break
        for target, key, answer in ways[here[0]]:
            answers = judge.extend_condition(known, truth, key, answer) if target == points[number + 1][0] else None
            if answers is not None:
                known, truth = answers
                core = judge.state_after_predicate(cores, core, key, answer)
                break
        else:
            return False
    return True
