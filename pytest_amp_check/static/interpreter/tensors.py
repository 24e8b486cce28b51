"""Tensors: the regions of a computation, and provenance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...protocol.torch_api import BFLOAT16_OR_FLOAT32, DTYPES, FLOAT16_BY_CHOICE, FLOAT16_OR_FLOAT32, WIDE
from .dtypes import is_low, is_wide
from .interpreter import Interpreter
from .state import OpenRegion
from .values.definitions import ExternalName
from .values.tensors import TensorValue, tensors_in
from .values.value import (
    EMPTY,
    NO_NORMALIZATION,
    NO_PROVENANCE,
    Normalization,
    Origin,
    Provenance,
    UnknownValue,
    Value,
    join_autocast_scopes,
)


def in_region(interp: Interpreter) -> bool:
    """Return True if an autocast region may be enabled at the current node."""
    return any(region.enabled is not False for region in interp.state.open_regions)


def mark_region(interp: Interpreter, made: TensorValue) -> None:
    """Record the regions in which a tensor was computed."""
    scope, dtypes = _current_region(interp)
    if scope != "out":
        earlier = made.provenance
        made.provenance = Provenance(scope, earlier.callees, earlier.region_dtypes | dtypes)
    if scope == "in":
        # A float32 region suspends the casts of the outer region.
        region = interp.state.open_regions[-1]
        dtype = FLOAT16_BY_CHOICE if region.may_choose_float16 else region.dtype
        made.low_dtype = "" if dtype in WIDE else dtype or "?"


def _current_region(interp: Interpreter) -> tuple[str, frozenset[str]]:
    """Return the autocast scope of the current node ("in", "out" or "unknown") and the dtype of the region."""
    region = interp.state.open_regions[-1] if interp.state.open_regions else None
    if region is not None and region.enabled is not False:
        return "in", frozenset((_dtype_in(region),))
    return ("unknown", frozenset("?")) if interp.state.possible_regions else ("out", EMPTY)


def _dtype_in(region: OpenRegion) -> str:
    """Return the result dtype in a region, "?" if unknown. A region that may be disabled has a dtype of its own."""
    if region.may_choose_float16:
        return FLOAT16_BY_CHOICE
    if region.enabled is True:
        return region.dtype or "?"
    return {"bfloat16": BFLOAT16_OR_FLOAT32, "float16": FLOAT16_OR_FLOAT32}.get(region.dtype, "?")


def compute_tensor(interp: Interpreter, parts: list[TensorValue]) -> TensorValue:
    made = TensorValue.join(parts)
    made.normalization = made.normalization._replace(divisors=frozenset(), factors=frozenset(), is_sample_mean=False)
    made.loops |= interp.current_loops()
    made.in_region = in_region(interp)
    return made


def low_result(interp: Interpreter, op: str, operands: list[Value]) -> TensorValue:
    """Return the result of an op that autocast runs in low precision on at least some devices."""
    tensors = [tensor for value in operands for tensor in tensors_in(value)]
    made = compute_tensor(interp, tensors) if tensors else unknown_tensor(None)
    made.is_low_op_result = is_low(op, region_device(interp))
    if made.is_low_op_result and in_region(interp):
        mark_region(interp, made)
    return made


def mark_widened(interp: Interpreter, made: TensorValue, op: str, arguments: Iterable[Value]) -> None:
    """Clear the low-precision marks of a result if autocast computes the op in float32."""
    if is_wide(op, region_device(interp)) and not any(
        isinstance(v, ExternalName) and v.name in DTYPES for v in arguments
    ):
        made.is_low_op_result = False
        if made.in_region:
            made.low_dtype = ""


def mark_float32_result(made: TensorValue, arguments: Sequence[Value]) -> None:
    """Clear the low-precision marks of what unanalyzed code computes from a float32 tensor.

    The first argument decides: a sum of float32 counts by indexes of a low-precision model is float32.
    """
    if arguments and arguments[0].dtype_info.dtype in WIDE:
        made.low_dtype, made.is_low_op_result = "", False


def region_device(interp: Interpreter) -> str:
    """Return the device type of the innermost region, or "" if there is no region or the device is not known."""
    return interp.state.open_regions[-1].device if interp.state.open_regions else ""


def unknown_tensor(value: Value | None) -> TensorValue:
    """Return a loss of which only the name is known."""
    made = TensorValue(value.loops if value is not None else frozenset())
    known = NO_NORMALIZATION if value is None else value.normalization
    made.normalization = Normalization(
        is_divided=known.is_divided,
        has_unknown_reduction=value is None or not value.origin.is_comparison_result,
    )
    if isinstance(value, UnknownValue):
        made.origin = Origin(
            is_from_outside=value.origin.is_from_outside,
            # A loss with such a name may be scaled at its origin.
            is_from_gradient=value.origin.is_from_gradient or (value.origin.is_from_outside and "scale" in value.text),
        )
        made.normalization = made.normalization._replace(
            divisors=known.divisors, factors=known.factors, is_only_summed=known.is_only_summed
        )
    provenance = value.provenance if value is not None else NO_PROVENANCE
    made.provenance = provenance._replace(autocast_scope=provenance.autocast_scope or "?")
    return made


def provenance_here(interp: Interpreter, earlier: Provenance, *callees: str) -> Provenance:
    """Return the provenance of a possible model call at the current node, joined with earlier provenance."""
    scope, dtypes = _current_region(interp)
    return Provenance(
        join_autocast_scopes({scope, earlier.autocast_scope}),
        earlier.callees.union(callees),
        earlier.region_dtypes | dtypes,
    )
