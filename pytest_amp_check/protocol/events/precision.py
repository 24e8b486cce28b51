"""Events about effects of low precision and about cost."""

from __future__ import annotations

from .event import SELDOM, Event, KindTraits, LowPrecisionEffect


class ParamWrite(Event):
    """Parameters are written."""

    traits = KindTraits(predicate_worth=SELDOM, description="parameters are written")


class ModuleCast(Event):
    """The parameters of a module are cast, or created, in a dtype."""

    traits = KindTraits(description="the model's parameters are cast")

    dtype: str
    #: "cast", "made" in this dtype, by the "default" dtype, by a "trainer" with this precision, by a "setting" of a
    #: configuration file, or in the dtype of the "checkpoint".
    how: str = "cast"
    #: Created or loaded in this dtype.
    created: bool = False
    #: The same code trains the module in this dtype.
    trained: bool = True
    #: A scaler may step after the cast: no condition of the cast excludes all steps of scalers.
    with_scaler: bool = True
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
    #: The filled tensor is cast to float16 after the fill.
    cast: bool = False
    #: The dtype of the filled tensor, float16 or bfloat16, whose range is that of float32 but for its end.
    dtype: str = "float16"


class Epsilon(LowPrecisionEffect):
    """A small constant is added, or is a lower bound."""

    how: str
    value: float
    #: The result is a divisor.
    divides: bool = False


#: Expressions whose result is mostly rounding error in every low dtype: differences and ties of nearly equal numbers.
CANCELLATIONS = frozenset(("log-complement", "exp-complement", "moments", "log-ratio", "ranking", "schedule"))


class FragileMath(LowPrecisionEffect):
    """An expression that overflows or cancels."""

    how: str
    #: A mean of each vector, by which a normalization divides the vector.
    of_each: bool = False


class LowParameter(LowPrecisionEffect):
    """A new trained parameter takes the low dtype of the weights that it is computed from, or of a checkpoint."""

    #: "computed" from low weights, or "saved" for resuming.
    how: str = "computed"


class LowSum(LowPrecisionEffect):
    """A running sum in low precision."""

    #: Further additions no longer change the sum.
    stands: bool = False
    #: A moving average.
    average: bool = False
    #: Counts, which are no longer exact.
    count: bool = False
    #: The second moment of an optimizer.
    moment: bool = False
    #: A sum of many elements at once, by index or along a dimension.
    scattered: bool = False
    #: A buffer of a module, whose dtype a cast of the model decides.
    buffer: bool = False


class LowReduction(LowPrecisionEffect):
    """Gradients are summed over the ranks in low precision."""

    traits = KindTraits(description="the dtype of the sum over the ranks is set")

    #: "given" by an argument, by a "setting" of a configuration file, or the "default", the dtype of the computation;
    #: "window" for the sum over micro-batches, given by a setting.
    how: str


class LowPositions(LowPrecisionEffect):
    """Positions lose their last digits."""

    how: str


class Float8(Event):
    """A call for float8 training that comes too late or too early, or has a format that does not fit."""

    how: str


class LateScale(LowPrecisionEffect):
    """Attention scores are scaled after the product."""


class LowOp(LowPrecisionEffect):
    """An op without low-precision kernel receives a low-precision tensor."""

    how: str
    #: The dtype of the tensor is not known, and assumed.
    is_unknown: bool = False


class DtypeClash(LowPrecisionEffect):
    """A low-precision and a float32 tensor are combined without promotion."""

    how: str


class Overhead(Event):
    """Casts or copies are repeated."""

    traits = KindTraits(has_loops=True)

    how: str


class OddSize(Event):
    """A low-precision product with a side that is slow on Tensor Cores."""

    #: Side of the "weight", or the "rows".
    how: str
