"""Tensors that are losses, or parts of losses."""

from __future__ import annotations

import ast

from ....protocol.events import Forward
from ..dtypes import NO_DTYPE_INFO
from .value import (
    AUTOCAST_CALLEES,
    EMPTY,
    NO_ORIGIN,
    Aggregate,
    Provenance,
    TypedValue,
    Value,
    join_autocast_scopes,
    join_keys,
)


class TensorValue(TypedValue):
    """Tensor that is a loss, or part of a loss.

    scaler_key           key of the scaler that multiplied the tensor, -1 if none
    detached_scaler_key  key of the scaler that multiplied what the tensor is detached from, -1 if none
    origin               where the tensor comes from
    module_keys          keys of the modules whose forward the tensor depends on, None if not known
    autocast_scope       "in", "out" or "unknown": scope of those forwards; "?" if no scope is known
    callees              names of the unanalyzed code that computed the tensor
    in_region            the last function applied to the tensor ran in an autocast region
    region_dtypes        dtypes of those regions; "?" if a region may be disabled or the dtype is not known
    first_forward        event of the first of those forwards
    low_dtype            low-precision dtype of the tensor if those regions are enabled, "" if none, "?" if not known
    is_low_op_result     the tensor comes from an op that autocast runs in the low-precision dtype
    penalty_source       location at which gradients of a scaled loss were taken with the scale still in, the source
                         texts of that location, and True if an outdated scale divided the gradients
    is_loss              a loss function returned the tensor
    has_custom_backward  an autograd.Function of the project without custom_bwd on its backward returned the tensor
    has_penalty          gradients that are differentiated again are a part of the tensor
    has_known_modules    every module that the tensor depends on is in the project and enters no autocast itself
    forward_loops        keys of the loops in whose iterations those forwards ran
    has_several_scalers  the tensor is a sum of parts that several scalers scaled
    has_mixed_scales     the tensor is a sum; one part holds a loss scale and another part no scale or another scale
    """

    kind = "tensor"

    __slots__ = (
        "autocast_scope",
        "callees",
        "detached_scaler_key",
        "first_forward",
        "forward_loops",
        "has_custom_backward",
        "has_known_modules",
        "has_mixed_scales",
        "has_penalty",
        "has_several_scalers",
        "in_region",
        "is_loss",
        "is_low_op_result",
        "low_dtype",
        "module_keys",
        "origin",
        "penalty_source",
        "region_dtypes",
        "scaler_key",
    )

    def __init__(self, loops: frozenset[int] = EMPTY) -> None:
        super().__init__(loops)
        self.dtype_info = NO_DTYPE_INFO
        self.scaler_key = self.detached_scaler_key = -1
        self.has_several_scalers = False
        self.module_keys: frozenset[int] | None = None
        self.autocast_scope = "out"
        self.callees: frozenset[str] = EMPTY
        self.in_region = False
        self.region_dtypes: frozenset[str] = EMPTY
        self.first_forward: Forward | None = None
        self.low_dtype = ""
        self.is_low_op_result = False
        self.penalty_source: tuple[ast.AST, dict[str, object], bool] | None = None
        self.origin = NO_ORIGIN
        self.is_loss = False
        self.has_custom_backward = False
        self.has_known_modules = False
        self.has_mixed_scales = False
        self.has_penalty = False
        self.forward_loops: frozenset[int] = frozenset()

    @property
    def provenance(self) -> Provenance:  # type: ignore[override]
        return Provenance(self.autocast_scope, self.callees, self.region_dtypes)

    @property
    def enters_autocast(self) -> bool:
        """True if a module that the tensor depends on enters autocast itself."""
        return not AUTOCAST_CALLEES.isdisjoint(self.callees)

    @property
    def is_relevant(self) -> bool:  # type: ignore[override]
        return self.scaler_key >= 0

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
        made.scaler_key = max(part.scaler_key for part in parts)
        made.detached_scaler_key = max(part.detached_scaler_key for part in parts)
        made.has_several_scalers = len({part.scaler_key for part in parts if part.scaler_key >= 0}) > 1 or any(
            p.has_several_scalers for p in parts
        )
        made.module_keys = join_keys(part.module_keys for part in parts)
        made.autocast_scope = join_autocast_scopes({part.autocast_scope for part in parts})
        for part in parts[1:]:
            made.normalization = made.normalization.join(part.normalization)
            made.origin = made.origin.join(part.origin)
            made.has_known_modules = made.has_known_modules and part.has_known_modules
            for name in (
                "has_custom_backward",
                "first_forward",
                "is_loss",
                "low_dtype",
                "is_low_op_result",
                "penalty_source",
                "has_mixed_scales",
                "has_penalty",
            ):
                setattr(made, name, getattr(made, name) or getattr(part, name))
            for name in ("callees", "region_dtypes", "loops", "forward_loops"):
                setattr(made, name, getattr(made, name) | getattr(part, name))
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
