"""Events of optimizers: construction, steps, and cleared gradients."""

from __future__ import annotations

from .event import MOVES, SELDOM, Event, FieldValue, KindTraits, OwnedEvent


class OptimizerNew(Event):
    """An optimizer is constructed."""

    traits = KindTraits(
        predicate_worth=SELDOM,
        description="the optimizer is constructed",
        has_optimizer=True,
        establishes_optimizer=True,
    )

    #: Not constructed here, so the content of the gradients is unknown.
    found: bool = False


class ScalerStep(Event):
    """A scaler steps an optimizer."""

    traits = KindTraits(
        predicate_worth=MOVES,
        description="the scaler steps the optimizer",
        has_optimizer=True,
        establishes_optimizer=True,
        may_violate=True,
        has_loops=True,
        deciding_fields=("unscales",),
    )

    #: A closure is passed.
    closure: bool = False
    #: The closure is passed by name, for which an enabled scaler raises.
    has_named_closure: bool = False
    #: Step of this framework, including update, "" if there may be none. None for a step of the program.
    framework: str | None = None
    #: The step unscales the gradients if they are not.
    unscales: bool = True
    #: How a single rank steps its shards.
    unsynchronised: str = ""


class Step(Event):
    """An optimizer is stepped directly."""

    traits = KindTraits(
        predicate_worth=MOVES,
        description="the optimizer is stepped directly",
        has_optimizer=True,
        has_loops=True,
        deciding_fields=("checked",),
    )

    #: The program checked the gradients to be finite.
    checked: bool = False
    #: Name of a scaler of the same object, which no method uses here.
    beside: str = ""


class ZeroGrad(OwnedEvent):
    """The gradients of some optimizers are cleared."""

    traits = KindTraits(
        predicate_worth=MOVES,
        description="the gradients are cleared",
        has_optimizer=True,
        establishes_optimizer=True,
        has_loops=True,
        deciding_fields=("owners", "rescue", "may_be_refilled"),
    )

    #: In an exception handler, or intentionally discarded in a run.
    rescue: bool = False
    #: Writes zeros that no known code needs.
    zeros: bool = False
    #: Each iteration of a loop without a step clears before its backward.
    discards: bool = False
    #: Unanalyzed code runs before the next event, and may write gradients that it kept.
    may_be_refilled: bool = False


class FollowingEvent(Event):
    """An action of the program beside an optimizer step."""

    traits = KindTraits(has_loops=True)

    #: In a run: the step before was skipped.
    skipped: FieldValue = False


class SchedulerStep(FollowingEvent):
    """The learning rate of an optimizer changes."""

    traits = KindTraits(description="the learning rate moves on", has_loops=True)

    #: In a run: there was no step.
    idle: bool = False


class StepFollowed(FollowingEvent):
    """The weights are averaged, or other code follows an optimizer step."""

    traits = KindTraits(description="the weights are averaged", has_loops=True)

    how: str = "followed"


class Window(Event):
    """The windows of an optimizer lose microbatches, or each microbatch is a window of its own.

    "zero" and "early" are found in a run, "single" and "unused" in source.
    """

    #: "zero", "early", "single" or "unused".
    how: str
