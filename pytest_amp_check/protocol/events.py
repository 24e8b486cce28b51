"""Vocabulary shared by analyzer and recorder: tracked objects, events, and the graph that orders events.

A program is a graph of AMP events; a run is such a graph with one path. ``static`` builds the graph from source and
``runtime`` builds the sequence of a run. :func:`pytest_amp_check.protocol.graph_checker.check` handles both alike.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any


# Effect of an event on a state, as the worth of remembering its guards: a predicate is remembered only if the predicate
# decides events that may lead to a violation.
UNTESTED = 0  # no effect, or no effect worth remembering a predicate for
SELDOM = 1  # an effect that rarely depends on the predicate
MOVES = 2


class EventKind(str):
    """A kind of event: the name, and the properties shared by all events of this kind.

    - ``attributes``: allowed attributes of the events. An undeclared or unused attribute fails a test.
    - ``predicate_worth``: effect on a state: UNTESTED, SELDOM or MOVES.
    - ``description``: description of the event in a trace. ``scaled_description`` is the description if the subject is
      a scaler.
    - ``has_optimizer``: True if the object, or the subject of a construction, is one optimizer.
      ``establishes_optimizer`` means that the object is then known to be an optimizer; an object that is merely stepped
      may be a scheduler.
    - ``may_violate``: True if one such event suffices for an order-dependent violation. A graph without such events is
      not explored, except for backwards and steps.
    - ``has_loops``: True if a rule needs the loop iteration: in source the event has the attribute ``loops``, the keys
      of the enclosing loops, outermost first.
    - ``deciding_attributes``: attributes that, with the objects, decide the effect on a state without regions. The same
      event in the same state of a run has the same effect. None if the effect depends on more than the attributes.
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


# The kinds. The comment of a kind names the subject first, then the object.

