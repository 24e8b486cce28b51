"""Vocabulary shared by analyzer and recorder: tracked objects, events, and the graph that orders events.

A program is a graph of AMP events; a run is such a graph with one path. ``static`` builds the graph from source and
``runtime`` builds the sequence of a run. :func:`pytest_amp_check.protocol.graph_checker.check` handles both alike.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
    from typing import ClassVar

    from typing_extensions import dataclass_transform

    #: Source texts for messages (converted by ``str``), or values bound to a signature.
    Names = Mapping[str, object]
else:

    def dataclass_transform(**options: object) -> object:
        """Do nothing: only type checkers read the transform."""
        return lambda cls: cls


# Effect of an event on a state, as the worth of remembering its guards: a predicate is remembered only if the predicate
# decides events that may lead to a violation.
UNTESTED = 0  # no effect, or no effect worth remembering a predicate for
SELDOM = 1  # an effect that rarely depends on the predicate
MOVES = 2

# Possible effects of unanalyzed code on gradients, according to its name.
CLEARS, UNSCALES, DIVIDES, STEPS, FEEDS = "clears", "unscales", "divides", "steps", "feeds"
MATTERS = frozenset({CLEARS, UNSCALES, DIVIDES, STEPS, FEEDS})

# Loops that run backward in every iteration and leave the step to later code: any loop, and loops over the microbatches
# of one window.
LOOSE = "loose"
MICRO = "micro"

#: A call in source: path, line from 1, column from 0.
Call = tuple[str, int, int]


class Symbol(str):
    """A value known by name only: ``Symbol("torch.float16")``."""

    __slots__ = ()


#: An unknown value.
UNKNOWN = Symbol("?")


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


#: A trace: locations with texts.
Witness = tuple[tuple[Site, str], ...]

#: No source texts, and no arguments.
NO_NAMES: Names = {}
#: Predicates, each with its truth.
Guards = tuple[tuple[int, bool], ...]
#: Value of a field, before the class declares its type.
FieldValue = object


@dataclass_transform(kw_only_default=True)
class _Declared:
    """Base class that makes type checkers read the annotated class attributes as the fields of an event."""

    def __init_subclass__(cls, *, kw_only: bool = True) -> None:
        """Accept the options that type checkers read."""


class Event(_Declared, kw_only=False):
    """One AMP event. Each kind of event is a class, and declares its fields as annotated class attributes.

    A field without a default must be passed by keyword. Class attributes without annotation are shared by all events of
    the kind:

    - ``predicate_worth``: effect on a state: UNTESTED, SELDOM or MOVES.
    - ``description``: description of the event in a trace. ``scaled_description`` is the description if the subject is
      a scaler.
    - ``has_optimizer``: True if the object, or the subject of a construction, is one optimizer.
      ``establishes_optimizer`` means that the object is then known to be an optimizer; an object that is merely stepped
      may be a scheduler.
    - ``may_violate``: True if one such event suffices for an order-dependent violation. A graph without such events is
      not explored, except for backwards and steps.
    - ``has_loops``: True if a rule needs the loop iteration.
    - ``is_structural``: True if the event corresponds to no call of the program.
    - ``deciding_fields``: fields that, with the objects, decide the effect on a state without regions. The same event
      in the same state of a run has the same effect. None if the effect depends on more than the fields.
    """

    predicate_worth: ClassVar[int] = UNTESTED
    description: ClassVar[str] = ""
    scaled_description: ClassVar[str] = ""
    has_optimizer: ClassVar[bool] = False
    establishes_optimizer: ClassVar[bool] = False
    may_violate: ClassVar[bool] = False
    has_loops: ClassVar[bool] = False
    is_structural: ClassVar[bool] = False
    deciding_fields: ClassVar[tuple[str, ...] | None] = None

    site: Site
    #: Keys of tracked objects. The documentation of a kind names the subject first, then the object.
    subject: int | None = None
    object: int | None = None
    names: Names = NO_NAMES
    #: The predicates around the event in source; a run has none.
    guards: Guards = ()
    #: Keys of the enclosing loops in source, outermost first, if the kind ``has_loops``.
    loops: tuple[int, ...] | None = None
    #: The event rests on a guess, so a violation with the event is only possible.
    guessed: bool = False

    def __init__(
        self,
        site: Site,
        subject: int | None = None,
        object: int | None = None,
        names: Names = NO_NAMES,
        guards: Guards = (),
        **fields: FieldValue,
    ) -> None:
        self.site = site
        self.subject = subject
        self.object = object
        self.names = names
        self.guards = guards
        if fields:
            self.__dict__.update(fields)

    def __repr__(self) -> str:
        return f"<{name_of_kind(type(self))} {self.subject} {self.object} @{self.site}>"


#: A kind of event.
EventKind = type[Event]


def name_of_kind(kind: EventKind) -> str:
    """Return the name of a kind of event in lower case with hyphens, such as ``grad-read``."""
    return "".join(f"-{char.lower()}" if char.isupper() else char for char in kind.__name__).lstrip("-")


# Events that several kinds have in common.


class OwnedEvent(Event):
    """An event on the gradients or states of some optimizers."""

    #: Keys of the optimizers, None if unknown.
    owners: Collection[int] | None = None


class GradientAccess(OwnedEvent):
    """An access to gradients beside torch's own step."""

    #: The program checks the result and skips, or takes the loss scale into account itself.
    undone: bool = False


