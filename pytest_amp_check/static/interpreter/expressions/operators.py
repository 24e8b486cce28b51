"""Operators on two values, and what operators preserve."""

from __future__ import annotations

import ast

from ....protocol import events as e
from ..conditions import conjunction, disjunction, negate
from ..counters import compute_constant
from ..identity import (
    Operation,
    find_divisor_node,
    number_key,
    record_division,
    record_multiplication,
    structural_unknown,
)
from ..interpreter import Interpreter, first_result
from ..source_text import short_text, short_text_or
from ..values.containers import MappingValue, SequenceValue, merge_into
from ..values.gradients import GradValue, ParamsValue, join_params
from ..values.tensors import TensorValue
from ..values.value import NO_CONSTANT, NO_NORMALIZATION, ConditionValue, Const, UnknownValue, Value, are_data_sizes
from .conditional import condition_formula

OPERATOR_SYMBOLS: dict[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.MatMult: "@",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
}


def evaluate_unary(interp: Interpreter, node: ast.UnaryOp) -> Value:
    if isinstance(node.op, ast.Not):
        return ConditionValue(negate(condition_formula(interp, node.operand)), interp.current_loops())
    value = interp.evaluate(node.operand)
    if isinstance(node.op, ast.USub) and isinstance(value.value, (int, float)):
        return Const(-value.value)
    if isinstance(value, (TensorValue, GradValue)):
        return value
    made = structural_unknown(interp, Operation.UNARY, (value,), short_text(node), type(node.op).__name__)
    made.set_divided(is_divided=value.normalization.is_divided)
    made.origin = made.origin._replace(is_comparison_result=value.origin.is_comparison_result)
    return made


def evaluate_binary(interp: Interpreter, node: ast.BinOp) -> Value:
    left, right = interp.evaluate(node.left), interp.evaluate(node.right)
    op = OPERATOR_SYMBOLS[type(node.op)]
    if op == "/" and isinstance(left, GradValue) and right.gradient_reads:
        # A gradient divided by its norm: the scale cancels.
        made = apply_operator(interp, op, left, right, node)
        mark_scale_undone(right.gradient_reads)
        return made
    if op in ("/", "//") and (_is_loss_number(left) or _is_loss_number(right)):
        # The number of a scaled loss divided by the number of the loss is the loss scale.
        reads = (*left.gradient_reads, *right.gradient_reads)
        mark_scale_undone(tuple(reading for reading in reads if isinstance(reading, e.LossRead)))
    for side, child, other in ((left, node.left, right), (right, node.right, left)):
        # The product or quotient of gradients and a number is still a gradient.
        if op not in ("*", "/") or not isinstance(side, GradValue) or isinstance(other, GradValue):
            notify_use(interp, side, child)
    return apply_operator(interp, op, left, right, node)


def _is_loss_number(value: Value) -> bool:
    return isinstance(value, UnknownValue) and value.is_loss_number


def notify_use(interp: Interpreter, value: Value, node: ast.AST) -> None:
    """Notify the operand handler that code computes with a value or prints a value."""
    handler = interp.handlers.operands.get(value.kind)
    if handler is not None:
        handler(interp, value, node)


def apply_operator(interp: Interpreter, op: str, left: Value, right: Value, node: ast.AST) -> Value:
    if NO_CONSTANT not in (left.value, right.value):
        known = compute_constant(op, left.value, right.value) or interp.fresh_unknown(node)
        known.set_divided(is_divided=op == "/")
        return known
    combine = {"&": conjunction, "|": disjunction}.get(op)
    if combine is not None and isinstance(left, ConditionValue) and isinstance(right, ConditionValue):
        return ConditionValue(combine(left.formula, right.formula), left.loops | right.loops)
    special = first_result(interp.handlers.operators, interp, op, left, right, node)
    if special is not None:
        return special
    params = [side for side in (left, right) if isinstance(side, ParamsValue)]
    if params:
        return join_params(params) if len(params) == 2 else params[0]
    return _combine_containers(op, left, right) or _unknown_operation(interp, op, left, right, node)


def _combine_containers(op: str, left: Value, right: Value) -> Value | None:
    """Return the result of an operator on two containers, or None."""
    if isinstance(left, SequenceValue) and isinstance(right, SequenceValue) and op == "+":
        return SequenceValue([*left.items, *right.items], is_open=left.is_open or right.is_open)
    if op == "|" and (isinstance(left, MappingValue) or isinstance(right, MappingValue)):
        merged = MappingValue({})
        for side in (left, right):
            merge_into(merged, side)
        return merged
    return None