# An autocast context is constructed; arguments: bound to the signature, excess: surplus arguments.
AUTOCAST_NEW = EventKind("autocast-new", "arguments callable excess")
# A region; instance: identity of the context, null: no region, but used in place of a region, unscaled_by: framework
# that scales the loss only in another configuration.
AUTOCAST_ENTER = EventKind(
    "autocast-enter",
    "cache device dtype enabled instance null unscaled_by",
    predicate_worth=SELDOM,
    description="autocast is entered",
    may_violate=True,
)
AUTOCAST_EXIT = EventKind(
    "autocast-exit", "depth", predicate_worth=SELDOM, description="autocast is exited"
)  # depth: number of regions that stay open
AUTOCAST_CACHE_CLEAR = EventKind("autocast-cache-clear", predicate_worth=MOVES)
# An autograd.Function that rejects the dtypes from autocast; applied: applied to relevant inputs.
CUSTOM_FUNCTION = EventKind("custom-function", "applied how")
SCOPE_LOST = EventKind("scope-lost", "how")  # an autocast that never covers the intended code
CAPTURE = EventKind(
    "capture", "how", description="the model is captured"
)  # a module is traced, or its kernels are captured
# A module that runs in another thread than the thread with the region.
THREAD = EventKind("thread", "how", description="another thread runs the model")
COMPILED = EventKind("compiled")  # a compiled module with float32 islands, run in a region, with backward outside
# A module whose gradients all ranks average; a single rank skips the backward of a batch.
LEFT_OUT = EventKind("left-out")
COMM_HOOK = EventKind("comm-hook")  # a module whose gradients are cast to float16 before averaging over ranks
# A scaler; arguments: bound to the signature, excess: surplus arguments, disabled_itself: the scaler found no device,
# sharding: call by which the same class shards a module.
SCALER_NEW = EventKind(
    "scaler-new",
    "arguments callable disabled_itself excess sharding",
    predicate_worth=SELDOM,
    description="the scaler is constructed",
)
# An optimizer; found: not constructed here, so the content of the gradients is unknown.
OPTIMIZER_NEW = EventKind(
    "optimizer-new",
    "found",
    predicate_worth=SELDOM,
    description="the optimizer is constructed",
    has_optimizer=True,
    establishes_optimizer=True,
)
# A scaler. For the scaled value: autocast: in or out of a region, or "?"; dtypes: region dtypes of the forward;
# float32: the forward ran in a float32 region; forward: the event; forward_read: the code is known; callees: other
# called functions; loss_in_region; twice: already scaled; bare: no input was in, or entered, a region.
SCALE = EventKind("scale", "autocast bare callees dtypes float32 forward forward_read loss_in_region twice")
# Scaler or nothing. feeds: optimizers that accumulate the gradients; leaves: identities of the leaves in a run;
# divided: the loss is divided; vague: the division is not certain; inside: kind of a loop without step; apart: under
# no_sync; averaged: predicates under which gradients are averaged over ranks, None if not; dtypes: region dtypes of the
# forward; forward: the forward event; alone: no known scaler; custom: the autograd Functions handle autocast; float8:
# in a region of TransformerEngine; uneven: terms of the loss have different scales; scaled: scaled by a scaler; given:
# the caller may have scaled the loss; opaque: the gradient argument may be scaled; beside: scaler of the same object,
# which no method uses here; guessed: only names say that the loop runs over microbatches; running: a divisor of the
# loss that counts the microbatches so far.
BACKWARD = EventKind(
    "backward",
    "alone apart averaged beside custom divided dtypes feeds float8 forward given guessed inside leaves opaque outside "
    "running scaled several twice uneven vague",
    predicate_worth=MOVES,
    description="gradients of an unscaled loss are added",
    scaled_description="gradients multiplied by the loss scale are added",
    has_loops=True,
    deciding_attributes="feeds divided given opaque",
)
# differentiable: the gradients are differentiated again (``create_graph=True``), as a penalty on their norm.
AUTOGRAD_GRAD = EventKind(
    "autograd-grad", "differentiable", description="gradients are computed to be differentiated again", may_violate=True
)
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
# Scaler; a block that unscales the gradients it scaled ends.
RESTORE = EventKind(
    "restore",
    "owners",
    predicate_worth=MOVES,
    description="the gradients are divided by the loss scale",
    may_violate=True,
)
# A loss is divided by a number that the framework also divides by; guessed: only the name of the number says so.
DIVIDED_TWICE = EventKind("divided-twice", "divisor framework guessed way")
UNDIVIDED = EventKind("undivided")  # a loss that the program computes itself, and that its Trainer does not divide
# owners: optimizers whose gradients are clipped, None: unknown; touches: identities of parameters without optimizer so
# far; measures_only: the limit is infinite; local: clip over the shards of one rank; by_hand: manual clipping by the
# norm of the gradients; undone: the program checks the result and skips; guessed: known by the function name only.
CLIP = EventKind(
    "clip",
    "beside by_hand copies guessed local measures_only nonfinite_error owners touches undone",
    predicate_worth=MOVES,
    description="the gradients are clipped",
    deciding_attributes="owners measures_only nonfinite_error undone",
)
GRAD_READ = EventKind("grad-read", "owners undone", description="the gradients are read")
GRAD_EDIT = EventKind(
    "grad-edit", "guessed owners undone", predicate_worth=MOVES, description="the gradients are edited"
)
# Gradients are checked for non-finite values; raises: the program stops if there are any.
GRAD_CHECK = EventKind(
    "grad-check",
    "owners raises",
    description="the gradients are checked for NaN and infinities",
    deciding_attributes="owners",
)
# Later backwards raise on NaN; ``idle``: anomaly detection ends before any backward.
ANOMALY = EventKind("anomaly", "idle")
# Gradients are divided manually by the loss scale (divide), by the number of microbatches (normalise), or averaged over
# ranks (average).
GRAD_DIVIDE = EventKind(
    "grad-divide",
    "owners undone",
    predicate_worth=MOVES,
    description="the gradients are divided by the loss scale by hand",
)
GRAD_NORMALISE = EventKind("grad-normalise", "owners", predicate_worth=MOVES)
GRAD_AVERAGE = EventKind("grad-average")
# Scaler, optimizer; framework: step of this framework, including update ("" if there may be none); unsynchronised: how
# a single rank steps its shards; unscales: no unscale before this step.
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
# An optimizer, stepped directly; checked: the program checked the gradients to be finite; beside: as for BACKWARD.
STEP = EventKind(
    "step",
    "beside checked",
    predicate_worth=MOVES,
    description="the optimizer is stepped directly",
    has_optimizer=True,
    deciding_attributes="checked",
)
# A scaler; new_scale: an argument sets the scale. In a run: the scale and statistics so far; cause: cause of skipped
# steps as text; witness: trace as (location, text).
UPDATE = EventKind(
    "update",
    "cause growth_interval new_scale scale skips skips_in_a_row steps witness",
    predicate_worth=MOVES,
    description="the loss scale is updated",
    may_violate=True,
    deciding_attributes="new_scale",
)
# owners: optimizers whose gradients are cleared; rescue: in an exception handler, or intentionally discarded in a run;
# guessed: not seen; zeros: writes zeros that no known code needs; discards: each iteration of a loop without a step
# clears before its backward.
ZERO_GRAD = EventKind(
    "zero-grad",
    "discards guessed owners rescue zeros",
    predicate_worth=MOVES,
    description="the gradients are cleared",
    has_optimizer=True,
    establishes_optimizer=True,
    has_loops=True,
    deciding_attributes="owners rescue",
)
# A module; cached: the weights may be cached, poisoned: the weights were cast while gradients were off.
FORWARD = EventKind("forward", "cached poisoned", description="the model runs forward")
# function: name of the loss; low_precision: dtype of the computation; ambient: severity if a framework runs the loss
# under autocast.
LOSS = EventKind("loss", "ambient function low_precision", may_violate=True)
PARAM_WRITE = EventKind("param-write", predicate_worth=SELDOM, description="parameters are written")
# A module; trained: the same code trains the module in this dtype; born: created or loaded in this dtype; how: "cast",
# "made" in this dtype, or by the "default" dtype. For an unknown module: called: names of the module and its origin;
# given: the caller passes the module.
MODULE_CAST = EventKind(
    "module-cast", "born called dtype given how trained", description="the model's parameters are cast"
)
# eligible: the filled tensor may be float16; bound: the value is a clamp bound; guessed: other code enters autocast.
FILL = EventKind("fill", "bound eligible guessed value")
SCALER_STATE = EventKind(
    "scaler-state", description="the scaler's state is taken", may_violate=True
)  # scaler.state_dict()
# scaler.load_state_dict(); entry: key in a checkpoint, of_others: no checkpoint here has the key.
SCALER_LOAD = EventKind("scaler-load", "entry of_others", predicate_worth=SELDOM)
# Saved state: optimizers and scalers by key or text; whole_scalers: scaler objects themselves, and the dict keys of the
# states; owners: keys of the optimizers; scope_scalers: scalers that step these optimizers; open: the checkpoint may
# contain more; objects: the receiver of the objects saves the states.
SAVE = EventKind(
    "save",
    "objects open optimizer_entries optimizers owners scaler_entries scalers scope_scalers whole_scalers",
    description="the checkpoint is written",
)
# optimizer.load_state_dict(); source and entry: loaded object and key, holds_scaler: the source has a scaler state.
OPTIMIZER_LOAD = EventKind("optimizer-load", "entry holds_scaler scope_scalers source")
# An optimizer whose learning rate changes. In a run: skipped: the step before was skipped; idle: there was no step.
SCHEDULER_STEP = EventKind("scheduler-step", "idle skipped", description="the learning rate moves on", has_loops=True)
# An action of the program beside an optimizer step. In a run: skipped: the step before was skipped.
STEP_FOLLOWED = EventKind("step-followed", "skipped how", description="the weights are averaged", has_loops=True)
WINDOW = EventKind("window", "how")  # In a run: the windows of an optimizer lose microbatches; how: "zero" or "early"
GRAD_INVALID = EventKind("grad-invalid")  # an optimizer whose gradients became non-finite after unscale_
# A non-finite loss, gradient, parameter or statistic of a run; how: the cause, witness: trace as (location, text).
NOT_FINITE = EventKind("not-finite", "how witness")
# Scaled gradients from autograd.grad are part of a new loss; outdated: divided by a scale that update() changed since.
PENALTY = EventKind("penalty", "outdated")
DEPRECATED = EventKind("deprecated", "new old")
# Effects of low precision on values. dtype: "half" for either low dtype; guessed: unanalyzed code returned the tensor.
EPSILON = EventKind("epsilon", "divides dtype guessed how value")  # a small constant is added, or is a lower bound
FRAGILE_MATH = EventKind("fragile-math", "dtype guessed how")  # an expression that overflows or cancels
# A running sum in low precision; stands: further additions no longer change the sum.
LOW_SUM = EventKind("low-sum", "dtype guessed stands")
LOW_POSITIONS = EventKind("low-positions", "dtype guessed how")  # positions lose their last digits
LATE_SCALE = EventKind("late-scale", "dtype guessed")  # attention scores are scaled after the product
LOW_OP = EventKind("low-op", "dtype guessed how")  # an op without low-precision kernel receives a low-precision tensor
DTYPE_CLASH = EventKind(
    "dtype-clash", "dtype guessed how"
)  # a low-precision and a float32 tensor are combined without promotion
OVERHEAD = EventKind("overhead", "how", has_loops=True)  # repeated casts or copies
# A low-precision product with a side that is slow on Tensor Cores; how: side of the "weight", or the "rows".
ODD_SIZE = EventKind("odd-size", "how")
# Objects escape to unanalyzed code; trains: objects that this code is known to train; about: possible effects of the
# code, from MATTERS; given: optimizers whose gradients are assigned from any source.
HANDOFF = EventKind("handoff", "about given things trains", predicate_worth=SELDOM)
# torch ended the run; label: explaining violation, witness: trace, values: for the message.
RAISED = EventKind("raised", "label values witness")
# A loop that counts accumulation windows ends; trailing microbatches form no window. complete: the step follows after
# the loop, so the end of the loop completes the window; within: an enclosing loop leaves the step to later code, too.
LOOP_EXIT = EventKind("loop-exit", "complete within", predicate_worth=SELDOM)
# Unanalyzed code calls the analyzed function again; uncleared: no code of the file clears the remaining gradients.
AGAIN = EventKind("again", "uncleared", predicate_worth=SELDOM, description="the function is called again")
END = EventKind("end", predicate_worth=SELDOM, description="the program ends")  # end of the analyzed program
#: Events that correspond to no call of the program.
STRUCTURAL = frozenset({HANDOFF, LOOP_EXIT, AGAIN, END})