class ScaledLoss(Event):
    """A loss that is scaled or runs backward."""

    #: Region dtypes of the forward.
    dtypes: Collection[str] = frozenset()
    #: The event of the forward.
    forward: Event | None = None
    #: The loss is already scaled.
    twice: bool = False


class LowPrecisionEffect(Event):
    """An effect of low precision on values."""

    #: "half" for either low dtype.
    dtype: str = "half"


# The kinds.


class AutocastNew(Event):
    """An autocast context is constructed."""

    #: Values bound to the signature.
    arguments: Names
    #: Name of the constructor.
    callable: str
    #: Number of surplus arguments.
    excess: int = 0
    #: Source texts of a comparison that always fails and decides an argument, and of the compared device.
    failed_comparison: Mapping[str, str] | None = None


class AutocastEnter(Event):
    """A region is entered."""

    predicate_worth = SELDOM
    description = "autocast is entered"
    may_violate = True

    enabled: bool
    device: str = ""
    dtype: str = ""
    #: The region caches casts of weights.
    cache: bool = True
    #: Identity of the context, None if the subject identifies the context.
    instance: int | None = None
    #: No region, but used in place of a region.
    null: bool = False
    #: Framework that scales the loss only in another configuration.
    unscaled_by: str = ""


class AutocastExit(Event):
    """A region is left."""

    predicate_worth = SELDOM
    description = "autocast is exited"

    #: Number of regions that stay open, None for all but one.
    depth: int | None = None


class AutocastCacheClear(Event):
    """The cache of cast weights is cleared."""

    predicate_worth = MOVES


class CustomFunction(Event):
    """An autograd.Function that rejects the dtypes from autocast."""

    how: str
    #: Applied to relevant inputs.
    applied: bool


class ScopeLost(Event):
    """An autocast that never covers the intended code."""

    how: str


class LeavingRegion(Event):
    """A module runs where the state or the cache of an open region does not apply."""

    #: "trace", "graphed" or "graph" for a capture, "thread" or "replicas" for a thread.
    how: str


class Capture(LeavingRegion):
    """A module is traced, or its kernels are captured."""

    description = "the model is captured"


class Thread(LeavingRegion):
    """A module that runs in another thread than the thread with the region."""

    description = "another thread runs the model"


class Compiled(Event):
    """A compiled module with float32 islands, run in a region, with backward outside."""


class LeftOut(Event):
    """A module whose gradients all ranks average; a single rank skips the backward of a batch."""


class CommHook(Event):
    """A module whose gradients are cast to float16 before averaging over ranks."""


class ScalerNew(Event):
    """A scaler is constructed."""

    predicate_worth = SELDOM
    description = "the scaler is constructed"

    #: Values bound to the signature.
    arguments: Names = NO_NAMES
    #: Name of the constructor.
    callable: str = ""
    #: Number of surplus arguments.
    excess: int = 0
    #: The scaler found no device.
    disabled_itself: bool = False
    #: In a run: float16 gradients are computed under the disabled scaler.
    off_in_float16: bool = False
    #: The call by which the same class shards a module.
    sharding: str = ""
    #: Source text of the condition for bfloat16 under which alone the scaler is constructed.
    bf16_condition: str = ""


