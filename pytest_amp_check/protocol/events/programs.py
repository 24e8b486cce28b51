"""Events of a program or a run as a whole: jumps, unanalyzed code, exceptions and non-finite values."""

from __future__ import annotations

from ..sites import TraceFacts
from .event import ALL_EFFECTS, SELDOM, Event, KindTraits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


class NotFinite(Event):
    """A non-finite loss, gradient, parameter or statistic of a run."""

    #: The cause.
    how: str
    #: A clause about statistics that a skipped step leaves non-finite, or "".
    buffers: str = ""
    #: Trace of the cause.
    trace: TraceFacts = ()


class Recomputation(Event):
    """A reentrant checkpoint without differentiable inputs surrounds parameters of an optimizer in a run."""


class Deprecated(Event):
    """A deprecated name is used."""

    old: str
    new: str


class Handoff(Event):
    """Objects escape to unanalyzed code."""

    traits = KindTraits(predicate_worth=SELDOM, is_structural=True)

    #: Keys of the objects.
    objects: Collection[int] = ()
    #: Objects that this code is known to train.
    trains: Collection[int] = ()
    #: Possible effects of the code, from ALL_EFFECTS.
    about: Collection[str] = ALL_EFFECTS
    #: Callbacks of the user are called with what the program does, and may do anything.
    notifies: bool = False
    #: Optimizers whose gradients are assigned from any source.
    given: Collection[int] = ()


class Raised(Event):
    """An error of torch ended the run."""

    #: The violation that explains the error.
    label: str
    #: Values for the message.
    values: Mapping[str, str]
    trace: TraceFacts = ()


class LoopExit(Event):
    """A loop that counts accumulation windows ends; trailing microbatches form no window."""

    traits = KindTraits(predicate_worth=SELDOM, is_structural=True)

    #: The step follows after the loop, so the end of the loop completes the window.
    complete: bool = False
    #: An enclosing loop leaves the step to later code, too.
    within: bool = False


class Again(Event):
    """Unanalyzed code calls the analyzed function again."""

    traits = KindTraits(predicate_worth=SELDOM, description="the function is called again", is_structural=True)

    #: No code of the file clears the remaining gradients.
    uncleared: bool = False


class End(Event):
    """The analyzed program ends."""

    traits = KindTraits(predicate_worth=SELDOM, description="the program ends", is_structural=True)
