"""Abstract state at the current node, and the builder of the event graph."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

from ...protocol.event_graph import Node
from ...protocol.events import Event
from ...protocol.fast_namedtuple import NamedTuple
from ...protocol.sites import Site
from .conditions import Formula
from .values.definitions import Frame, Heap, Jump, Return, Vars

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Loop:
    """Loop under analysis. :attr:`Value.loops` refers to the loop by ``key``.

    ``node`` and ``frame`` are the loop statement and its frame. ``over_microbatches`` says that the loop iterates over
    the micro-batches of a window, ``is_named_microbatches`` that only names say so. ``iteration`` is the number of the
    current iteration of an unrolled loop. ``uniform_node`` is the statement of a loop whose one iteration stands for
    all, and ``first_node`` the number of the first node of this iteration. ``runs_once`` says that the loop stands for
    the calls of a constructor, each of which fills another object. ``last_iteration_predicates`` have the given truth
    in the last iteration, and in no other iteration. ``is_dry_run`` says that the iteration only shows the values
    after it, and ``first_iterations`` holds those of the inner loops, by key.
    """

    __slots__ = (
        "breaks",
        "continues",
        "first_iterations",
        "first_node",
        "frame",
        "is_dry_run",
        "is_named_microbatches",
        "iteration",
        "key",
        "last_iteration_predicates",
        "node",
        "over_microbatches",
        "runs_once",
        "uniform_node",
        "unwind_base",
    )

    def __init__(self, key: int, unwind_base: int) -> None:
        self.key = key
        self.unwind_base = unwind_base
        self.node: ast.For | ast.AsyncFor | ast.While | None = None
        self.frame: Frame | None = None
        self.over_microbatches = False
        self.is_named_microbatches = False
        self.runs_once = False
        self.iteration = 0
        self.uniform_node: ast.For | ast.AsyncFor | None = None
        self.first_node = 0
        self.last_iteration_predicates: dict[int, bool] = {}
        self.is_dry_run = False
        self.first_iterations: dict[int, tuple[Vars, Heap]] = {}
        self.breaks: list[Jump] = []
        self.continues: list[Jump] = []


class Savepoint(NamedTuple):
    """Node of a graph under construction, with the counts of the graph builder at that node."""

    node: int | None
    edge_count: int
    node_count: int
    event_count: int
    return_count: int
    jump_count: int


class OpenRegion:
    """Autocast region that is open at the current node."""

    __slots__ = ("cache", "device", "dtype", "enabled", "loop_keys", "may_choose_float16", "site", "source_text")

    def __init__(
        self, enabled: Formula, device: str, dtype: str, *, cache: bool = True, may_choose_float16: bool = False
    ) -> None:
        self.cache = cache
        self.may_choose_float16 = may_choose_float16
        self.enabled = enabled
        self.device = device
        self.dtype = dtype
        #: Location and source text of the entry, and the keys of the loops around the entry.
        self.site: Site | None = None
        self.source_text: object = ""
        self.loop_keys: tuple[int, ...] = ()


class GraphBuilder:
    """Builder of the event graph, or of a temporary graph for a dry run."""

    __slots__ = ("_exits", "event_count", "jump_count", "loop_heads", "nodes", "return_count")

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        #: Head nodes of loops, with the keys of the loops.
        self.loop_heads: list[tuple[int, int]] = []
        #: Numbers of events and raises, of returns, and of jumps so far. A subgraph without any of these can be
        #: removed.
        self.event_count = 0
        self.return_count = 0
        self.jump_count = 0
        #: Lists of exits, in frames and loops, that received an exit from this graph.
        self._exits: list[list[Any]] = []

    def add_node(self, event: Event | None = None) -> int:
        """Add a node, with or without an event, and return its index."""
        self.nodes.append(Node(event))
        return len(self.nodes) - 1

    def add_edge(self, source: int | None, target: int, key: int = -1, truth: bool = True) -> None:
        """Add an edge between two nodes, taken if the predicate ``key`` has this truth; -1 stands for no predicate."""
        if source is not None:
            self.nodes[source].edges.append((target, key, truth))

    def join_nodes(self, nodes: Iterable[int | None]) -> int | None:
        """Return one node that all given nodes lead to, or None if no given node is reachable."""
        real = [source for source in dict.fromkeys(nodes) if source is not None]
        if not real:
            return None
        if len(real) == 1:
            return real[0]
        joined = self.add_node()
        for source in real:
            self.add_edge(source, joined)
        return joined

    def set_savepoint(self, node: int | None) -> Savepoint:
        """Return a savepoint, from which a subgraph without events can be rolled back."""
        edge_count = len(self.nodes[node].edges) if node is not None else 0
        return Savepoint(node, edge_count, len(self.nodes), self.event_count, self.return_count, self.jump_count)

    def rollback_if_empty(self, savepoint: Savepoint, current_node: int | None) -> int | None:
        """Return the node of the savepoint if nothing happened since, and remove the later nodes.

        Otherwise return the current node.
        """
        node, edge_count, size = savepoint.node, savepoint.edge_count, savepoint.node_count
        if node is None or current_node is None:
            return current_node
        if (self.event_count, self.return_count, self.jump_count) != (
            savepoint.event_count,
            savepoint.return_count,
            savepoint.jump_count,
        ):
            return current_node
        del self.nodes[size:]
        del self.nodes[node].edges[edge_count:]
        while self.loop_heads and self.loop_heads[-1][0] >= size:
            self.loop_heads.pop()
        return node

    def add_exit(self, exits: list[Any], new_exit: Return | Jump) -> None:
        """Add an exit to a function or a loop, which may belong to another graph builder."""
        exits.append(new_exit)
        self._exits.append(exits)

    def discard_exits(self) -> None:
        """Remove the exits that lead out of this temporary graph: no path continues from a discarded node."""
        for exits in reversed(self._exits):
            exits.pop()


class AbstractState:
    """Abstract state at a node: both branches of a split get a copy, and a dry run discards its copy.

    ``current_node`` is the node in the graph, None for unreachable code. ``frame`` holds the variables, ``heap`` the
    attributes of objects.
    """

    __slots__ = (
        "ambient_autocast",
        "caught_in_loop",
        "current_node",
        "fallback_depth",
        "fallback_try_depth",
        "first_tried_statement",
        "float8_conditions",
        "forward_depth",
        "frame",
        "handler_depth",
        "heap",
        "is_unwinding_error",
        "loops",
        "no_grad",
        "no_sync_conditions",
        "open_comprehensions",
        "open_regions",
        "path_condition",
        "possible_regions",
        "raised_values",
        "raising_nodes",
        "region_depth",
        "regions_entered",
        "try_depth",
        "unwind_actions",
    )

    def __init__(self, frame: Frame, heap: Heap) -> None:
        self.current_node: int | None = 0
        self.frame = frame
        self.heap = heap
        #: Conditions that the current path has assumed.
        self.path_condition: list[Formula] = []
        #: Actions that leaving the open blocks runs.
        self.unwind_actions: list[Callable[[], None]] = []
        self.loops: list[Loop] = []
        #: Comprehensions whose element is being evaluated; each is a loop with one analyzed iteration.
        self.open_comprehensions: tuple[int, ...] = ()
        self.open_regions: list[OpenRegion] = []
        self.possible_regions = 0
        #: Number of open regions, and number of regions entered so far.
        self.region_depth = 0
        self.regions_entered = 0
        self.no_grad = 0
        #: Severity with which a framework is known to run this code under autocast; None if no framework does.
        self.ambient_autocast: str | None = None
        #: For each open context that suspends gradient averaging over processes: the condition for it.
        self.no_sync_conditions: list[Formula] = []
        #: Conditions under which the open TransformerEngine regions are enabled, the innermost last.
        self.float8_conditions: list[Formula] = []
        #: Depth of version fallbacks: of conditions and handlers around the node, and of `try` statements with such
        #: handlers in the same function. A function called from a `try` body is no fallback.
        self.fallback_depth = self.fallback_try_depth = 0
        self.try_depth = 0
        #: Number of `try` statements with handlers around the node, in any function, that leave a loop running.
        self.caught_in_loop = 0
        #: Number of module forwards that are being analyzed for their effect on a loss.
        self.forward_depth = 0
        #: Number of exception handlers around the node.
        self.handler_depth = 0
        #: Nodes after which an exception may occur, for each `try` statement around the node.
        self.raising_nodes: list[list[int]] = []
        #: Frame, variables and heap at each node where the code itself raises an exception inside a `try` statement.
        #: The nodes of a discarded graph are other objects, so no entry is mistaken for another one.
        self.raised_values: dict[Node, tuple[Frame, Vars, Heap]] = {}
        #: True while the analysis runs a `finally` block on the path of an exception.
        self.is_unwinding_error = False
        #: First statement in the body of the innermost `try`.
        self.first_tried_statement: ast.stmt | None = None

    def copy(self) -> AbstractState:
        """Return a copy of the state for another path. The heap is shared until a path writes to it."""
        made = AbstractState(self.frame, self.heap)
        for name in _PLAIN:
            setattr(made, name, getattr(self, name))
        for name in _LISTS:
            setattr(made, name, list(getattr(self, name)))
        return made


_LISTS = ("no_sync_conditions", "float8_conditions", "loops", "open_regions", "path_condition", "unwind_actions")
_PLAIN = tuple(name for name in AbstractState.__slots__ if name not in (*_LISTS, "raising_nodes", "raised_values"))