class OptimizerNew(Event):
    """An optimizer is constructed."""

    predicate_worth = SELDOM
    description = "the optimizer is constructed"
    has_optimizer = True
    establishes_optimizer = True

    #: Not constructed here, so the content of the gradients is unknown.
    found: bool = False


class Scale(ScaledLoss):
    """A scaler scales a loss."""

    #: The scaled value was computed "in" or "out" of a region, or "?".
    autocast: str = "?"
    #: No input was in, or entered, a region. None if not yet known.
    bare: bool | None = None
    #: Other called functions.
    callees: frozenset[str] = frozenset()
    #: The forward ran in a float32 region.
    float32: bool = True
    #: The code of the forward is known.
    forward_read: bool = False
    loss_in_region: bool = False
    #: In a run: the disabled region around the forward.
    disabled_by: AutocastNew | None = None
    #: In a run: the region of another device around the forward.
    other_device: AutocastEnter | None = None


class Backward(ScaledLoss):
    """A loss runs backward, scaled by a scaler or by nothing."""

    predicate_worth = MOVES
    description = "gradients of an unscaled loss are added"
    scaled_description = "gradients multiplied by the loss scale are added"
    has_loops = True
    deciding_fields = ("feeds", "divided", "given", "opaque")

    #: Optimizers that accumulate the gradients, None if unknown.
    feeds: Collection[int] | None = None
    #: Identities of the leaves in a run.
    leaves: frozenset[int] = frozenset()
    #: The loss is divided.
    divided: bool = False
    #: The division is not certain.
    vague: bool = False
    #: Kind of a loop without step: LOOSE or MICRO.
    inside: str = ""
    #: Under no_sync.
    apart: bool = False
    #: Predicates under which gradients are averaged over ranks, None if they are not.
    averaged: Collection[tuple[int, bool]] | None = None
    #: No known scaler.
    alone: bool = False
    #: The autograd Functions handle autocast.
    custom: bool = False
    #: In a region of TransformerEngine.
    float8: bool = False
    #: Terms of the loss have different scales.
    uneven: bool = False
    #: Terms of the loss have different scalers.
    several: bool = False
    #: Scaled by a scaler.
    scaled: bool = False
    #: The caller may have scaled the loss.
    given: bool = False
    #: The caller computes the loss.
    outside: bool = False
    #: The gradient argument may be scaled.
    opaque: bool = False
    #: A divisor of the loss that counts the microbatches so far: its location, text and identities.
    running: tuple[Site, FieldValue, tuple[FieldValue, ...]] | None = None
    #: Name of a scaler of the same object, which no method uses here.
    beside: str = ""
    #: In a run: optimizers whose gradients of another loss are unscaled already.
    mixes: Collection[int] = ()


class AutogradGrad(Event):
    """Gradients are computed by ``torch.autograd.grad``."""

    description = "gradients are computed to be differentiated again"
    may_violate = True

    #: The gradients are differentiated again (``create_graph=True``), as a penalty on their norm.
    differentiable: bool = False


class Unscale(Event):
    """A scaler unscales the gradients of an optimizer."""

    predicate_worth = MOVES
    description = "the gradients are divided by the loss scale"
    may_violate = True
    has_optimizer = True
    establishes_optimizer = True
    deciding_fields = ()

    #: Framework whose call this is, "" if there may be none. None for a call of the program.
    framework: str | None = None


class Restore(OwnedEvent):
    """A block of a scaler that unscales the gradients it scaled ends."""

    predicate_worth = MOVES
    description = "the gradients are divided by the loss scale"
    may_violate = True


class DividedTwice(Event):
    """A loss is divided by a number that the framework also divides by."""

    divisor: str
    framework: str
    #: How the framework divides.
    way: str


class Undivided(Event):
    """A loss that the program computes itself, and that its Trainer does not divide."""


class Clip(GradientAccess):
    """Gradients are clipped."""

    predicate_worth = MOVES
    description = "the gradients are clipped"
    deciding_fields = ("owners", "measures_only", "nonfinite_error", "undone")

    #: Identities of parameters without optimizer so far.
    touches: frozenset[int] = frozenset()
    #: The limit is infinite.
    measures_only: bool = False
    #: Clip over the shards of one rank.
    local: bool = False
    #: Manual clipping by the norm of the gradients.
    by_hand: bool = False
    #: torch raises if the norm is not finite.
    nonfinite_error: bool = False
    #: Level of apex whose copies of the parameters are clipped.
    copies: str = ""
    #: Name of a scaler of the same object, which no method uses here.
    beside: str = ""


