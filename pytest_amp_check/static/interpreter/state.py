"""The state at the place being read, and the graph that is drafted there."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

from ...protocol.events import Event, Node, Site
from ...protocol.named import NamedTuple
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

    __slots__ = ("breaks", "continues", "frame", "item", "key", "node", "pieces", "unwind_base")

    def __init__(self, key: int, unwind_base: int) -> None:
        self.key = key
        self.unwind_base = unwind_base
        self.node: ast.For | ast.AsyncFor | ast.While | None = None
        self.frame: Frame | None = None
        self.pieces = False
        self.item = 0
        self.breaks: list[Jump] = []
        self.continues: list[Jump] = []


class Mark(NamedTuple):
    """A place in a draft, and what had happened before it."""

    place: int | None
    ways: int
    size: int
    happened: int
    returned: int
    jumped: int


class Open:
    """An autocast region that stands open around the place being read."""

    __slots__ = ("cache", "device", "dtype", "enabled", "site", "turns", "words")

    def __init__(self, enabled: Formula, device: str, dtype: str, *, cache: bool = True) -> None:
        self.cache = cache
        self.enabled = enabled
        self.device = device
        self.dtype = dtype
        #: Where it was entered, by what words, and the loops around that place.
        self.site: Site | None = None
        self.words: object = ""
        self.turns: tuple[int, ...] = ()


class Draft:
    """Nodes of a graph that is under construction, or of one that is thrown away when it was looked at."""

    __slots__ = ("_exits", "happened", "heads", "jumped", "nodes", "returned")

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        #: The first nodes of loops, with the keys of their turns.
        self.heads: list[tuple[int, int]] = []
        #: Events and raises, returns, and jumps of loops so far: what holds none can be left out of the graph.
        self.happened = 0
        self.returned = 0
        self.jumped = 0
        #: The lists of frames and loops to which ways out of this draft were added.
        self._exits: list[list[Any]] = []

    def node(self, event: Event | None = None) -> int:
        """A new place, where an event happens or none does."""
        self.nodes.append(Node(event))
        return len(self.nodes) - 1

    def link(self, source: int | None, target: int, key: int = -1, truth: bool = True) -> None:
        """Lead on from one place to another, where the answer to a test is this one."""
        if source is not None:
            self.nodes[source].ways.append((target, key, truth))

    def join(self, places: Iterable[int | None]) -> int | None:
        """One place that all the given places lead to."""
        real = [place for place in dict.fromkeys(places) if place is not None]
        if not real:
            return None
        if len(real) == 1:
            return real[0]
        here = self.node()
        for place in real:
            self.link(place, here)
        return here

    def mark(self, place: int | None) -> Mark:
        """Remember a place, so that what follows can be left out if nothing happens in it."""
        ways = len(self.nodes[place].ways) if place is not None else 0
        return Mark(place, ways, len(self.nodes), self.happened, self.returned, self.jumped)

    def forget(self, mark: Mark, here: int | None) -> int | None:
        """Where to go on: at a marked place, if nothing has happened since and the way on is open."""
        place, ways, size = mark.place, mark.ways, mark.size
        if place is None or here is None:
            return here
        if (self.happened, self.returned, self.jumped) != (mark.happened, mark.returned, mark.jumped):
            return here
        del self.nodes[size:]
        del self.nodes[place].ways[ways:]
        while self.heads and self.heads[-1][0] >= size:
            self.heads.pop()
        return place

    def leave(self, exits: list[Any], way: Return | Jump) -> None:
        """Add a way out of a function or a loop, which may have been entered in another draft."""
        exits.append(way)
        self._exits.append(exits)

    def discard(self) -> None:
        """Take back the ways that lead out of this draft: nobody can go on from a place that is thrown away."""
        for exits in reversed(self._exits):
            exits.pop()


class State:
    """The state at a place: what a fork gives to both of its arms, and what is thrown away with what was read for it.

    ``cur`` is the place in the draft, None where control does not come. The variables are those of ``frame``, the
    attributes of objects are in ``heap``.
    """

    __slots__ = (
        "ambient",
        "apart",
        "cur",
        "depth",
        "entered",
        "escaping",
        "float8",
        "forwards",
        "frame",
        "guarded",
        "handlers",
        "heap",
        "loops",
        "maybe_open",
        "no_grad",
        "open",
        "path",
        "rescuing",
        "shims",
        "tried",
        "trying",
        "turns",
        "unwind",
    )

    def __init__(self, frame: Frame, heap: Heap) -> None:
        self.cur: int | None = 0
        self.frame = frame
        self.heap = heap
        #: The conditions under which the place stands.
        self.path: list[Formula] = []
        #: What leaving the blocks around the place does.
        self.unwind: list[Callable[[], None]] = []
        self.loops: list[Loop] = []
        #: The comprehensions whose element is being read, each a loop that is read as one turn.
        self.turns: tuple[int, ...] = ()
        self.open: list[Open] = []
        self.maybe_open = 0
        #: Regions around the place, and how many were entered so far.
        self.depth = 0
        self.entered = 0
        self.no_grad = 0
        #: How far it is known that a framework runs this code under autocast: a severity, or None where it does not.
        self.ambient: str | None = None
        #: When gradients are not averaged over processes here, for each context that says so.
        self.apart: list[Formula] = []
        #: When the regions of TransformerEngine around the place are enabled, the innermost last.
        self.float8: list[Formula] = []
        #: What provides for another version of a library: tests and handlers around the place, and tries of such
        #: handlers in the same function. What one of these calls provides for nothing.
        self.shims = self.trying = 0
        self.guarded = 0
        #: Forwards of modules that are being read for what they do to a loss.
        self.forwards = 0
        #: Handlers of errors around the place.
        self.rescuing = 0
        #: The places after which something may raise, for each ``try`` around.
        self.handlers: list[list[int]] = []
        #: Whether what is being read is what raised errors meet on their way out of a ``try``.
        self.escaping = False
        #: The statement that the innermost ``try`` begins with.
        self.tried: ast.stmt | None = None

    def copy(self) -> State:
        """The same state, which may go on in another way: what objects hold is shared until somebody writes to it."""
        made = State(self.frame, self.heap)
        for name in _PLAIN:
            setattr(made, name, getattr(self, name))
        for name in _LISTS:
            setattr(made, name, list(getattr(self, name)))
        return made


_LISTS = ("apart", "float8", "loops", "open", "path", "unwind")
_PLAIN = tuple(name for name in State.__slots__ if name not in (*_LISTS, "handlers"))