def _unknown_operation(interp: Interpreter, op: str, left: Value, right: Value, node: ast.AST) -> UnknownValue:
    """Return the result of an operator on two values of which at least one is not known."""
    made = structural_unknown(interp, Operation.BINARY, (left, right), short_text_or(node, op), op)
    if op in ("+", "%") and isinstance(left.value, str):
        made.text_prefix = left.value.partition("%")[0] if op == "%" else left.value
    _propagate_counter(op, left, right, made)
    if op in ("+", "-") and isinstance(left, UnknownValue) and isinstance(right.value, int):
        made.owner_key = left.owner_key
    if op == "%":
        made.count = made.count._replace(remainder_operands=(left, right))
    is_divided = made.normalization.is_divided or _may_average(interp, op, left, right)
    divided = (side.normalization for side in (left, right) if side.normalization.is_divided)
    is_only_summed = is_divided and op != "/" and all(side.is_only_summed for side in divided)
    is_data_size = op in ("+", "*") and are_data_sizes((left, right))
    if is_divided or is_data_size or made.normalization is not NO_NORMALIZATION:
        made.normalization = made.normalization._replace(
            is_divided=is_divided,
            is_only_summed=is_only_summed,
            is_only_by_number=is_divided and _is_only_by_number(op, left, right, node),
            is_data_size=is_data_size,
        )
    if op in ("+", "-", "*", "/"):
        is_comparison_result = (
            left.origin.is_comparison_result
            or right.origin.is_comparison_result
            or (op == "/" and left.normalization.is_only_summed and not is_divided)
        )
        if made.origin.is_comparison_result is not is_comparison_result:
            made.origin = made.origin._replace(is_comparison_result=is_comparison_result)
    if isinstance(left, UnknownValue):
        if op == "/" and not made.normalization.divisors and not is_iteration_data_size(interp, right):
            record_division(interp, made, left, right, node)
        elif op == "*":
            record_multiplication(interp, made, left, right)
            if isinstance(right, UnknownValue):
                # Either may be the weight of the other.
                factors = made.normalization.factors | {number_key(interp, left)}
                made.normalization = made.normalization._replace(factors=factors)
    return made


def _is_only_by_number(op: str, left: Value, right: Value, node: ast.AST) -> bool:
    """Return True if a result is divided only by numbers that the code writes out."""
    is_written = op != "/" or isinstance(find_divisor_node(node), ast.Constant)
    divided = [side.normalization for side in (left, right) if side.normalization.is_divided]
    return is_written and all(side.is_only_by_number for side in divided)


#: Operators whose result grows with a counter.
_GROWING = frozenset(("+", "-", "*", "/", "//"))


def _propagate_counter(op: str, left: Value, right: Value, made: UnknownValue) -> None:
    """Mark the sum of a counter and a constant as a counter with an offset."""
    counted, other = (left, right) if left.count.is_counter else (right, left)
    if not counted.count.is_counter:
        return
    # A fraction of the epochs, such as ``epoch + i / n``, grows with the index and is never reset: it counts no window.
    grows = counted.count.is_loop_index and (other.count.is_loop_index or not other.count.is_counter)
    made.count = made.count._replace(is_counter=True, is_loop_index=grows and op in _GROWING)
    if op in ("+", "-") and isinstance(other.value, int):
        made.count = made.count._replace(
            base=counted.offset_base,
            offset=counted.count.offset + (other.value if op == "+" else -other.value),
            first_value=counted.count.first_value,
            possible_start=counted.count.possible_start,
            added_to_start=counted.count.added_to_start,
            is_loop_index=counted.count.is_loop_index,
            is_iteration_count=counted.count.is_iteration_count and left is counted,
        )


def mark_scale_undone(gradient_reads: tuple[e.GradientAccess, ...]) -> None:
    """Mark reads of scaled gradients as correct: the scale, or a number with the same scale, divides the result."""
    for event in gradient_reads:
        event.undone = True


def is_remade_per_iteration(interp: Interpreter, value: Value) -> bool:
    """Return True if each iteration of the innermost loop recreates a value."""
    return bool(interp.state.loops) and interp.state.loops[-1].key in (value.loops or value.varying_loops())


def is_iteration_data_size(interp: Interpreter, divisor: Value) -> bool:
    """Return True if a value is the amount of this iteration's data. A quotient by such a value is a mean."""
    return divisor.normalization.is_data_size and is_remade_per_iteration(interp, divisor)


def _may_average(interp: Interpreter, op: str, left: Value, right: Value) -> bool:
    """Return True if a number may have been divided by a number of micro-batches."""
    if op == "/":
        return (left.normalization.is_divided and not left.normalization.is_only_summed) or not is_iteration_data_size(
            interp, right
        )
    if op == "*":
        return left.normalization.is_divided or right.normalization.is_divided
    sides = [side for side in (left, right) if side.value is NO_CONSTANT]
    return op in ("+", "-") and all(side.normalization.is_divided for side in sides)