class GradRead(GradientAccess):
    """Gradients are read."""

    description = "the gradients are read"


class GradEdit(GradientAccess):
    """Gradients are edited."""

    predicate_worth = MOVES
    description = "the gradients are edited"


class GradCheck(GradientAccess):
    """Gradients are checked for non-finite values."""

    description = "the gradients are checked for NaN and infinities"
    deciding_fields = ("owners",)

    #: The program stops if there are any.
    raises: bool


class Anomaly(Event):
    """Later backwards raise on NaN."""

    #: Anomaly detection ends before any backward. None if it does not end.
    idle: bool | None = None


class GradDivide(GradientAccess):
    """Gradients are divided manually by the loss scale."""

    predicate_worth = MOVES
    description = "the gradients are divided by the loss scale by hand"


class GradNormalise(OwnedEvent):
    """Gradients are divided manually by the number of microbatches."""

    predicate_worth = MOVES


class GradAverage(Event):
    """Gradients are averaged manually over ranks."""


class ScalerStep(Event):
    """A scaler steps an optimizer."""

    predicate_worth = MOVES
    description = "the scaler steps the optimizer"
    may_violate = True
    has_optimizer = True
    establishes_optimizer = True
    has_loops = True
    deciding_fields = ("unscales",)

    #: A closure is passed.
    closure: bool = False
    #: Step of this framework, including update, "" if there may be none. None for a step of the program.
    framework: str | None = None
    #: The step unscales the gradients if they are not.
    unscales: bool = True
    #: How a single rank steps its shards.
    unsynchronised: str = ""


class Step(Event):
    """An optimizer is stepped directly."""

    predicate_worth = MOVES
    description = "the optimizer is stepped directly"
    has_optimizer = True
    deciding_fields = ("checked",)

    #: The program checked the gradients to be finite.
    checked: bool = False
    #: Name of a scaler of the same object, which no method uses here.
    beside: str = ""


class Update(Event):
    """A scaler updates the scale. A run has the scale and statistics so far."""

    predicate_worth = MOVES
    description = "the loss scale is updated"
    may_violate = True
    deciding_fields = ("new_scale",)

    #: An argument sets the scale.
    new_scale: bool = False
    scale: float | None = None
    growth_interval: int = 0
    steps: int = 0
    skips: int = 0
    skips_in_a_row: int = 0
    #: Cause of skipped steps as text.
    cause: str = ""
    #: Trace of the cause.
    witness: Witness = ()


class ZeroGrad(OwnedEvent):
    """The gradients of some optimizers are cleared."""

    predicate_worth = MOVES
    description = "the gradients are cleared"
    has_optimizer = True
    establishes_optimizer = True
    has_loops = True
    deciding_fields = ("owners", "rescue")

    #: In an exception handler, or intentionally discarded in a run.
    rescue: bool = False
    #: Writes zeros that no known code needs.
    zeros: bool = False
    #: Each iteration of a loop without a step clears before its backward.
    discards: bool = False


class Forward(Event):
    """A module runs forward."""

    description = "the model runs forward"

    #: The weights may be cached.
    cached: bool = True
    #: The weights were cast while gradients were off.
    poisoned: bool = False


class Loss(Event):
    """A loss function is computed."""

    may_violate = True

    #: Name of the loss.
    function: str | None = None
    #: Dtype of the computation.
    low_precision: str = ""
    #: Severity if a framework runs the loss under autocast.
    ambient: str | None = None
    #: The forward of a module computes the loss, in a region for ``device`` ("" without one).
    in_forward: bool = False
    device: str = ""


class ParamWrite(Event):
    """Parameters are written."""

    predicate_worth = SELDOM
    description = "parameters are written"


class ModuleCast(Event):
    """The parameters of a module are cast, or created, in a dtype."""

    description = "the model's parameters are cast"

    dtype: str
    #: "cast", "made" in this dtype, by the "default" dtype, by a "trainer" with this precision, or in the
    #: dtype of the "checkpoint".
    how: str = "cast"
    #: Created or loaded in this dtype.
    born: bool = False
    #: The same code trains the module in this dtype.
    trained: bool = True
    #: Cast back to float32 while the module is trained, so that its parameters are only rounded.
    returns: bool = False
    #: Names of an unknown module and of its origin, None for a known module.
    called: frozenset[str] | None = None
    #: The caller passes the unknown module.
    given: bool = False