#: Role of a tracked object -> allowed attributes.
THINGS = {
    "scaler": "accumulates arguments callable cls constructed device doubt enabled enabling framework sharded shared",
    "optimizer": "callable constructed divided engine frozen fused hooked owns several shared shares wrapped",
    "module": "casts class compiled computes_in copied copies deepspeed frozen kind low odd parameter partly_frozen "
    "parts read shared trainer wide wrapped",
    "autocast": "cache device dtype shared stored",
    "device": "shared",
    "loss": "kind promotes reduction shared",
}
#: Allowed attributes of a program.
PROGRAM = (
    "averaged enters_autocast fragment handed left_scalers lightning16 live_scalers remade resumes scaled_modules "
    "scaler_dtypes scales_apart trained_modules unread"
)

# Possible effects of unanalyzed code on gradients, according to its name.
CLEARS, UNSCALES, DIVIDES, STEPS, FEEDS = "clears", "unscales", "divides", "steps", "feeds"
MATTERS = frozenset({CLEARS, UNSCALES, DIVIDES, STEPS, FEEDS})

# Loops that run backward in every iteration and leave the step to later code: any loop, and loops over the microbatches
# of one window.
LOOSE = "loose"
MICRO = "micro"


class Symbol(str):
    """A value known by name only: ``Symbol("torch.float16")``."""

    __slots__ = ()


