"""Operators on losses, gradients and the loss scale."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ....protocol.events import UNKNOWN
from ....protocol.source_text import access_text
from ...interpreter.expressions.operators import (
    apply_operator,
    is_iteration_data_size,
    is_remade_per_iteration,
    mark_scale_undone,
)
from ...interpreter.identity import record_division, record_multiplication
from ...interpreter.interpreter import Interpreter
from ...interpreter.joins import for_each_alternative
from ...interpreter.source_text import expression_text
from ...interpreter.state import Loop
from ...interpreter.tensors import compute_tensor, low_result
from ...interpreter.unanalyzed_code import has_gradient_input
from ...interpreter.values.containers import UnionValue
from ...interpreter.values.gradients import GradValue, ScaleValue
from ...interpreter.values.tensors import NO_SCALE, TensorValue, tensors_in
from ...interpreter.values.value import Const, UnknownValue, Value
from ...project.syntax import walk
from ..arguments import literal_value, tracked_object_of
from .backward import emit_penalty

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeGuard


def apply_loss_operator(interp: Interpreter, op: str, left: Value, right: Value, node: ast.AST) -> Value | None:
    """Apply an operator to a loss, to gradients or to the loss scale. Return None if no operand is one of these."""
    if _is_loss_union(left):
        return for_each_alternative(interp, left, lambda value: apply_operator(interp, op, value, right, node))
    if _is_loss_union(right):
        return for_each_alternative(interp, right, lambda value: apply_operator(interp, op, left, value, node))
    scaled = _operate_on_scale(interp, op, left, right, node)
    if scaled is not None:
        return scaled
    for side, other in ((left, right), (right, left)):
        if isinstance(side, GradValue):
            return _operate_on_grad(op, side, other)
    parts = [*tensors_in(left), *tensors_in(right)]
    if parts:
        return _operate_on_tensors(interp, op, left, right, parts, node)
    return low_result(interp, "matmul", [left, right]) if op == "@" else None


def _operate_on_grad(op: str, grad: GradValue, other: Value) -> GradValue:
    """Apply an operator to gradients. Scaling by a number read from scaled gradients is a clip."""
    scaled = tuple(reading for reading in other.gradient_reads if not reading.undone)
    return (
        GradValue(grad.params, is_unscaled=grad.is_unscaled, factor_reads=scaled)
        if op in ("*", "/") and scaled
        else grad
    )


def _is_loss_union(value: Value) -> TypeGuard[UnionValue]:
    """Return True if a value is a union with a loss or the loss scale among the options."""
    return isinstance(value, UnionValue) and any(option.kind in ("tensor", "scale") for option in value.alternatives())


def _operate_on_scale(interp: Interpreter, op: str, left: Value, right: Value, node: ast.AST) -> Value | None:
    """Apply an operator to the loss scale, which scales or unscales gradients and losses.

    Return None if no operand is the scale.
    """
    scale, value = (left, right) if isinstance(left, ScaleValue) else (right, left)
    if not isinstance(scale, ScaleValue):
        return None
    divides = op == "/" and scale is right
    if divides and value.kind == "constant":
        return ScaleValue(
            scale.scaler_key, scale.loops, is_inverse=not scale.is_inverse, may_be_outdated=scale.may_be_outdated
        )
    undone = (op == "*" and scale.is_inverse) or (divides and not scale.is_inverse)
    if isinstance(value, GradValue):
        return GradValue(value.params, is_unscaled=undone)
    tensors = tensors_in(value)
    if tensors:
        made = TensorValue.join(tensors)
        if undone and made.penalty_source is not None and _is_scale_outdated(interp, scale):
            made.penalty_source = (node, {**made.penalty_source[1], "call": expression_text(node)}, True)
            emit_penalty(interp, made, node)
        return _set_scaler(made, scale.scaler_key if op == "*" else None, undone=undone)
    if value.gradient_reads:
        # A norm divided by the scale, or the scale divided by a norm, is a number of unscaled gradients.
        mark_scale_undone(value.gradient_reads)
        return interp.fresh_unknown(node)
    return ScaleValue(scale.scaler_key, scale.loops, is_inverse=scale.is_inverse, may_be_outdated=scale.may_be_outdated)


def _is_scale_outdated(interp: Interpreter, scale: ScaleValue) -> bool:
    """Return True if a scale was read before a loop in which update() changes the scale."""
    return not scale.may_be_outdated and any(
        loop.key not in scale.loops and _updates_scaler(loop) for loop in interp.state.loops
    )


def _updates_scaler(loop: Loop) -> bool:
    """Return True if a loop calls ``update`` on a scaler."""
    if loop.node is None or loop.frame is None:
        return False
    uses = loop.frame.module.role_by_text
    calls = (inner.func for inner in walk(loop.node) if isinstance(inner, ast.Call))
    updated = [func.value for func in calls if isinstance(func, ast.Attribute) and func.attr == "update"]
    return any(uses.get(access_text(scaler)) == "scaler" for scaler in updated)


def _set_scaler(made: TensorValue, scaler: int | None, *, undone: bool) -> TensorValue:
    """Mark a loss as scaled by a scaler, or as unscaled with ``undone``."""
    if undone:
        made.penalty_source = None
        made.loss_scale = NO_SCALE._replace(has_several_scalers=made.loss_scale.has_several_scalers)
    elif scaler is not None:
        made.loss_scale = made.loss_scale._replace(scaler_key=scaler)
    return made


def _operate_on_tensors(
    interp: Interpreter, op: str, left: Value, right: Value, parts: list[TensorValue], node: ast.AST
) -> TensorValue:
    made = compute_tensor(interp, parts)
    made.origin = made.origin._replace(
        is_from_gradient=made.origin.is_from_gradient or has_gradient_input((left, right))
    )
    made.normalization = made.normalization._replace(
        is_sample_mean=op in ("+", "-", "*", "/") and _are_sample_means((left, right))
    )
    if op == "@":
        # The operands of a product have one dtype, which a region alone changes.
        is_wide = not made.in_region and "float32" in (left.dtype_info.dtype, right.dtype_info.dtype)
        made.is_low_op_result = not is_wide
        made.low_dtype = "" if is_wide else made.low_dtype
    elif _is_float32_parameter(left) or _is_float32_parameter(right):
        made.low_dtype, made.is_low_op_result = "", False
    if op == "/" and isinstance(left, TensorValue):
        _apply_division(interp, made, left, right, node)
    elif op == "*" and not left.kind == right.kind == "tensor":
        _apply_multiplication(interp, made, parts, right if left.kind == "tensor" else left)
    elif op == "**":
        made.normalization = made.normalization._replace(is_divided=False, is_only_summed=False)
    elif op in ("+", "-"):
        terms = [*parts, *(value for value in (left, right) if isinstance(value, UnknownValue))]
        made.loss_scale = made.loss_scale._replace(
            has_mixed_scales=made.loss_scale.has_mixed_scales or is_unevenly_scaled(parts)
        )
        made.normalization = made.normalization._replace(
            divisors=frozenset.intersection(*(p.normalization.divisors for p in parts)),
            factors=frozenset.intersection(*(term.normalization.factors for term in terms)),
        )
        # Every term has a separate weight, so the sum itself is not divided into shares.
        has_weighted_terms = len(terms) > 1 and made.normalization.is_only_share and not made.normalization.factors
        made.normalization = made.normalization._replace(
            is_divided=all(p.normalization.is_divided for p in parts) and not has_weighted_terms
        )
    return made


def _are_sample_means(operands: Iterable[Value]) -> bool:
    """Return True if all operands except numbers are means over the samples of a batch."""
    return all(
        isinstance(value, Const) or (isinstance(value, TensorValue) and value.normalization.is_sample_mean)
        for value in operands
    )


def _is_float32_parameter(value: Value) -> bool:
    """Return True if a value is a parameter that promotes every low-precision operand to float32."""
    tracked_object = tracked_object_of(value)
    return tracked_object is not None and bool(tracked_object.attributes.shape.has_dimensions)


def _apply_division(interp: Interpreter, made: TensorValue, tensor: TensorValue, divisor: Value, node: ast.AST) -> None:
    mean = is_iteration_data_size(interp, divisor)
    made.normalization = made.normalization._replace(
        is_divided=(tensor.normalization.is_divided and not tensor.normalization.is_only_summed) or not mean,
        is_only_share=made.normalization.is_only_share and mean,
        has_unknown_reduction=made.normalization.has_unknown_reduction
        and not (mean and tensor.normalization.is_only_summed),
        is_only_summed=False,
    )
    if isinstance(divisor, TensorValue):
        made.penalty_source = None if tensor.penalty_source and divisor.penalty_source else made.penalty_source
    elif not mean:
        record_division(interp, made, tensor, divisor, node)


def _apply_multiplication(interp: Interpreter, made: TensorValue, parts: list[TensorValue], factor: Value) -> None:
    if len(parts) == 1:
        record_multiplication(interp, made, parts[0], factor)
    # An unknown weight may be 1 / k. An amount of data, a weight that may be 1, and the weights of the terms inside a
    # criterion are not.
    number = literal_value(factor)
    share = _is_unit_fraction(number)
    if number is UNKNOWN:
        share = not (factor.normalization.is_data_size or factor.normalization.may_be_one or interp.state.forward_depth)
    summed = [side.normalization.is_only_summed for side in (made, factor) if side.normalization.is_divided]
    made.normalization = made.normalization._replace(
        is_only_share=share and not summed,
        is_only_weighted=share and not summed and is_remade_per_iteration(interp, factor),
        is_divided=bool(summed) or share,
        is_only_summed=bool(summed) and all(summed) and not share,
    )


def is_unevenly_scaled(parts: Iterable[TensorValue]) -> bool:
    """Return True if some terms of a sum carry the scale of a scaler, and others another scale or definitely none.

    An unknown term may be scaled. A term without gradient needs no scale, and terms of different modules may have
    different scales.
    """
    read = [part for part in parts if not (part.origin.is_from_outside or part.origin.is_from_gradient)]
    known = [
        part
        for part in parts
        if part.loss_scale.scaler_key >= 0 or (part in read and (part.is_loss or part.forwards.module_keys))
    ]
    trained = [part for part in known if part.forwards.module_keys != frozenset()]
    return any(_have_different_scales(part, other) for number, part in enumerate(trained) for other in trained[:number])


def _have_different_scales(one: TensorValue, other: TensorValue) -> bool:
    """Return True if two terms that are trained together carry different scales."""
    scalers = one.loss_scale.scaler_key, other.loss_scale.scaler_key
    if scalers[0] == scalers[1]:
        return False
    if one.forwards.module_keys is None or other.forwards.module_keys is None:
        # The modules are unknown, so two different scalers may be correct.
        return min(scalers) < 0
    return bool(one.forwards.module_keys & other.forwards.module_keys)


def _is_unit_fraction(factor: object) -> bool:
    """Return True if a number is 1 / k for an integer k >= 2, like the weight of one of several equal parts."""
    if not isinstance(factor, float) or not 0 < factor <= 0.5:
        return False
    return abs(1 / factor - round(1 / factor)) < 1e-6
