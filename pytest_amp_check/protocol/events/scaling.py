"""Events of scalers and of losses."""

from __future__ import annotations

from ..fast_namedtuple import NamedTuple
from ..sites import Site, TraceFacts
from ..torch_api import FLOAT16_BY_CHOICE
from .event import MOVES, NO_NAMES, SELDOM, Event, FieldValue, KindTraits, OwnedEvent, ScaledLoss
from .regions import AutocastEnter, AutocastNew

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    #: Source texts for messages (converted by ``str``), or values bound to a signature.
    Names = Mapping[str, object]


class ScalerNew(Event):
    """A scaler is constructed."""

    traits = KindTraits(predicate_worth=SELDOM, description="the scaler is constructed", has_loops=True)

    #: Values bound to the signature.
    arguments: Names = NO_NAMES
    #: Name of the constructor.
    callable: str = ""
    #: The scaler found no device.
    disabled_itself: bool = False
    #: In a run: an earlier scaler from the same location has stepped the same optimizer.
    again: bool = False
    #: In a run: float16 gradients are computed under the disabled scaler.
    off_in_float16: bool = False
    #: The call by which the same class shards a module.
    sharding: str = ""
    #: The code constructs the scaler only while there is none, or caches it.
    is_lazy: bool = False
    #: Source text of the condition for bfloat16 under which alone the scaler is constructed.
    bf16_condition: str = ""


class Scale(ScaledLoss):
    """A scaler scales a loss."""

    traits = KindTraits(description="the loss is scaled")

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
    #: Gradients that are differentiated again are a part of the loss.
    has_penalty: bool = False
    #: In a run: the disabled region around the forward.
    disabled_by: AutocastNew | None = None
    #: In a run: the region of another device around the forward.
    other_device: AutocastEnter | None = None


class LossDivision(NamedTuple):
    """Division of a loss by the number of microbatches of a window.

    - ``is_divided``: the loss is divided.
    - ``is_vague``: the division is not certain.
    - ``counter``: a divisor of the loss that counts the microbatches so far: its location, text and identities.
    """

    is_divided: bool = False
    is_vague: bool = False
    counter: tuple[Site, FieldValue, tuple[FieldValue, ...]] | None = None


class LossScaling(NamedTuple):
    """Loss scale of a loss that runs backward.

    - ``is_scaled``: a scaler scaled the loss.
    - ``may_be_scaled_by_caller``: the caller may have scaled the loss.
    - ``comes_from_caller``: the caller computes the loss.
    - ``may_have_scaled_gradient``: the gradient argument of the backward may be scaled.
    - ``is_uneven``: terms of the loss have different scales.
    - ``has_several_scalers``: terms of the loss have different scalers.
    """

    is_scaled: bool = False
    may_be_scaled_by_caller: bool = False
    comes_from_caller: bool = False
    may_have_scaled_gradient: bool = False
    is_uneven: bool = False
    has_several_scalers: bool = False


NO_DIVISION = LossDivision()
DIVIDED = LossDivision(is_divided=True)
NO_SCALING = LossScaling()
#: Of a backward with unknown gradients.
UNKNOWN_SCALING = LossScaling(may_have_scaled_gradient=True)


class Backward(ScaledLoss):
    """A loss runs backward, scaled by a scaler or by nothing."""

    traits = KindTraits(
        predicate_worth=MOVES,
        description="backward adds gradients of an unscaled loss",
        scaled_description="backward adds gradients multiplied by the loss scale",
        has_loops=True,
        deciding_fields=("feeds", "division", "scaling"),
    )

    #: Optimizers that accumulate the gradients, None if unknown.
    feeds: Collection[int] | None = None
    #: Identities of the leaves in a run.
    leaves: frozenset[int] = frozenset()
    division: LossDivision = NO_DIVISION
    scaling: LossScaling = NO_SCALING
    #: Kind of a loop without step: LOOSE or MICRO.
    inside: str = ""
    #: Under no_sync.
    no_sync: bool = False
    #: Predicates under which gradients are averaged over ranks, None if they are not.
    averaged: Collection[tuple[int, bool]] | None = None
    #: No known scaler.
    alone: bool = False
    #: The autograd Functions handle autocast.
    custom: bool = False
    #: In a region of TransformerEngine.
    float8: bool = False
    #: Name of a scaler of the same object, which no method uses here.
    beside: str = ""
    #: In a run: optimizers whose gradients of another loss are unscaled already.
    mixes: Collection[int] = ()


class AutogradGrad(Event):
    """Gradients are computed by ``torch.autograd.grad``."""

    traits = KindTraits(description="gradients are computed to be differentiated again", may_violate=True)

    #: The gradients are differentiated again (``create_graph=True``), as a penalty on their norm.
    differentiable: bool = False


class Unscale(Event):
    """A scaler unscales the gradients of an optimizer."""

    traits = KindTraits(
        predicate_worth=MOVES,
        description="the gradients are divided by the loss scale",
        has_optimizer=True,
        establishes_optimizer=True,
        may_violate=True,
        deciding_fields=(),
    )

    #: Framework whose call this is, "" if there may be none. None for a call of the program.
    framework: str | None = None
    #: The framework then raises on infinite gradients, unless the program disables this.
    nonfinite_error: bool = False


class Restore(OwnedEvent):
    """A block of a scaler that unscales the gradients it scaled ends."""

    traits = KindTraits(
        predicate_worth=MOVES, description="the gradients are divided by the loss scale", may_violate=True
    )


class Update(Event):
    """A scaler updates the scale. A run has the scale and statistics so far."""

    traits = KindTraits(
        predicate_worth=MOVES, description="the loss scale is updated", may_violate=True, deciding_fields=("new_scale",)
    )

    #: An argument sets the scale.
    new_scale: bool = False
    #: A loop in source steps one optimizer and updates in each iteration, after a backward before the loop.
    for_each: bool = False
    scale: float | None = None
    growth_interval: int = 0
    steps: int = 0
    skips: int = 0
    skips_in_a_row: int = 0
    #: Cause of skipped steps as text.
    cause: str = ""
    #: Trace of the cause.
    trace: TraceFacts = ()


class Forward(Event):
    """A module runs forward."""

    traits = KindTraits(description="the model runs forward")

    #: The weights may be cached.
    cached: bool = True
    #: The weights were cast while gradients were off.
    poisoned: bool = False


class Loss(Event):
    """A loss function is computed."""

    traits = KindTraits(description="the loss is computed", may_violate=True)

    #: Name of the loss.
    function: str | None = None
    #: Dtype of the computation.
    low_precision: str = ""
    #: Severity if a framework runs the loss under autocast.
    ambient: str | None = None
    #: The forward of a module computes the loss, in a region for ``device`` ("" without one).
    in_forward: bool = False
    device: str = ""

    @property
    def label_outside(self) -> str:
        """Label of the violation if the loss runs outside autocast on an input in low precision."""
        choices = {"bfloat16": "loss@outside-bf16", FLOAT16_BY_CHOICE: "loss@outside-choice"}
        return choices.get(self.low_precision, "loss@outside")


class Penalty(Event):
    """Scaled gradients from autograd.grad are part of a new loss."""

    #: Divided by a scale that update() changed since.
    outdated: bool = False
