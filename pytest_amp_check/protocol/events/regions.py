"""Events of autocast regions, and of modules that run outside of the regions around them."""

from __future__ import annotations

from .event import MOVES, SELDOM, Event, KindTraits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    #: Source texts for messages (converted by ``str``), or values bound to a signature.
    Names = Mapping[str, object]


def describe_region(dtype: str) -> str:
    """Return the description of the entry of a region in a trace."""
    if dtype in ("float16", "bfloat16", "float32"):
        return f"autocast in {dtype} is entered"
    return "autocast is entered, with a dtype that is chosen elsewhere" if dtype == "?" else "autocast is entered"


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
    #: Source text of a flag of unknown truth that is passed as the dtype, "" without one.
    flag_as_dtype: object = ""


class AutocastEnter(Event):
    """A region is entered."""

    traits = KindTraits(predicate_worth=SELDOM, description="autocast is entered", may_violate=True)

    enabled: bool
    device: str = ""
    dtype: str = ""
    #: The region caches casts of weights.
    cache: bool = True
    #: Identity of the context, None if the subject identifies the context.
    instance: int | None = None
    #: Source text of a dtype that the code chooses between bfloat16 and float16.
    low_choice: str = ""
    #: The code chooses between regions of several dtypes here.
    is_one_of_several: bool = False
    #: No region, but used in place of a region.
    null: bool = False
    #: Nothing in the region records gradients.
    without_gradients: bool = False
    #: Framework that scales the loss only in another configuration.
    unscaled_by: str = ""


class AutocastExit(Event):
    """A region is left."""

    traits = KindTraits(predicate_worth=SELDOM, description="autocast is exited")

    #: Number of regions that stay open, None for all but one.
    depth: int | None = None


class AutocastCacheClear(Event):
    """The cache of cast weights is cleared."""

    traits = KindTraits(predicate_worth=MOVES)


class CustomFunction(Event):
    """An autograd.Function that rejects the dtypes from autocast."""

    how: str
    #: Applied to relevant inputs.
    applied: bool
    #: A caller may apply the Function under autocast.
    assumed: bool = False


class GradientIgnored(Event):
    """An autograd.Function whose backward returns gradients that do not depend on the gradient that it receives."""


class ScopeLost(Event):
    """An autocast that never covers the intended code."""

    how: str


class TrainerRun(Event):
    """The trainer of a framework runs a whole training inside an open region."""


class LeavingRegion(Event):
    """A module runs where the state or the cache of an open region does not apply."""

    #: "trace", "graphed" or "graph" for a capture, "thread" or "replicas" for a thread.
    how: str


class Capture(LeavingRegion):
    """A module is traced, or its kernels are captured."""

    traits = KindTraits(description="the model is captured")


class Thread(LeavingRegion):
    """A module that runs in another thread than the thread with the region."""

    traits = KindTraits(description="another thread runs the model")


class Compiled(Event):
    """A compiled module with float32 islands, run in a region, with backward outside."""
