"""The state at the place being read, and the graph that is drafted there."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

from ...protocol.events import Event, Node, Site
from ...protocol.fast_namedtuple import NamedTuple
from .conditions import Formula
from .values import Frame, Heap, Jump, Return

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Loop:
    """A loop that is being read. ``key`` names its turns in :attr:`Value.loops`.

    ``node`` and ``frame`` are where it stands; ``pieces`` says that it runs over the micro-batches of a window.
    ``item`` is the number of the turn of a loop of which each turn is read by itself.
    """

    __slots__ = ("breaks", "continues", "frame", "iteration", "key", "node", "over_microbatches", "unwind_base")

    def __init__(self, key: int, unwind_base: int) -> None:
        self.key = key
        self.unwind_base = unwind_base
        self.node: ast.For | ast.AsyncFor | ast.While | None = None
        self.frame: Frame | None = None
        self.over_microbatches = False
        self.iteration = 0
        self.breaks: list[Jump] = []
        self.continues: list[Jump] = []


class Savepoint(NamedTuple):
    """A place in a draft, and what had happened before it."""

    node: int | None
    edge_count: int
    node_count: int
    event_count: int
    return_count: int
    jump_count: int


class OpenRegion:
    """An autocast region that stands open around the place being read."""

    __slots__ = ("cache", "device", "dtype", "enabled", "loop_keys", "site", "source_text")

    def __init__(self, enabled: Formula, device: str, dtype: str, *, cache: bool = True) -> None:
        self.cache = cache
        self.enabled = enabled
        self.device = device
        self.dtype = dtype
        #: Where it was entered, by what words, and the loops around that place.
        self.site: Site | None = None
        self.source_text: object = ""
        self.loop_keys: tuple[int, ...] = ()


class GraphBuilder:
    """Nodes of a graph that is under construction, or of one that is thrown away when it was looked at."""

    __slots__ = ("_exits", "event_count", "jump_count", "loop_heads", "nodes", "return_count")

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        #: The first nodes of loops, with the keys of their turns.
        self.loop_heads: list[tuple[int, int]] = []
        #: Events and raises, returns, and jumps of loops so far: what holds none can be left out of the graph.
        self.event_count = 0
        self.return_count = 0
        self.jump_count = 0
        #: The lists of frames and loops to which ways out of this draft were added.
        self._exits: list[list[Any]] = []

    def add_node(self, event: Event | None = None) -> int:
        """A new place, where an event happens or none does."""
        self.nodes.append(Node(event))
        return len(self.nodes) - 1

    def add_edge(self, source: int | None, target: int, key: int = -1, truth: bool = True) -> None:
        """Lead on from one place to another, where the answer to a test is this one."""
        if source is not None:
            self.nodes[source].edges.append((target, key, truth))

    def join_nodes(self, nodes: Iterable[int | None]) -> int | None:
        """One place that all the given places lead to."""
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
        """Remember a place, so that what follows can be left out if nothing happens in it."""
        edge_count = len(self.nodes[node].edges) if node is not None else 0
        return Savepoint(node, edge_count, len(self.nodes), self.event_count, self.return_count, self.jump_count)

    def rollback_if_empty(self, savepoint: Savepoint, current_node: int | None) -> int | None:
        """Where to go on: at a marked place, if nothing has happened since and the way on is open."""
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
        """Add a way out of a function or a loop, which may have been entered in another draft."""
        exits.append(new_exit)
        self._exits.append(exits)

    def discard_exits(self) -> None:
        """Take back the ways that lead out of this draft: nobody can go on from a place that is thrown away."""
        for exits in reversed(self._exits):
            exits.pop()


class AbstractState:
    """The state at a place: what a fork gives to both of its arms, and what is thrown away with what was read for it.

    ``cur`` is the place in the draft, None where control does not come. The variables are those of ``frame``, the
    attributes of objects are in ``heap``.
    """

    __slots__ = (
        "ambient_autocast",
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
        #: The conditions under which the place stands.
        self.path_condition: list[Formula] = []
        #: What leaving the blocks around the place does.
        self.unwind_actions: list[Callable[[], None]] = []
        self.loops: list[Loop] = []
        #: The comprehensions whose element is being read, each a loop that is read as one turn.
        self.open_comprehensions: tuple[int, ...] = ()
        self.open_regions: list[OpenRegion] = []
        self.possible_regions = 0
        #: Regions around the place, and how many were entered so far.
        self.region_depth = 0
        self.regions_entered = 0
        self.no_grad = 0
        #: How far it is known that a framework runs this code under autocast: a severity, or None where it does not.
        self.ambient_autocast: str | None = None
        #: When gradients are not averaged over processes here, for each context that says so.
        self.no_sync_conditions: list[Formula] = []
        #: When the regions of TransformerEngine around the place are enabled, the innermost last.
        self.float8_conditions: list[Formula] = []
        #: What provides for another version of a library: tests and handlers around the place, and tries of such
        #: handlers in the same function. What one of these calls provides for nothing.
        self.fallback_depth = self.fallback_try_depth = 0
        self.try_depth = 0
        #: Forwards of modules that are being read for what they do to a loss.
        self.forward_depth = 0
        #: Handlers of errors around the place.
        self.handler_depth = 0
        #: The places after which something may raise, for each ``try`` around.
        self.raising_nodes: list[list[int]] = []
        #: Whether what is being read is what raised errors meet on their way out of a ``try``.
        self.is_unwinding_error = False
        #: The statement that the innermost ``try`` begins with.
        self.first_tried_statement: ast.stmt | None = None

    def copy(self) -> AbstractState:
        """The same state, which may go on in another way: what objects hold is shared until somebody writes to it."""
        made = AbstractState(self.frame, self.heap)
        for name in _PLAIN:
            setattr(made, name, getattr(self, name))
        for name in _LISTS:
            setattr(made, name, list(getattr(self, name)))
        return made


_LISTS = ("no_sync_conditions", "float8_conditions", "loops", "open_regions", "path_condition", "unwind_actions")
_PLAIN = tuple(name for name in AbstractState.__slots__ if name not in (*_LISTS, "raising_nodes"))