class Fill(Event):
    """Elements of a tensor are filled with a number."""

    value: float
    #: The filled tensor may be float16. Guessed: other code enters autocast.
    eligible: bool
    #: The value is a clamp bound.
    bound: bool = False


class ScalerState(Event):
    """``scaler.state_dict()``."""

    description = "the scaler's state is taken"
    may_violate = True


class ScalerLoad(Event):
    """``scaler.load_state_dict()``."""

    predicate_worth = SELDOM

    #: Key in a checkpoint.
    entry: str | None = None
    #: No checkpoint here has the key.
    of_others: bool = False


class Save(OwnedEvent):
    """A checkpoint is written, with the states of optimizers and scalers, each by key or text."""

    description = "the checkpoint is written"

    optimizers: tuple[int | str, ...] = ()
    scalers: tuple[int | str | bool, ...] = ()
    #: Scaler objects themselves.
    whole_scalers: tuple[int | str, ...] = ()
    #: Scalers that step the saved optimizers.
    scope_scalers: tuple[str, ...] = ()
    #: Keys of the states in the checkpoint.
    optimizer_entries: frozenset[str] = frozenset()
    scaler_entries: frozenset[str] = frozenset()
    #: The checkpoint may contain more.
    open: bool = False
    #: The receiver of the objects saves the states.
    objects: bool = False


class OptimizerLoad(Event):
    """``optimizer.load_state_dict()``."""

    #: The loaded object.
    source: int = -1
    #: Key in the loaded object.
    entry: str | None = None
    #: The source has a scaler state.
    holds_scaler: bool = False
    #: Names of the scalers that step the optimizer.
    scope_scalers: tuple[FieldValue, ...] = ()


class FollowingEvent(Event):
    """An action of the program beside an optimizer step."""

    has_loops = True

    #: In a run: the step before was skipped.
    skipped: FieldValue = False


class SchedulerStep(FollowingEvent):
    """The learning rate of an optimizer changes."""

    description = "the learning rate moves on"

    #: In a run: there was no step.
    idle: bool = False


class StepFollowed(FollowingEvent):
    """The weights are averaged, or other code follows an optimizer step."""

    description = "the weights are averaged"

    how: str = "followed"


class Window(Event):
    """In a run: the windows of an optimizer lose microbatches."""

    #: "zero" or "early".
    how: str


class GradInvalid(Event):
    """An optimizer whose gradients became non-finite after unscale_."""


class NotFinite(Event):
    """A non-finite loss, gradient, parameter or statistic of a run."""

    #: The cause.
    how: str
    #: A clause about statistics that a skipped step leaves non-finite, or "".
    lasting: str = ""
    #: Trace of the cause.
    witness: Witness = ()


class Recomputation(Event):
    """A reentrant checkpoint without differentiable inputs surrounds parameters of an optimizer in a run."""


class Penalty(Event):
    """Scaled gradients from autograd.grad are part of a new loss."""

    #: Divided by a scale that update() changed since.
    outdated: bool = False


class Deprecated(Event):
    """A deprecated name is used."""

    old: str
    new: str


class Epsilon(LowPrecisionEffect):
    """A small constant is added, or is a lower bound."""

    how: str
    value: float
    #: The result is a divisor.
    divides: bool = False


class FragileMath(LowPrecisionEffect):
    """An expression that overflows or cancels."""

    how: str


class LowSum(LowPrecisionEffect):
    """A running sum in low precision."""

    #: Further additions no longer change the sum.
    stands: bool = False


class LowPositions(LowPrecisionEffect):
    """Positions lose their last digits."""

    how: str


class LateScale(LowPrecisionEffect):
    """Attention scores are scaled after the product."""


class LowOp(LowPrecisionEffect):
    """An op without low-precision kernel receives a low-precision tensor."""

    how: str


class DtypeClash(LowPrecisionEffect):
    """A low-precision and a float32 tensor are combined without promotion."""

    how: str


class Overhead(Event):
    """Casts or copies are repeated."""

    has_loops = True

    how: str