#: An unknown value.
UNKNOWN = Symbol("?")


#: A call in source: path, line from 1, column from 0.
Call = tuple[str, int, int]


class Site:
    """A source location, with the chain of calls that led to the location.

    ``line`` and ``end_line`` count from 1, ``column`` and ``end_column`` from 0, in characters. ``caller`` is the
    location of the call that entered the function of this location, or None in the entry point. ``cell`` is the number
    of the notebook cell, from 1, and lines then count in this cell. ``cell`` is None in any other file.
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
        """Return the calls that led to this location, outermost first, and the location itself."""
        chain: list[Site] = []
        site: Site | None = self
        while site is not None:
            chain.append(site)
            site = site.caller
        chain.reverse()
        return chain

    def is_in_test(self) -> bool:
        """Return True if the location is in test code, or a test runs the code."""
        file = self.path.replace("\\", "/").rpartition("/")[2]
        if file.startswith("test_") or file.endswith("_test.py") or file == "conftest.py":
            return True
        return any(part.startswith("test_") for frame in self.list_frames() for part in frame.function.split("."))

    @property
    def call_key(self) -> Call:
        """Return path, line and column, which identify a call for all callers."""
        return self.path, self.line, self.column

    @property
    def location_text(self) -> str:
        """Return path, cell and line as text."""
        return f"{self.path}:{self.line}" if self.cell is None else f"{self.path}:cell {self.cell}:{self.line}"

    def __repr__(self) -> str:
        return f"{self.location_text}:{self.column}"


class TrackedObject:
    """An object of the protocol: a scaler, an optimizer, a module, an autocast region.

    ``key`` is the index in :attr:`Program.objects`; ``attributes`` (declared in :data:`THINGS`) hold constructor
    arguments.
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

    ``attributes`` are declared by the kind. ``subject`` and ``object`` are keys of tracked objects, and ``names`` are
    source texts (converted by ``str``). ``guards`` are the predicates (key, truth) around the event in source; a run
    has none.
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
    """A condition of a branch. A path assumes the truth once and keeps it.

    ``is_window_predicate``: compares a loop counter (``(i + 1) % k == 0``, ``count == k``). ``is_off_by_one``: such a
    predicate that is already true for the first microbatch. ``trailing_microbatches``: number of microbatches after the
    last microbatch with a true predicate, and the total number, if both are known. ``eventual_truth``: truth for large
    counters, if the predicate compares a counter. ``eventually_excluded``: truth that is impossible for large counters,
    if known.

    ``checked_optimizers``: optimizers whose gradients are checked to be finite, None for any. ``asks_first_iteration``:
    tests for the first iteration of a loop. ``is_flag``: tests an argument. ``compares_scales``: compares loss scales.
    ``implications``: triples (truth of this predicate, key of another predicate, truth of the other).
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
    """A point of the graph: at most one event, the predicates that become unknown, and the outgoing edges.

    ``edges`` are triples (target node, key of a predicate or -1, truth required for the edge). ``skip_statement`` is
    the statement that skips the rest of an iteration from here, as text, and the location.
    """

    __slots__ = ("edges", "event", "forgotten_predicates", "skip_statement")

    def __init__(self, event: Event | None = None) -> None:
        self.event = event
        self.forgotten_predicates = 0  # bit set of predicate keys
        self.skip_statement: tuple[str, Site] | None = None
        self.edges: list[tuple[int, int, bool]] = []


class Graph:
    """Events in the possible orders of execution. Node 0 is the entry.

    ``entry_point`` is the path and line of the analyzed function, line 0 for a module body. ``was_widened`` is True if
    states were joined for the check, so a violation may be missed. ``is_guessed`` is True if the class of an object is
    known only by the methods that the function calls.
    """

    __slots__ = ("entry_point", "is_guessed", "name", "nodes", "predicates", "was_widened")

    def __init__(self, name: str, entry_point: tuple[str, int] = ("", 0)) -> None:
        self.name = name
        self.entry_point = entry_point
        self.is_guessed = False
        self.was_widened = False
        self.nodes: list[Node] = []
        self.predicates: list[Predicate] = []


class Program:
    """The analysis of a source tree, or a run: graphs and the tracked objects of the events.

    ``attributes`` (declared in :data:`PROGRAM`) are properties of the whole program, such as float16 training or an
    exceeded budget. Rules that check a whole program use these attributes.
    """

    __slots__ = ("attributes", "graphs", "objects", "optimizer_keys")

    def __init__(self) -> None:
        self.graphs: list[Graph] = []
        #: Keys of the objects that are optimizers.
        self.optimizer_keys: list[int] = []
        self.objects: list[TrackedObject] = []
        self.attributes: dict[str, Any] = {}

    def iter_events(self) -> Iterator[Event]:
        """Return an iterator over all events, graph by graph."""
        return (node.event for graph in self.graphs for node in graph.nodes if node.event is not None)

    def name_of(self, what: int | str) -> str:
        """Return the source name of an object, given by key or by text."""
        return self.objects[what].name if isinstance(what, int) else str(what)

    def with_submodules(self, modules: Iterable[int]) -> frozenset[int]:
        """Return the keys of modules and of all their submodules."""
        whole = set(modules)
        todo = list(whole)
        while todo:
            parts = set(self.objects[todo.pop()].attributes.get("parts", ())) - whole
            whole |= parts
            todo += parts
        return frozenset(whole)

    def add_object(self, role: str, name: str, site: Site | None = None, **attributes: Any) -> TrackedObject:
        """Create a tracked object of this program."""
        new_object = TrackedObject(len(self.objects), role, name, site, attributes)
        self.objects.append(new_object)
        if role == "optimizer":
            self.optimizer_keys.append(new_object.key)
        return new_object
