"""Exploration of a graph: states are moved along edges, and every pair of node and state is visited once.

The predecessor of each pair is kept to show the path to a violation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from . import automaton as a
from . import events as e
from .checker import AutocastRegion, Here, PathState, Violation
from .effects import apply_event
from .event_graph import Graph, Program
from .events import Event
from .graph_summary import GraphSummary
from .live_predicates import compute_live_predicates, find_event_predicates, rank_predicates
from .rules import LABELS

#: Number of (node, state) pairs after which a graph is explored again with fewer remembered predicates. There is no
#: limit when no predicates are remembered and states are joined, because further visits of a node can only lose
#: information.
LIMIT = 40_000
#: Number of optimizers up to which the full number of pairs is explored. Each further optimizer makes a pair more
#: expensive and adds pairs.
SEVERAL = 8
#: Number of pairs per node that are always explored. Paths that forget their past, such as one training loop behind
#: another, need few pairs per node, however many optimizers there are.
PER_NODE = 4
#: Numbers of remembered predicates, tried in this order, when states are joined because all predicates are too many.
WIDER = (8, 4, 2, 0)
#: Budget of nodes revisited to examine single violations of one graph, which is quadratic in the code size. The budget
#: takes about ten seconds; a function with 400 violations under 1,200 conditions uses it up.
MOST_SPENT = 3_000_000
#: Budget of nodes that events of one graph may look back at in one exploration: about five seconds.
MOST_LOOKED = 10_000_000
#: Number of points of a search for a feasible path to one violation: about 0.1 seconds.
MOST_SEARCHED = 10_000
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
            opts = tuple(
                mine if mine is theirs else a.join(mine, theirs) for mine, theirs in zip(opts, others, strict=True)
            )
            common = self._joined_states[one, other] = self.intern_state(
                (regions, opts, used & also_used, renewed & also_renewed, stale if stale == also_stale else -1)
            )
        return common


class GraphExplorer(GraphSummary):
    """The explored states of one graph, with the violations on their paths."""

    def __init__(self, graph: Graph, program: Program) -> None:
        super().__init__(graph, program)
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
        #: Known and true predicates of the states with a violation that counts per choice of flags.
        self.violating_states: dict[tuple[str, int, int], list[tuple[int, int]]] = {}
        #: Violations that may have an invisible exemption.
        self.doubtful_violations: set[tuple[str, int, int]] = set()
        #: Predicates implied by the truth of a predicate.
        self.implications: dict[tuple[int, bool], tuple[int, int]] = {}
        #: Number of states at each node, and number of these states without an earlier backward.
        self.visit_counts: list[int] = []
        self.idle_counts: list[int] = []
        #: True if an event looked back along its path or reported a violation. The result may differ on another path.
        self.depends_on_path = False
        self.live_predicates: list[int] = []

    def exploration_limit(self) -> int:
        """Return the number of pairs to explore before fewer predicates are remembered."""
        return max(LIMIT * SEVERAL // max(SEVERAL, len(self.optimizer_keys)), PER_NODE * len(self.graph.nodes))

    def explore_widened(self) -> None:
        """Explore again with few predicates and joined states, which includes infeasible paths.

        The result has the violations of all paths, and the violations on feasible paths.
        """
        tests = rank_predicates(self)
        for size in sorted({min(size, len(tests)) for size in WIDER}, reverse=True):
            self.live_predicates = compute_live_predicates(self, e.SELDOM, sum(1 << key for key in tests[:size]))
            self.explore_graph(self.exploration_limit() // 2 if size else None, joining=True)
            if not self.limit_reached:
                break
        if self.limit_reached:
            # Not every state was visited, so no violation is known to hold in all states.
            self.budget_exceeded = True
            self.violations = {}
            return
        ends = {
            key: here if self._is_definite(violation) else self._find_feasible_end(here, violation)
            for key, (here, violation) in self.violations.items()
        }
        self.violations = {
            key: (ends[key] or here, violation)
            for key, (here, violation) in self.violations.items()
            if ends[key] is not None
        }

    def _find_feasible_end(self, here: Here, violation: Violation) -> Here | None:
        """Return the end of a feasible path with a violation: the recorded path, or the nearest other path.

        Return None without such a path, or once the budget is exceeded.
        """
        if self.exceeds_budget():
            return None
        points = [here]
        while (before := self.predecessors[points[-1]]) is not None:
            points.append(before)
        if _is_path_feasible(self, points[::-1], violation):
            return here
        points = _search_path(self, violation)
        # The trace of a finding follows the predecessors.
        self.predecessors.update(zip(points[1:], points, strict=False))
        self.predecessors.update(dict.fromkeys(points[:1]))
        return points[-1] if points and _is_path_feasible(self, points, violation) else None

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

    def exceeds_budget(self) -> bool:
        """Return True if no further violation may be examined, and record that violations are dropped."""
        if self.nodes_revisited > MOST_SPENT:
            self.budget_exceeded = True
        return self.nodes_revisited > MOST_SPENT

    def note_idle_step(self, index: int) -> None:
        self.depends_on_path = True
        self.idle_counts[index] += 1

    def explore_graph(self, limit: int | None, *, joining: bool = False) -> None:
        self.limit_reached = False
        self.nodes_looked_back = 0
        self.predecessors, self.violations, self.violation_counts, self.doubtful_violations = {}, {}, {}, set()
        self.accumulating_windows.clear()
        self.violating_states.clear()
        seen_cores: dict[tuple[int, ...], list[int]] = {}
        cores = _StateInterner(((), tuple(a.OptimizerState() for _ in self.optimizer_keys), 0, 0, -1))
        start: Here = (0, 0, 0, 0)
        self.predecessors[start] = None
        work = deque([start])
        nodes, edges = self.graph.nodes, self._build_edges()
        deciding = find_event_predicates(self)
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
        """Return the true and the false predicates (as bit sets) implied by a predicate, including the predicate.

        An implied predicate may imply further predicates.
        """
        found = self.implications.get((key, answer))
        if found is None:
            implied, work = {(key, answer)}, [(key, answer)]
            while work:
                asked, truth = work.pop()
                for when, other, result in self.graph.predicates[asked].implications:
                    if when is truth and (other, result) not in implied:
                        implied.add((other, result))
                        work.append((other, result))
            found = (
                sum(1 << one for one, truth in implied if truth),
                sum(1 << one for one, truth in implied if not truth),
            )
            self.implications[key, answer] = found
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
        if LABELS[label][1].precedence.needs_every_iteration:
            self.violating_states.setdefault(key, []).append((here[1], here[2]))
        if not sure:
            self.doubtful_violations.add(key)

    def occurs_every_iteration(self, violation: Violation) -> bool:
        """Return True if a violation occurs in all states at its event that agree in the predicates no loop changes."""
        fixed = ~self.varying_predicates
        cause = self.event_at(violation.cause)
        if cause is None or not any(fixed >> key & 1 == 0 for key, _ in cause.guards):
            # The caller's loop changes what decides the cause, unknown to this graph.
            return False
        violating = self.violating_states.get((violation.label, violation.cause, violation.detected_at), [])
        states = [point[1:3] for point in self.predecessors if point[0] == violation.detected_at]
        return any(
            sum((truth ^ other_truth) & known & other_known & fixed == 0 for other_known, other_truth in states)
            - self.idle_counts[violation.detected_at]
            <= sum((truth ^ other_truth) & known & other_known & fixed == 0 for other_known, other_truth in violating)
            for known, truth in set(violating)
        )

    def walk_back(self, here: Here) -> Iterator[int]:
        self.depends_on_path = True
        point: Here | None = here
        while point is not None:
            self.nodes_looked_back += 1
            yield point[0]
            point = self.predecessors[point]


def _search_path(explorer: GraphExplorer, violation: Violation) -> list[Here]:
    """Return the points of a path to the cause of a violation, and on to its detection, with full path conditions.

    The states on the way are not known. Return no points if the search finds no path within its limit.
    """
    ways = explorer.contract_edges()
    goals = (violation.cause, violation.detected_at)
    distances = [_distances_to(ways, goal) for goal in goals]
    #: A point with the number of goals that the path has passed.
    start = (0, *_assume_guards(explorer, violation), 0)
    work, number = [(start, 0)], 0
    trail: dict[tuple[int, int, int, int], tuple[int, int, int, int] | None] = {start: None}
    while work and len(trail) <= MOST_SEARCHED:
        explorer.nodes_revisited += 1
        point, passed = work.pop()
        index, known, truth, _ = point
        if index == goals[passed]:
            if passed or goals[0] == goals[1]:
                points: list[Here] = []
                at: tuple[int, int, int, int] | None = point
                while at is not None:
                    number -= 1
                    # A negative number marks a point outside the exploration.
                    points.append((*at[:3], number))
                    at = trail[at]
                return points[::-1]
            passed = 1
        forgotten = explorer.graph.nodes[index].forgotten_predicates
        known, truth = known & ~forgotten, truth & ~forgotten
        nearest = sorted(
            (way for way in ways[index] if way[0] in distances[passed]),
            key=lambda way: distances[passed][way[0]],
            reverse=True,
        )
        for target, key, answer in nearest:
            answers = explorer.extend_condition(known, truth, key, answer)
            after = (target, *answers, passed) if answers is not None else None
            if after is not None and after not in trail:
                trail[after] = point
                work.append((after, passed))
    return []


def _assume_guards(explorer: GraphExplorer, violation: Violation) -> tuple[int, int]:
    """Return the predicates that both events of a violation require, and their truth.

    A path that decides them otherwise would be found to be infeasible only at its end.
    """
    events = [explorer.event_at(index) for index in (violation.cause, violation.detected_at)]
    guards = {guard for event in events if event is not None for guard in event.guards}
    known = truth = 0
    for key, answer in sorted(guards):
        # A predicate with both answers is evaluated twice.
        answers = explorer.extend_condition(known, truth, key, answer) if (key, not answer) not in guards else None
        known, truth = answers or (known, truth)
    return known, truth


def _distances_to(ways: list[list[tuple[int, int, bool]]], goal: int) -> dict[int, int]:
    """Return the number of edges to a node from each node that reaches the node."""
    before: dict[int, list[int]] = {}
    for index, edges in enumerate(ways):
        for target, _, _ in edges:
            before.setdefault(target, []).append(index)
    found, work = {goal: 0}, deque([goal])
    while work:
        index = work.popleft()
        for other in before.get(index, ()):
            if other not in found:
                found[other] = found[index] + 1
                work.append(other)
    return found


def _is_path_feasible(explorer: GraphExplorer, points: list[Here], violation: Violation) -> bool:
    """Return True if a violation occurs on a path with the full path condition."""
    explorer.nodes_revisited += len(points)
    saved_results = explorer.violations, explorer.violation_counts, explorer.doubtful_violations, explorer.idle_counts
    saved_states = explorer.violating_states
    explorer.violations, explorer.violation_counts, explorer.doubtful_violations, explorer.idle_counts = (
        {},
        {},
        set(),
        [0] * len(explorer.idle_counts),
    )
    explorer.violating_states = {}
    feasible = _replay_path(explorer, points)
    found = (violation.label, violation.cause) in explorer.violations
    explorer.violations, explorer.violation_counts, explorer.doubtful_violations, explorer.idle_counts = saved_results
    explorer.violating_states = saved_states
    return feasible and found


def _replay_path(explorer: GraphExplorer, points: list[Here]) -> bool:
    """Follow a path and forget only predicates that events invalidate.

    Return True if no predicate contradicts the path.
    """
    cores = _StateInterner(((), tuple(a.OptimizerState() for _ in explorer.optimizer_keys), 0, 0, -1))
    ways = explorer.contract_edges()
    known = truth = core = 0
    for number, here in enumerate(points):
        node = explorer.graph.nodes[here[0]]
        if node.event is not None:
            core = cores.intern_state(
                apply_event(explorer, here[0], node.event, PathState(known, truth, *cores.states[core]), here)[2:]
            )
        known &= ~node.forgotten_predicates
        truth &= ~node.forgotten_predicates
        if number + 1 == len(points):
            break
        for target, key, answer in ways[here[0]]:
            answers = explorer.extend_condition(known, truth, key, answer) if target == points[number + 1][0] else None
            if answers is not None:
                known, truth = answers
                core = explorer.state_after_predicate(cores, core, key, answer)
                break
        else:
            return False
    return True
