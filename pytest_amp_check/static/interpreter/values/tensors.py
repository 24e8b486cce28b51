"""Tensors that are losses, or parts of losses."""

from __future__ import annotations

import ast

from ....protocol.events import Forward
from ....protocol.fast_namedtuple import NamedTuple
from ..dtypes import NO_DTYPE_INFO
from .value import (
    AUTOCAST_CALLEES,
    EMPTY,
    NO_ORIGIN,
    Aggregate,
    Provenance,
    TypedValue,
    Value,
    join_keys,
    join_provenance,
)


class LossScale(NamedTuple):
    """The scalers that multiplied a tensor.

    scaler_key           key of the scaler that multiplied the tensor, -1 if none
    detached_scaler_key  key of the scaler that multiplied what the tensor is detached from, -1 if none
    has_several_scalers  the tensor is a sum of parts that several scalers scaled
    has_mixed_scales     the tensor is a sum; one part holds a loss scale and another part no scale or another scale
    """

    scaler_key: int = -1
    detached_scaler_key: int = -1
    has_several_scalers: bool = False
    has_mixed_scales: bool = False

    def join(self, other: LossScale) -> LossScale:
        """Return the loss scale of a tensor computed from two tensors."""
        if self is other:
            return self
        keys = self.scaler_key, other.scaler_key
        return LossScale(
            max(keys),
            max(self.detached_scaler_key, other.detached_scaler_key),
            self.has_several_scalers or other.has_several_scalers or (min(keys) >= 0 and keys[0] != keys[1]),
            self.has_mixed_scales or other.has_mixed_scales,
        )


class Forwards(NamedTuple):
    """The forwards that a tensor depends on.

    module_keys        keys of the modules whose forward the tensor depends on, None if not known
    first_event        event of the first of those forwards
    loop_keys          keys of the loops in whose iterations those forwards ran
    has_known_modules  every module that the tensor depends on is in the project and enters no autocast itself
    """

    module_keys: frozenset[int] | None = None
    first_event: Forward | None = None
    loop_keys: frozenset[int] = EMPTY
    has_known_modules: bool = False

    def join(self, other: Forwards) -> Forwards:
        """Return the forwards of a tensor computed from two tensors."""
        if self is other:
            return self
        return Forwards(
            join_keys((self.module_keys, other.module_keys)),
            self.first_event or other.first_event,
            self.loop_keys | other.loop_keys,
            self.has_known_modules and other.has_known_modules,
        )


NO_SCALE = LossScale()
UNKNOWN_FORWARDS = Forwards()
#: Provenance of a tensor from no known forward.
_OUTSIDE = Provenance("out")


class TensorValue(TypedValue):
    """Tensor that is a loss, or part of a loss.

    loss_scale           the scalers that multiplied the tensor
    origin               where the tensor comes from
    forwards             the forwards that the tensor depends on
    provenance           scope of those forwards, "?" if no scope is known; names of the unanalyzed code that computed
                         the tensor; dtypes of the regions, "?" if a region may be disabled or the dtype is not known
    in_region            the last function applied to the tensor ran in an autocast region
    low_dtype            low-precision dtype of the tensor if those regions are enabled, "" if none, "?" if not known
    is_low_op_result     the tensor comes from an op that autocast runs in the low-precision dtype
    penalty_source       location at which gradients of a scaled loss were taken with the scale still in, the source
                         texts of that location, and True if an outdated scale divided the gradients
    is_loss              a loss function returned the tensor
    has_custom_backward  an autograd.Function of the project without custom_bwd on its backward returned the tensor
    has_penalty          gradients that are differentiated again are a part of the tensor
    """

    kind = "tensor"

    __slots__ = (
        "forwards",
        "has_custom_backward",
        "has_penalty",
        "in_region",
        "is_loss",
        "is_low_op_result",
        "loss_scale",
        "low_dtype",
        "origin",
        "penalty_source",
        "provenance",
    )

    def __init__(self, loops: frozenset[int] = EMPTY) -> None:
        super().__init__(loops)
        self.dtype_info = NO_DTYPE_INFO
        self.loss_scale = NO_SCALE
        self.forwards = UNKNOWN_FORWARDS
        self.provenance = _OUTSIDE
        self.in_region = False
        self.low_dtype = ""
        self.is_low_op_result = False
        self.penalty_source: tuple[ast.AST, dict[str, object], bool] | None = None
        self.origin = NO_ORIGIN
        self.is_loss = False
        self.has_custom_backward = False
        self.has_penalty = False

    @property
    def enters_autocast(self) -> bool:
        """True if a module that the tensor depends on enters autocast itself."""
        return not AUTOCAST_CALLEES.isdisjoint(self.provenance.callees)

    @property
    def is_relevant(self) -> bool:  # type: ignore[override]
        return self.loss_scale.scaler_key >= 0

    def truth_condition(self) -> None:
        return None

    def item_at(self, index: Value) -> TensorValue:
        part = self.copy()
        part.normalization = part.normalization._replace(has_unknown_reduction=not self.is_loss)
        return part

    def loop_element(self) -> TensorValue:
        return self.with_dtype_info(self.dtype_info.part_info)

    def copy(self) -> TensorValue:
        made = super().copy()
        # A result computed from the micro-batches of a window is no list of micro-batches.
        made.microbatches = False
        return made

    @staticmethod
    def join(parts: list[TensorValue]) -> TensorValue:
        """Return a tensor computed from several tensors."""
        made = parts[0].copy()
        made.dtype_info = NO_DTYPE_INFO
        made.provenance = join_provenance(parts)
        for part in parts[1:]:
            made.loss_scale = made.loss_scale.join(part.loss_scale)
            made.forwards = made.forwards.join(part.forwards)
            made.loops |= part.loops
            made.normalization = made.normalization.join(part.normalization)
            made.origin = made.origin.join(part.origin)
            made.has_custom_backward = made.has_custom_backward or part.has_custom_backward
            made.is_loss = made.is_loss or part.is_loss
            made.low_dtype = made.low_dtype or part.low_dtype
            made.is_low_op_result = made.is_low_op_result or part.is_low_op_result
            made.penalty_source = made.penalty_source or part.penalty_source
            made.has_penalty = made.has_penalty or part.has_penalty
        return made


def tensors_in(value: Value) -> list[TensorValue]:
    """Return the tensors that a value is or contains."""
    if isinstance(value, TensorValue):
        return [value]
    if isinstance(value, Aggregate):
        return [tensor for part in value.contained_values() for tensor in tensors_in(part)]
    return []


def as_one_of_many(value: Value) -> Value:
    """Return a value as an item of a list of such values: each item may be the loss of one sample of the batch."""
    if not isinstance(value, TensorValue) or not value.normalization.is_sample_mean:
        return value
    made = value.copy()
    made.normalization = made.normalization._replace(is_sample_mean=False)
    return made
