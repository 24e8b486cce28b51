"""The state at the place being read, and the graph that is drafted there."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ...protocol.events import Node, Site
from ...protocol.named import NamedTuple
from .conditions import Formula
from .values import Frame, Heap, Jump, Return

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Loop:
    """A loop that is being read. ``key`` names its turns in :attr:`Value.loops`.

    ``node`` and ``frame`` are where it stands; ``pieces`` says that it runs over the micro-batches of a window.
    """

    __slots__ = ("breaks", "continues", "frame", "key", "node", "pieces", "unwind_base")

    def __init__(self, key: int, unwind_base: int) -> None:
        self.key = key
        self.unwind_base = unwind_base
        self.node: ast.For | ast.AsyncFor | ast.While | None = None
        self.frame: Frame | None = None
        self.pieces = False
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

    def copy(self) -> State:
        """The same state, which may go on in another way: what objects hold is shared until somebody writes to it."""
        made = State(self.frame, self.heap)
        for name in _PLAIN:
            setattr(made, name, getattr(self, name))
        for name in _LISTS:
            setattr(made, name, list(getattr(self, name)))
        return made


_LISTS = ("apart", "loops", "open", "path", "unwind")
_PLAIN = tuple(name for name in State.__slots__ if name not in (*_LISTS, "handlers"))
