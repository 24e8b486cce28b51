"""The vocabulary both readers speak: things, events, and the graph that orders them.

A program is a graph of AMP events; a run is such a graph with one path. ``static`` builds the graph from source,
``runtime`` builds the chain from a run, and :func:`pytest_amp_check.protocol.check.check` does not know which it got.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


# Event kinds. The subject of an event is the thing named first in its comment, the object the second.
AUTOCAST_NEW = "autocast-new"  # an autocast context is constructed; facts: arguments as bound to the signature
AUTOCAST_ENTER = "autocast-enter"  # region; facts: instance, device, dtype, enabled, cache
AUTOCAST_EXIT = "autocast-exit"  # region
AUTOCAST_CACHE_CLEAR = "autocast-cache-clear"
#: An autograd.Function that does not take what autocast gives it; facts: how, applied (to what matters), inside.
CUSTOM_FUNCTION = "custom-function"
SCOPE_LOST = "scope-lost"  # an autocast that never covers the intended code; facts: how
CAPTURE = "capture"  # module that is traced, or whose kernels are captured; facts: how
THREAD = "thread"  # module that another thread runs than the one that is in a region; facts: how
COMPILED = "compiled"  # module that is compiled and has float32 islands: run in a region, and backward outside of it
COMM_HOOK = "comm-hook"  # module whose gradients are cast to float16 before they are averaged over ranks
SCALER_NEW = "scaler-new"  # scaler; facts: arguments
OPTIMIZER_NEW = "optimizer-new"  # optimizer; facts: found (not constructed here: its gradients may be anything)
SCALE = "scale"  # scaler; facts: what is known of the scaled value
#: Scaler or nothing. facts: feeds, divided, vague, inside (a loop without a step), apart (under no_sync), averaged (the
#: tests under which it averages the gradients over processes, None where it does not, as far as is known)
BACKWARD = "backward"
AUTOGRAD_GRAD = "autograd-grad"
UNSCALE = "unscale"  # scaler, optimizer; facts: framework (see SCALER_STEP)
RESTORE = "restore"  # scaler; a block ends that unscales what it has scaled; facts: owners
DIVIDED_TWICE = "divided-twice"  # a loss is divided by a number by which the framework divides it too
CLIP = "clip"  # optimizers whose gradients are clipped; facts: owners, nonfinite_error, measures_only, local
GRAD_READ = "grad-read"
GRAD_EDIT = "grad-edit"
GRAD_DIVIDE = "grad-divide"  # gradients divided by the loss scale by hand
GRAD_NORMALISE = "grad-normalise"  # gradients divided by the number of micro-batches by hand
GRAD_AVERAGE = "grad-average"  # gradients may be averaged over processes by hand
SCALER_STEP = "scaler-step"  # scaler, optimizer; facts: framework (its step, with the update; "" where it may be none)
STEP = "step"  # optimizer, stepped directly
UPDATE = "update"  # scaler; facts: new_scale, and of a run: scale, skips_in_a_row, skips, steps, growth_interval
ZERO_GRAD = (
    # optimizers whose gradients are cleared; facts: owners, rescue (an exception was caught), guessed, zeros (by zeros
    # that nothing in view needs)
    "zero-grad"
)
FORWARD = "forward"  # module
LOSS = "loss"  # facts: kind, low_precision, ambient (a framework runs it under autocast)
PARAM_WRITE = "param-write"
MODULE_CAST = "module-cast"  # module; facts: dtype
FILL = "fill"  # facts: value, tensor
SCALER_STATE = "scaler-state"  # scaler.state_dict()
SCALER_LOAD = "scaler-load"  # scaler.load_state_dict()
SAVE = "save"  # facts: contents
OPTIMIZER_LOAD = "optimizer-load"  # optimizer.load_state_dict(); facts: holds_scaler (so does what it is loaded from)
SCHEDULER_STEP = "scheduler-step"  # optimizer whose learning rate moves; facts: loops, or of a run: skipped, idle
GRAD_INVALID = "grad-invalid"  # optimizer: values that are not finite appeared in its gradients after unscale_
PENALTY = "penalty"  # scaled gradients from autograd.grad enter a new loss
DEPRECATED = "deprecated"  # facts: old, new
# What low precision does to values. facts: dtype ("half" where it is one of the two), guessed (code that cannot be read
# gave the tensor), how.
EPSILON = "epsilon"  # a small constant is added to a tensor, or is the least that one may be; facts: value, divides
FRAGILE_MATH = "fragile-math"  # an expression that overflows or cancels
LOW_SUM = "low-sum"  # a running sum is kept in low precision
OVERHEAD = "overhead"  # what is cast or copied more often than needed; facts: how, and of a loss scale loops
LOW_POSITIONS = "low-positions"  # positions lose their last digits
DTYPE_CLASH = "dtype-clash"  # a low-precision tensor meets float32 where nothing promotes
HANDOFF = "handoff"  # things given to code that cannot be read; facts: things, also_scaler
#: A loop that counts accumulation windows is left: what it leaves over is no window. facts: complete, where the loop
#: leaves the step to what follows, so that its end completes the window; within, where a loop around it does so too.
LOOP_EXIT = "loop-exit"
AGAIN = "again"  # the function that was read is called once more, by code that is not read
END = "end"  # the end of the program that was read

# Loops that run backward at every turn and leave the step to what follows: any, and those over the micro-batches of one
# window.
LOOSE = "loose"
MICRO = "micro"


class Symbol(str):
    """A value that is known by name only: ``Symbol("torch.float16")``."""

    __slots__ = ()


#: A value of which nothing is known.
UNKNOWN = Symbol("?")


class Site:
    """A place in a source file, with the chain of calls that led to it.

    ``line`` and ``end_line`` count from 1, ``column`` and ``end_column`` from 0, in characters. ``caller`` is the
    place of the call that entered the function in which this site lies, or None at the outermost frame that was read.
    ``cell`` is the number of the notebook cell, from 1, in which the lines then count; None in any other file.
    """

    __slots__ = ("caller", "cell", "column", "end_column", "end_line", "function", "line", "path")

    def __init__(
        self,
        path: str,
        line: int,
        column: int = 0,
        end_line: int | None = None,
        end_column: int | None = None,
        function: str = "",
        caller: Site | None = None,
        cell: int | None = None,
    ) -> None:
        self.path = path
        self.line = line
        self.column = column
        self.end_line = line if end_line is None else end_line
        self.end_column = column if end_column is None else end_column
        self.function = function
        self.caller = caller
        self.cell = cell

    def frames(self) -> list[Site]:
        """The calls that led here, outermost first, and this site."""
        chain: list[Site] = []
        site: Site | None = self
        while site is not None:
            chain.append(site)
            site = site.caller
        chain.reverse()
        return chain

    @property
    def place(self) -> str:
        """Path, cell and line, as they are shown."""
        return f"{self.path}:{self.line}" if self.cell is None else f"{self.path}:cell {self.cell}:{self.line}"

    def __repr__(self) -> str:
        return f"{self.place}:{self.column}"


class Thing:
    """An object the protocol speaks of: a scaler, an optimizer, a module, an autocast region.

    ``key`` is its index in :attr:`Program.things`; ``facts`` holds what its constructor said.
    """

    __slots__ = ("facts", "key", "name", "role", "site")

    def __init__(self, key: int, role: str, name: str, site: Site | None, facts: dict[str, Any]) -> None:
        self.key = key
        self.role = role
        self.name = name
        self.site = site
        self.facts = facts

    def __repr__(self) -> str:
        return f"<{self.role} {self.key} {self.name}>"


class Event:
    """One AMP event.

    ``subject`` and ``object`` are keys of things, ``names`` the user's own words for them (as ``str`` gives them).

    ``guards`` are the tests (key, truth) under which the event stands in the source; a run has none.
    """

    __slots__ = ("facts", "guards", "kind", "names", "object", "site", "subject")

    def __init__(
        self,
        kind: str,
        site: Site,
        subject: int | None = None,
        object: int | None = None,
        facts: dict[str, Any] | None = None,
        names: dict[str, object] | None = None,
        guards: tuple[tuple[int, bool], ...] = (),
    ) -> None:
        self.kind = kind
        self.site = site
        self.subject = subject
        self.object = object
        self.facts = facts or {}
        self.names = names or {}
        self.guards = guards

    def __repr__(self) -> str:
        return f"<{self.kind} {self.subject} {self.object} @{self.site}>"


class Test:
    """A condition whose truth decides which way a program goes; a path assumes it once and keeps to it.

    ``counts`` says that the test compares a loop's counter (``(i + 1) % k == 0``, ``count == k``), ``off_by_one`` that
    such a test is already true for the first micro-batch. ``later`` is the truth that it cannot have then, if that is
    known. ``of_gradients`` are the optimizers of whose gradients it asks whether they are finite, None for any,
    ``turn`` that it asks whether a loop is in its first turn, ``flag`` that it asks for the truth of an argument,
    ``of_scale`` that it compares loss scales. ``implies`` lists (truth of this test, key of another, its truth).
    """

    __slots__ = (
        "counts",
        "flag",
        "implies",
        "key",
        "later",
        "of_gradients",
        "of_scale",
        "off_by_one",
        "site",
        "text",
        "turn",
    )

    def __init__(self, key: int, text: object, site: Site | None) -> None:
        self.key = key
        self.text = text
        self.site = site
        self.counts = False
        self.off_by_one = False
        self.later: bool | None = None
        self.flag = False
        self.of_gradients: frozenset[int] | None = frozenset()
        self.of_scale = False
        self.turn = False
        self.implies: list[tuple[bool, int, bool]] = []


class Node:
    """A point of the graph: at most one event, the tests that become unknown here, and the ways on.

    ``ways`` are (target node, key of a test or -1, the truth it takes to go that way).
    """

    __slots__ = ("event", "forgets", "ways")

    def __init__(self, event: Event | None = None) -> None:
        self.event = event
        self.forgets = 0  # bit set of test keys
        self.ways: list[tuple[int, int, bool]] = []


class Graph:
    """Events in the order in which a program may perform them. Node 0 is the entry.

    ``entry`` is the path and line of the function that was read on its own, line 0 for a module's body.
    """

    __slots__ = ("entry", "name", "nodes", "tests")

    def __init__(self, name: str, entry: tuple[str, int] = ("", 0)) -> None:
        self.name = name
        self.entry = entry
        self.nodes: list[Node] = []
        self.tests: list[Test] = []


class Program:
    """Everything read from one source tree or one run: its graphs and the things that their events speak of.

    ``facts`` are what is true of the program as a whole (``torch_version``, whether it trains in float16, what was
    given up on); rules that judge the whole read them.
    """

    __slots__ = ("facts", "graphs", "things")

    def __init__(self) -> None:
        self.graphs: list[Graph] = []
        self.things: list[Thing] = []
        self.facts: dict[str, Any] = {}

    def events(self) -> Iterator[Event]:
        """All events, graph by graph."""
        return (node.event for graph in self.graphs for node in graph.nodes if node.event is not None)

    def called(self, what: int | str) -> str:
        """What the user calls a thing that is given by its key, or by its text."""
        return self.things[what].name if isinstance(what, int) else str(what)

    def thing(self, role: str, name: str, site: Site | None = None, **facts: Any) -> Thing:
        """Make a new thing of this program."""
        made = Thing(len(self.things), role, name, site, facts)
        self.things.append(made)
        return made