class OddSize(Event):
    """A low-precision product with a side that is slow on Tensor Cores."""

    #: Side of the "weight", or the "rows".
    how: str


class Handoff(Event):
    """Objects escape to unanalyzed code."""

    predicate_worth = SELDOM
    is_structural = True

    #: Keys of the objects.
    things: Collection[int] = ()
    #: Objects that this code is known to train.
    trains: Collection[int] = ()
    #: Possible effects of the code, from MATTERS.
    about: Collection[str] = MATTERS
    #: Optimizers whose gradients are assigned from any source.
    given: Collection[int] = ()


class Raised(Event):
    """An error of torch ended the run."""

    #: The violation that explains the error.
    label: str
    #: Values for the message.
    values: Mapping[str, str]
    witness: Witness = ()


class LoopExit(Event):
    """A loop that counts accumulation windows ends; trailing microbatches form no window."""

    predicate_worth = SELDOM
    is_structural = True

    #: The step follows after the loop, so the end of the loop completes the window.
    complete: bool = False
    #: An enclosing loop leaves the step to later code, too.
    within: bool = False


class Again(Event):
    """Unanalyzed code calls the analyzed function again."""

    predicate_worth = SELDOM
    description = "the function is called again"
    is_structural = True

    #: No code of the file clears the remaining gradients.
    uncleared: bool = False


class End(Event):
    """The analyzed program ends."""

    predicate_worth = SELDOM
    description = "the program ends"
    is_structural = True


class ScalerAttributes:
    """Attributes of a scaler."""

    #: Condition under which the scaler scales. After a program is analyzed: a boolean, or UNKNOWN.
    enabled: FieldValue = True
    #: Predicates of this condition. None for a scaler that nobody constructs here.
    enabling: frozenset[int] | None = None
    #: Class of the project from which the scaler derives.
    cls: FieldValue = None
    #: Sharded over ranks.
    sharded: bool = False
    #: Framework that owns the scaler, None for a scaler of the program.
    framework: str | None = None
    #: Severity that the doubt leaves whether the framework scales, "" without a doubt.
    doubt: str = ""
    #: An engine that accumulates gradients in a context.
    accumulates: bool = False


class OptimizerAttributes:
    """Attributes of an optimizer."""

    #: Modules whose parameters the optimizer owns, None if unknown.
    owns: frozenset[int] | None = None
    #: Modules whose parameters a constructor received that is not analyzed.
    given_modules: frozenset[int] = frozenset()
    #: Other optimizers that own some of the parameters.
    shares: set[int] | None = None
    #: Stands for several optimizers. None if it is one.
    several: bool | None = None
    #: A class with its own ``step`` holds the optimizer.
    wrapped: bool = False
    #: A framework steps, and the number of microbatches of a window is not known to be above one.
    may_have_no_window: bool = False
    #: Hooks may see or change gradients before the step.
    hooked: bool = False
    #: Code elsewhere, or the learning rate, divides by the number of microbatches.
    divided: bool = False
    #: The fused implementation of torch.
    fused: bool = False
    #: The engine that steps the optimizer, with the guards of the path.
    engine: tuple[FieldValue, frozenset[tuple[int, bool]]] | None = None


_NO_WRAPPERS: dict[str, frozenset[tuple[int, bool]]] = {}


class ModuleAttributes:
    """Attributes of a module, or of a parameter."""

    #: Submodules.
    parts: set[int] | None = None
    #: Name of the class of a module of the project.
    class_name: str | None = None
    #: The code of the forward is known. None if nobody has looked.
    read: bool | None = None
    #: Wrappers of the module, each with the predicates under which it wraps.
    wrappers: dict[str, frozenset[tuple[int, bool]]] = _NO_WRAPPERS
    #: The module casts its inputs, or parameters, itself.
    casts: bool = False
    #: Low dtype in which a policy makes the module compute.
    computes_in: str | None = None
    #: Parameters in a low dtype.
    low: bool = False
    #: Level of apex that keeps float32 copies of the parameters.
    copies: str = ""
    #: A copy of another module.
    copied: bool = False
    compiled: bool = False
    frozen: bool = False
    #: Some parameters are frozen.
    partly_frozen: bool = False
    #: Precision of the Trainer that trains the module.
    trainer: str | None = None
    deepspeed: bool = False
    #: A parameter in float32, and one with dimensions.
    parameter: bool = False
    wide: bool = False
    #: Source texts about sides that are slow on Tensor Cores.
    odd: Names | None = None


