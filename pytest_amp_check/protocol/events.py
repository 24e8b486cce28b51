"""The vocabulary both readers speak: things, events, and the graph that orders them.

A program is a graph of AMP events; a run is such a graph with one path. ``static`` builds the graph from source,
``runtime`` builds the chain from a run, and
:func:`pytest_amp_check.protocol.graph_checker.check` does not know which it got.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any


# What an event does to a state, by how much a test that it stands under is worth remembering for it: a test is
# remembered only where it decides about something that a fault may come of.
UNTESTED = 0  # nothing, or nothing that such a test is worth remembering for
SELDOM = 1  # something, but seldom by what the test has decided
MOVES = 2


class EventKind(str):
    """A kind of event: its name, and all that is known of every event of that kind.

    facts       the facts that such an event may have; another one, or one that nobody reads, fails a test.
    worth       what it does to a state: UNTESTED, SELDOM or MOVES.
    says        what it did, in words, for the path that leads to a fault. ``says_scaled`` the same of one whose
                subject is a scaler.
    optimizer   whether its object, or for a construction its subject, is one optimizer. ``establishes`` that it is
                known to be one from then on: what is merely stepped could be a scheduler.
    faults      whether such an event is enough for a fault that takes the order of events to be seen: a graph without
                any is not gone through, but for its backwards and steps.
    turns       whether a rule asks which turn of which loops it belongs to: it has the fact ``loops`` in source, the
                keys of the loops around it, the outermost first.
    tells       the facts that decide, with its things, what it does to a state without regions: in a run the same
                event in the same state leads to the same again. None where more than its facts decides.
    """

    __slots__ = (
        "attributes",
        "deciding_attributes",
        "description",
        "establishes_optimizer",
        "has_loops",
        "has_optimizer",
        "may_violate",
        "predicate_worth",
        "scaled_description",
    )
    attributes: frozenset[str]
    may_violate: bool
    predicate_worth: int
    description: str
    scaled_description: str
    has_optimizer: bool
    establishes_optimizer: bool
    has_loops: bool
    deciding_attributes: tuple[str, ...] | None

    def __new__(  # noqa: PYI034 - Python 3.10 has no Self
        cls,
        name: str,
        attributes: str = "",
        *,
        predicate_worth: int = UNTESTED,
        description: str = "",
        scaled_description: str = "",
        has_optimizer: bool = False,
        establishes_optimizer: bool = False,
        may_violate: bool = False,
        has_loops: bool = False,
        deciding_attributes: str | None = None,
    ) -> EventKind:
        kind = super().__new__(cls, name)
        kind.attributes = frozenset(attributes.split()) | ({"loops"} if has_loops else frozenset())
        kind.predicate_worth = predicate_worth
        kind.description = description or name
        kind.scaled_description = scaled_description or kind.description
        kind.has_optimizer = has_optimizer
        kind.establishes_optimizer = establishes_optimizer
        kind.may_violate = may_violate
        kind.has_loops = has_loops
        kind.deciding_attributes = None if deciding_attributes is None else tuple(deciding_attributes.split())
        return kind


# The kinds. The subject of an event is the thing named first in its comment, the object the second.

# An autocast context is constructed; arguments as bound to the signature, excess: more of them than it takes.
AUTOCAST_NEW = EventKind("autocast-new", "arguments callable excess")
# A region; instance: the identity of its context, null: it is no region, but stands where one could.
AUTOCAST_ENTER = EventKind(
    "autocast-enter",
    "cache device dtype enabled instance null",
    predicate_worth=SELDOM,
    description="autocast is entered",
    may_violate=True,
)
AUTOCAST_EXIT = EventKind(
    "autocast-exit", "depth", predicate_worth=SELDOM, description="autocast is exited"
)  # depth: regions that stay open
AUTOCAST_CACHE_CLEAR = EventKind("autocast-cache-clear", predicate_worth=MOVES)
# An autograd.Function that does not take what autocast gives it; applied: to what matters.
CUSTOM_FUNCTION = EventKind("custom-function", "applied how")
SCOPE_LOST = EventKind("scope-lost", "how")  # an autocast that never covers the intended code
CAPTURE = EventKind(
    "capture", "how", description="the model is captured"
)  # a module is traced, or its kernels are captured
# A module that another thread runs than the one that is in a region.
THREAD = EventKind("thread", "how", description="another thread runs the model")
COMPILED = EventKind("compiled")  # a compiled module with float32 islands: run in a region, and backward outside of it
# A module whose gradients all processes average: the backward of a batch is left out by one of them alone.
LEFT_OUT = EventKind("left-out")
COMM_HOOK = EventKind("comm-hook")  # a module whose gradients are cast to float16 before they are averaged over ranks
# A scaler; arguments as bound to the signature, excess: more of them, disabled_itself: it found no device.
SCALER_NEW = EventKind(
    "scaler-new",
    "arguments callable disabled_itself excess",
    predicate_worth=SELDOM,
    description="the scaler is constructed",
)
# An optimizer; found: not constructed here, so that its gradients may be anything.
OPTIMIZER_NEW = EventKind(
    "optimizer-new",
    "found",
    predicate_worth=SELDOM,
    description="the optimizer is constructed",
    has_optimizer=True,
    establishes_optimizer=True,
)
# A scaler. Of the scaled value: autocast ("in", "out" of a region, "?"), dtypes of its forward, float32: whether that
# ran in it, forward: its event, forward_read: its code is known, callees: what else was called, loss_in_region, twice:
# it was scaled before, bare: nothing that it came from was, or entered, in a region.
SCALE = EventKind("scale", "autocast bare callees dtypes float32 forward forward_read loss_in_region twice")
# Scaler or nothing. feeds: the optimizers whose gradients it adds to, leaves: the identities of its leaves in a run;
# divided: the loss, vague: whether it was is not sure; inside: a loop without a step, apart: under no_sync, averaged:
# the tests under which it averages the gradients over processes, None where it does not, as far as is known; dtypes of
# its forward, forward: the event of that; alone: no scaler is in view; custom: its autograd Functions care for autocast
# themselves; float8: it runs in a region of TransformerEngine; uneven: parts of the loss have different scales; scaled:
# a scaler has scaled it; given: who gave it may have; opaque: gradients that are given may be; beside: the scaler of
# the same object, by which no method of it does this.
BACKWARD = EventKind(
    "backward",
    "alone apart averaged beside custom divided dtypes feeds float8 forward given inside leaves opaque outside scaled "
    "several twice uneven vague",
    predicate_worth=MOVES,
    description="gradients of an unscaled loss are added",
    scaled_description="gradients multiplied by the loss scale are added",
    has_loops=True,
    deciding_attributes="feeds divided given opaque",
)
AUTOGRAD_GRAD = EventKind("autograd-grad")
# Scaler, optimizer; framework: see SCALER_STEP.
UNSCALE = EventKind(
    "unscale",
    "framework",
    predicate_worth=MOVES,
    description="the gradients are divided by the loss scale",
    may_violate=True,
    has_optimizer=True,
    establishes_optimizer=True,
    deciding_attributes="",
)
# Scaler; a block ends that unscales what it has scaled.
RESTORE = EventKind(
    "restore",
    "owners",
    predicate_worth=MOVES,
    description="the gradients are divided by the loss scale",
    may_violate=True,
)
# A loss is divided by a number by which the framework divides it too.
DIVIDED_TWICE = EventKind("divided-twice", "divisor framework way")
# owners: optimizers whose gradients are clipped, None: not known; touches: identities of parameters that are nobody's
# yet; measures_only: the limit is infinite, local: of one rank's shards, by_hand: by their own norm; undone: the
# program looks at it and skips; guessed: the name of what is called says so.
CLIP = EventKind(
    "clip",
    "beside by_hand copies guessed local measures_only nonfinite_error owners touches undone",
    predicate_worth=MOVES,
    description="the gradients are clipped",
    deciding_attributes="owners measures_only nonfinite_error undone",
)
GRAD_READ = EventKind("grad-read", "owners undone", description="the gradients are read")
GRAD_EDIT = EventKind("grad-edit", "owners undone", predicate_worth=MOVES, description="the gradients are edited")
# Gradients are looked through for what is not finite; raises: the program gives up where something is.
GRAD_CHECK = EventKind(
    "grad-check",
    "owners raises",
    description="the gradients are checked for NaN and infinities",
    deciding_attributes="owners",
)
# A backward that gives NaN raises from here on; ``idle`` where this ends before any backward.
ANOMALY = EventKind("anomaly", "idle")
# Gradients are divided by the loss scale by hand; by the number of micro-batches; averaged over processes.
GRAD_DIVIDE = EventKind(
    "grad-divide",
    "owners undone",
    predicate_worth=MOVES,
    description="the gradients are divided by the loss scale by hand",
)
GRAD_NORMALISE = EventKind("grad-normalise", "owners", predicate_worth=MOVES)
GRAD_AVERAGE = EventKind("grad-average")
# Scaler, optimizer; framework: its step, with the update ("" where it may be none); unsynchronised: how its shards are
# stepped by one rank alone; unscales: it has not been unscaled before.
SCALER_STEP = EventKind(
    "scaler-step",
    "closure framework unscales unsynchronised",
    predicate_worth=MOVES,
    description="the scaler steps the optimizer",
    may_violate=True,
    has_optimizer=True,
    establishes_optimizer=True,
    has_loops=True,
    deciding_attributes="unscales",
)
# An optimizer, stepped directly; checked: the program has looked whether the gradients are finite; beside as above.
STEP = EventKind(
    "step",
    "beside checked",
    predicate_worth=MOVES,
    description="the optimizer is stepped directly",
    has_optimizer=True,
    deciding_attributes="checked",
)
# A scaler; new_scale: one is given. Of a run, the scale and what it has done so far; cause: of the skips, in words,
# witness: (place, words) of what led to it.
UPDATE = EventKind(
    "update",
    "cause growth_interval new_scale scale skips skips_in_a_row steps witness",
    predicate_worth=MOVES,
    description="the loss scale is updated",
    may_violate=True,
    deciding_attributes="new_scale",
)
# owners: optimizers whose gradients are cleared; rescue: an exception was caught, or a run shows them to be given up on
# purpose; guessed: not seen; zeros: by zeros that nothing in view needs.
ZERO_GRAD = EventKind(
    "zero-grad",
    "guessed owners rescue zeros",
    predicate_worth=MOVES,
    description="the gradients are cleared",
    has_optimizer=True,
    establishes_optimizer=True,
    has_loops=True,
    deciding_attributes="owners rescue",
)
# A module; cached: its weights may be, poisoned: they were cast while gradients were off.
FORWARD = EventKind("forward", "cached poisoned", description="the model runs forward")
# function: its name, low_precision: the dtype it is computed in; ambient: how severe it is where a framework runs it
# under autocast.
LOSS = EventKind("loss", "ambient function low_precision", may_violate=True)
PARAM_WRITE = EventKind("param-write", predicate_worth=SELDOM, description="parameters are written")
# A module; trained: as it leaves the cast, by the same code; born: it is made, or loaded, so; how: "cast", "made" so,
# or made so by the "default" dtype. Where it is not known what is cast: called, the names of what it is and comes from,
# given: who calls the code gave it.
MODULE_CAST = EventKind(
    "module-cast", "born called dtype given how trained", description="the model's parameters are cast"
)
# eligible: the tensor that is filled with the value may be float16; bound: it is bounded by it; guessed: it is where
# other code enters autocast.
FILL = EventKind("fill", "bound eligible guessed value")
SCALER_STATE = EventKind(
    "scaler-state", description="the scaler's state is taken", may_violate=True
)  # scaler.state_dict()
# scaler.load_state_dict(); entry of a checkpoint, of_others: that no checkpoint here has.
SCALER_LOAD = EventKind("scaler-load", "entry of_others", predicate_worth=SELDOM)
# What is saved: optimizers and scalers by key or text, whole_scalers: the objects themselves, and the entries under
# which the states of each are; owners: keys of those optimizers; scope_scalers: scalers that step them; open: there
# may be more; objects: they are saved by who is given the objects.
SAVE = EventKind(
    "save",
    "objects open optimizer_entries optimizers owners scaler_entries scalers scope_scalers whole_scalers",
    description="the checkpoint is written",
)
# optimizer.load_state_dict(); source and entry of it that is loaded, holds_scaler: so does what it is loaded from.
OPTIMIZER_LOAD = EventKind("optimizer-load", "entry holds_scaler scope_scalers source")
# An optimizer whose learning rate moves. Of a run: skipped, as the step before was; idle: there was none.
SCHEDULER_STEP = EventKind("scheduler-step", "idle skipped", description="the learning rate moves on", has_loops=True)
# What a program does beside the steps of an optimizer. Of a run: skipped, as the step before was.
STEP_FOLLOWED = EventKind("step-followed", "skipped how", description="the weights are averaged", has_loops=True)
WINDOW = EventKind("window", "how")  # Of a run: the windows of an optimizer lose micro-batches; how: "zero", or "early"
GRAD_INVALID = EventKind(
    "grad-invalid"
)  # an optimizer: values that are not finite came into its gradients after unscale_
# A loss, a gradient, a parameter or a statistic of a run that is not finite; how: what it comes from,
# witness: (place, words) of what led to it.
NOT_FINITE = EventKind("not-finite", "how witness")
# Scaled gradients from autograd.grad enter a new loss; outdated: divided by a scale that update() has changed since.
PENALTY = EventKind("penalty", "outdated")
DEPRECATED = EventKind("deprecated", "new old")
# What low precision does to values. dtype: "half" where it is one of the two; guessed: code that cannot be read gave
# the tensor.
EPSILON = EventKind(
    "epsilon", "divides dtype guessed how value"
)  # a small constant is added, or is the least that may be
FRAGILE_MATH = EventKind("fragile-math", "dtype guessed how")  # an expression that overflows or cancels
# A running sum is kept in low precision; stands: what is added does not change it any more.
LOW_SUM = EventKind("low-sum", "dtype guessed stands")
LOW_POSITIONS = EventKind("low-positions", "dtype guessed how")  # positions lose their last digits
LATE_SCALE = EventKind(
    "late-scale", "dtype guessed"
)  # scores of an attention are scaled after the product that makes them
LOW_OP = EventKind("low-op", "dtype guessed how")  # an op that has no kernel for low precision is given a tensor of it
DTYPE_CLASH = EventKind(
    "dtype-clash", "dtype guessed how"
)  # a low-precision tensor meets float32 where nothing promotes
OVERHEAD = EventKind("overhead", "how", has_loops=True)  # what is cast or copied more often than needed
# A product in low precision has a side of which Tensor Cores make less; how: one of its "weight", or its "rows".
ODD_SIZE = EventKind("odd-size", "how")
# Things are given to code that cannot be read; trains: those that it is known to train, about: the MATTERS that it
# speaks of, which it may have done to them; given: optimizers whose gradients are assigned, from wherever they were.
HANDOFF = EventKind("handoff", "about given things trains", predicate_worth=SELDOM)
# torch has ended the run: label is the fault that explains it, witness how it came about, values are for its message.
RAISED = EventKind("raised", "label values witness")
# A loop that counts accumulation windows is left: what it leaves over is no window. complete: the loop leaves the step
# to what follows, so that its end completes the window; within: a loop around it does so too.
LOOP_EXIT = EventKind("loop-exit", "complete within", predicate_worth=SELDOM)
# The function that was read is called once more, by code that is not read; uncleared: no code of the file clears what
# it leaves.
AGAIN = EventKind("again", "uncleared", predicate_worth=SELDOM, description="the function is called again")
END = EventKind("end", predicate_worth=SELDOM, description="the program ends")  # the end of the program that was read
#: Events that stand for no call of the program.
STRUCTURAL = frozenset({HANDOFF, LOOP_EXIT, AGAIN, END})

#: Role of a thing -> the facts that it may have.
THINGS = {
    "scaler": ("accumulates arguments callable cls constructed device doubt enabled framework sharded shared"),
    "optimizer": "callable constructed divided engine frozen fused hooked owns several shared shares wrapped",
    "module": "casts class compiled computes_in copied copies deepspeed frozen kind low odd parameter partly_frozen "
    "parts read shared trainer wide wrapped",
    "autocast": "cache device dtype shared stored",
    "device": "shared",
    "loss": "kind promotes reduction shared",
}
#: What may be known of a program as a whole.
PROGRAM = (
    "averaged enters_autocast fragment handed left_scalers lightning16 live_scalers remade resumes scaled_modules "
    "scaler_dtypes scales_apart trained_modules unread"
)

# What code that cannot be read may do to gradients, as far as its name tells.
CLEARS, UNSCALES, DIVIDES, STEPS, FEEDS = "clears", "unscales", "divides", "steps", "feeds"
MATTERS = frozenset({CLEARS, UNSCALES, DIVIDES, STEPS, FEEDS})

# Loops that run backward at every turn and leave the step to what follows: any, and those over the micro-batches of one
# window.
LOOSE = "loose"
MICRO = "micro"


class Symbol(str):
    """A value that is known by name only: ``Symbol("torch.float16")``."""

    __slots__ = ()


#: A value of which nothing is known.
UNKNOWN = Symbol("?")


#: A call in source: its path, its line from 1, and its column from 0.
Call = tuple[str, int, int]


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

    def list_frames(self) -> list[Site]:
        """The calls that led here, outermost first, and this site."""
        chain: list[Site] = []
        site: Site | None = self
        while site is not None:
            chain.append(site)
            site = site.caller
        chain.reverse()
        return chain

    def is_in_test(self) -> bool:
        """Whether a place lies in test code, or is run by a test."""
        file = self.path.replace("\\", "/").rpartition("/")[2]
        if file.startswith("test_") or file.endswith("_test.py") or file == "conftest.py":
            return True
        return any(part.startswith("test_") for frame in self.list_frames() for part in frame.function.split("."))

    @property
    def call_key(self) -> Call:
        """The path, line and column by which a call is the same one, whoever led to it."""
        return self.path, self.line, self.column

    @property
    def location_text(self) -> str:
        """Path, cell and line, as they are shown."""
        return f"{self.path}:{self.line}" if self.cell is None else f"{self.path}:cell {self.cell}:{self.line}"

    def __repr__(self) -> str:
        return f"{self.location_text}:{self.column}"


class TrackedObject:
    """An object the protocol speaks of: a scaler, an optimizer, a module, an autocast region.

    ``key`` is its index in :attr:`Program.things`; ``facts`` (those in :data:`THINGS`) holds what its constructor said.
    """

    __slots__ = ("attributes", "key", "name", "role", "site")

    def __init__(self, key: int, role: str, name: str, site: Site | None, attributes: dict[str, Any]) -> None:
        self.key = key
        self.role = role
        self.name = name
        self.site = site
        self.attributes = attributes

    def __repr__(self) -> str:
        return f"<{self.role} {self.key} {self.name}>"


class Event:
    """One AMP event.

    ``facts`` are of those that its kind declares. ``subject`` and ``object`` are keys of things, ``names`` the user's
    own words for them (as ``str`` gives them). ``guards`` are the tests (key, truth) under which the event stands in
    the source; a run has none.
    """

    __slots__ = ("attributes", "guards", "kind", "names", "object", "site", "subject")

    def __init__(
        self,
        kind: EventKind,
        site: Site,
        subject: int | None = None,
        object: int | None = None,
        attributes: dict[str, Any] | None = None,
        names: dict[str, object] | None = None,
        guards: tuple[tuple[int, bool], ...] = (),
    ) -> None:
        self.kind = kind
        self.site = site
        self.subject = subject
        self.object = object
        self.attributes = attributes or {}
        self.names = names or {}
        self.guards = guards

    def __repr__(self) -> str:
        return f"<{self.kind} {self.subject} {self.object} @{self.site}>"


class Predicate:
    """A condition whose truth decides which way a program goes; a path assumes it once and keeps to it.

    ``counts`` says that the test compares a loop's counter (``(i + 1) % k == 0``, ``count == k``), ``off_by_one`` that
    such a test is already true for the first micro-batch. ``left_over`` is how many micro-batches come after the last
    one for which it is true, and of how many, where both are known. ``reached`` is the truth that it has once the
    counter is large, if that is what it asks. ``later`` is the truth that it cannot have then, if that is
    known. ``of_gradients`` are the optimizers of whose gradients it asks whether they are finite, None for any,
    ``turn`` that it asks whether a loop is in its first turn, ``flag`` that it asks for the truth of an argument,
    ``of_scale`` that it compares loss scales. ``implies`` lists (truth of this test, key of another, its truth).
    """

    __slots__ = (
        "asks_first_iteration",
        "checked_optimizers",
        "compares_scales",
        "eventual_truth",
        "eventually_excluded",
        "implications",
        "is_flag",
        "is_off_by_one",
        "is_window_predicate",
        "key",
        "site",
        "text",
        "trailing_microbatches",
    )

    def __init__(self, key: int, text: object, site: Site | None) -> None:
        self.key = key
        self.text = text
        self.site = site
        self.is_window_predicate = False
        self.is_off_by_one = False
        self.trailing_microbatches: tuple[int, int] | None = None
        self.eventual_truth: bool | None = None
        self.eventually_excluded: bool | None = None
        self.is_flag = False
        self.checked_optimizers: frozenset[int] | None = frozenset()
        self.compares_scales = False
        self.asks_first_iteration = False
        self.implications: list[tuple[bool, int, bool]] = []


class Node:
    """A point of the graph: at most one event, the tests that become unknown here, and the ways on.

    ``ways`` are (target node, key of a test or -1, the truth it takes to go that way). ``skips`` is the statement that
    leads on from here past what is left of an iteration, in words, and where it stands.
    """

    __slots__ = ("edges", "event", "forgotten_predicates", "skip_statement")

    def __init__(self, event: Event | None = None) -> None:
        self.event = event
        self.forgotten_predicates = 0  # bit set of test keys
        self.skip_statement: tuple[str, Site] | None = None
        self.edges: list[tuple[int, int, bool]] = []


class Graph:
    """Events in the order in which a program may perform them. Node 0 is the entry.

    ``entry`` is the path and line of the function that was read on its own, line 0 for a module's body. ``joined`` says
    that states were joined to check it, so that a violation may have been lost.
    """

    __slots__ = ("entry_point", "name", "nodes", "predicates", "was_widened")

    def __init__(self, name: str, entry_point: tuple[str, int] = ("", 0)) -> None:
        self.name = name
        self.entry_point = entry_point
        self.was_widened = False
        self.nodes: list[Node] = []
        self.predicates: list[Predicate] = []


class Program:
    """Everything read from one source tree or one run: its graphs and the things that their events speak of.

    ``facts`` (those in :data:`PROGRAM`) are what is true of the program as a whole: whether it trains in float16, what
    was given up on; rules that judge the whole read them.
    """

    __slots__ = ("attributes", "graphs", "objects", "optimizer_keys")

    def __init__(self) -> None:
        self.graphs: list[Graph] = []
        #: The keys of those of the things that are optimizers.
        self.optimizer_keys: list[int] = []
        self.objects: list[TrackedObject] = []
        self.attributes: dict[str, Any] = {}

    def iter_events(self) -> Iterator[Event]:
        """All events, graph by graph."""
        return (node.event for graph in self.graphs for node in graph.nodes if node.event is not None)

    def name_of(self, what: int | str) -> str:
        """What the user calls a thing that is given by its key, or by its text."""
        return self.objects[what].name if isinstance(what, int) else str(what)

    def with_submodules(self, modules: Iterable[int]) -> frozenset[int]:
        """Modules, given by their keys, with the modules that are parts of them."""
        whole = set(modules)
        todo = list(whole)
        while todo:
            parts = set(self.objects[todo.pop()].attributes.get("parts", ())) - whole
            whole |= parts
            todo += parts
        return frozenset(whole)

    def add_object(self, role: str, name: str, site: Site | None = None, **attributes: Any) -> TrackedObject:
        """Make a new thing of this program."""
        new_object = TrackedObject(len(self.objects), role, name, site, attributes)
        self.objects.append(new_object)
        if role == "optimizer":
            self.optimizer_keys.append(new_object.key)
        return new_object
