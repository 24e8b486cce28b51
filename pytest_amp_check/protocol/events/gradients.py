"""Events that read, change or average gradients."""

from __future__ import annotations

from .event import MOVES, Event, GradientAccess, KindTraits, OwnedEvent


class LeftOut(Event):
    """A module whose gradients all ranks average; a single rank skips the backward of a batch."""


class LateSharding(Event):
    """A module whose parameters are replaced, and the optimizer that was constructed for the old ones."""


class CommHook(Event):
    """A module whose gradients are cast to float16 before averaging over ranks."""


class DividedTwice(Event):
    """A loss is divided by a number that the framework also divides by."""

    divisor: str
    framework: str
    #: How the framework divides.
    way: str


class Undivided(Event):
    """A loss that the program computes itself, and that its Trainer does not divide."""


class SyncSetLate(Event):
    """A flag that says whether DDP averages gradients is set between the forward that reads it and the backward."""


class Clip(GradientAccess):
    """Gradients are clipped."""

    traits = KindTraits(
        predicate_worth=MOVES,
        description="the gradients are clipped",
        deciding_fields=("owners", "measures_only", "nonfinite_error", "undone", "joint"),
    )

    #: Identities of parameters without optimizer so far.
    touches: frozenset[int] = frozenset()
    #: The limit is infinite.
    measures_only: bool = False
    #: Clip over the shards of one rank.
    local: bool = False
    #: Manual clipping by the norm of the gradients.
    by_hand: bool = False
    #: In a run: one norm over all of the gradients decides the factor of each.
    joint: bool = False
    #: torch raises if the norm is not finite.
    nonfinite_error: bool = False
    #: Level of apex whose copies of the parameters are clipped.
    copies: str = ""
    #: Name of a scaler of the same object, which no method uses here.
    beside: str = ""


class GradRead(GradientAccess):
    """Gradients are read."""

    traits = KindTraits(description="the gradients are read")


class GradEdit(GradientAccess):
    """Gradients are edited."""

    traits = KindTraits(predicate_worth=MOVES, description="the gradients are edited")

    #: By a hook of a tensor, or by a Function, before the gradients reach the parameters.
    in_backward: bool = False


class GradCheck(GradientAccess):
    """Gradients are checked for non-finite values."""

    traits = KindTraits(description="the gradients are checked for NaN and infinities", deciding_fields=("owners",))

    #: The program stops if there are any.
    raises: bool


class Anomaly(Event):
    """Later backwards raise on NaN."""

    #: Anomaly detection ends before any backward. None if it does not end.
    idle: bool | None = None


class GradDivide(GradientAccess):
    """Gradients are divided manually by the loss scale."""

    traits = KindTraits(predicate_worth=MOVES, description="the gradients are divided by the loss scale by hand")


class GradNormalise(OwnedEvent):
    """Gradients are divided manually by the number of microbatches."""

    traits = KindTraits(predicate_worth=MOVES, description="the gradients are divided by hand")


class GradLog(Event):
    """A logger reads the gradients of a module in each backward pass."""


class LossRead(GradientAccess):
    """The number of a scaled loss is read."""

    #: Other code reads it, to which a function returns the loss.
    is_returned: bool = False


class GradAverage(Event):
    """Gradients are averaged manually over ranks."""


class GradInvalid(Event):
    """An optimizer whose gradients became non-finite after unscale_."""