class LossAttributes:
    """Attributes of a loss function that is an object."""

    #: The computation runs in the widest dtype of its inputs.
    promotes: bool = False
    reduction: FieldValue = None


class RegionAttributes:
    """Attributes of an autocast context."""

    dtype: str = "?"
    #: The region caches casts of weights.
    cache: bool = True
    #: A variable holds the context, so it may be entered again.
    stored: bool = False


class ObjectAttributes(ScalerAttributes, OptimizerAttributes, ModuleAttributes, LossAttributes, RegionAttributes):
    """Attributes of a tracked object. An object has those of its role, and those that several roles have."""

    #: Constructed by code that is analyzed.
    constructed: bool = False
    #: Name of the constructor.
    callable: str = ""
    arguments: Names = NO_NAMES
    #: Device type, "" if unknown.
    device: FieldValue = ""
    #: Kind of a module or loss.
    kind: str = ""
    #: Other code has the object.
    shared: bool = False

    def __init__(self, **attributes: FieldValue) -> None:
        self.__dict__.update(attributes)


class TrackedObject:
    """An object of the protocol: a scaler, an optimizer, a module, an autocast region.

    ``key`` is the index in :attr:`Program.objects`.
    """

    __slots__ = ("attributes", "key", "name", "role", "site")

    def __init__(self, key: int, role: str, name: str, site: Site | None, attributes: ObjectAttributes) -> None:
        self.key = key
        self.role = role
        self.name = name
        self.site = site
        self.attributes = attributes

    def __repr__(self) -> str:
        return f"<{self.role} {self.key} {self.name}>"


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


class ProgramAttributes:
    """Properties of a whole program or run, for the rules that check a whole program."""

    def __init__(self) -> None:
        #: Scalers that scale a loss and whose state the program must save.
        self.live_scalers: list[TrackedObject] = []
        #: Scalers with a step and no update in the whole program.
        self.left_scalers: frozenset[int] = frozenset()
        #: Names of scalers that are recreated again and again.
        self.remade: set[str] = set()
        #: Region dtypes of the scaled losses.
        self.scaler_dtypes: set[str] = set()
        #: Some code scales a loss that other code runs backward.
        self.scales_apart = False
        #: Modules that optimizers train, and those of them that a live scaler steps (None if not known apart).
        self.trained_modules: set[int] = set()
        self.scaled_modules: set[int] | None = None
        #: Those that only optimizers of unknown classes train. Such an optimizer may keep float32 copies.
        self.trained_by_unknown: set[int] = set()
        #: The program, or code that may run it, enters autocast.
        self.enters_autocast = True
        #: Another part of the program averages gradients over microbatches.
        self.averaged = False
        #: A code block of a document.
        self.fragment = False
        #: A Trainer of Lightning runs in float16.
        self.lightning16 = False
        #: The program may resume from a checkpoint.
        self.resumes = True
        #: Keys of unknown values that unanalyzed code receives.
        self.handed: set[Hashable] = set()
        #: A function that is too long to be analyzed completely.
        self.unread: Site | None = None

    def copy(self) -> ProgramAttributes:
        made = ProgramAttributes()
        made.__dict__.update(self.__dict__)
        return made


class Program:
    """The analysis of a source tree, or a run: graphs and the tracked objects of the events."""

    __slots__ = ("attributes", "graphs", "objects", "optimizer_keys")

    def __init__(self) -> None:
        self.graphs: list[Graph] = []
        #: Keys of the objects that are optimizers.
        self.optimizer_keys: list[int] = []
        self.objects: list[TrackedObject] = []
        self.attributes = ProgramAttributes()

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
            parts = set(self.objects[todo.pop()].attributes.parts or ()) - whole
            whole |= parts
            todo += parts
        return frozenset(whole)

    def add_object(self, role: str, name: str, site: Site | None = None, **attributes: FieldValue) -> TrackedObject:
        """Create a tracked object of this program."""
        new_object = TrackedObject(len(self.objects), role, name, site, ObjectAttributes(**attributes))
        self.objects.append(new_object)
        if role == "optimizer":
            self.optimizer_keys.append(new_object.key)
        return new_object
