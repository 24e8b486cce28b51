"""Moving averages in tensors that the caller keeps: parameters of functions, and buffers of modules."""

from __future__ import annotations

import ast

from ....protocol import events as e
from ....protocol.source_text import SourceText
from ...interpreter.dtypes import DtypeInfo
from ...interpreter.interpreter import Interpreter
from ...project.syntax import is_same_syntax
from ..syntax_queries import (
    callee_of,
    constant_of_node,
    find_nodes,
    first_argument,
    keywords_of,
    last_name,
    number_of_node,
    operands_of,
    receiver_of,
)
from .dtype_info import dtype_info_of
from .events import emit_once

#: In-place methods that add the new value, each with the keyword of its factor.
_ADDS = {"add_": "alpha", "addcmul_": "value"}
#: From this share on, a new value moves the average even in bfloat16.
_LARGE_SHARE = 0.25


def check_moving_average(interp: Interpreter, node: ast.Call) -> None:
    """Report ``mean.mul_(d).add_(x, alpha=1 - d)`` and ``mean.lerp_(x, w)`` of a tensor in the assumed low dtype."""
    if not interp.assumed_dtype or interp.assumes_region:
        return
    average = _find_average(node)
    while isinstance(average, ast.Attribute) and average.attr == "data":
        average = average.value
    if average is not None and _is_kept_low(interp, average):
        emit_once(
            interp, e.LowSum, node, DtypeInfo(interp.assumed_dtype), average=True, names={"sum": SourceText(average)}
        )


def _find_average(node: ast.Call) -> ast.expr | None:
    """Return the tensor that a call updates as a moving average, or None for another call."""
    name, target = last_name(node.func), receiver_of(node)
    if name == "lerp_" and len(node.args) == 2:
        share = number_of_node(node.args[1])
        return None if isinstance(share, (int, float)) and share >= _LARGE_SHARE else target
    decayed = receiver_of(target)
    if name not in _ADDS or decayed is None or last_name(callee_of(target)) != "mul_":
        return None
    decay = first_argument(target)
    factors = [
        keywords_of(node).get(_ADDS[name]),
        *(side for each in node.args for side in operands_of(each, ast.Mult)),
    ]
    is_weighted = decay is not None and any(part is not None and are_complements(decay, part) for part in factors)
    return decayed if is_weighted else None


def are_complements(a: ast.expr, b: ast.expr) -> bool:
    """Return True if two factors add up to one: ``d`` and ``1 - d``, or two such numbers."""
    one, other = number_of_node(a), number_of_node(b)
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return abs(one + other - 1) < 1e-9
    for rest, part in ((a, b), (b, a)):
        match rest:
            case ast.BinOp(left=left, op=ast.Sub(), right=right) if constant_of_node(left) == 1:
                return is_same_syntax(right, part)
    return False


def _is_kept_low(interp: Interpreter, average: ast.expr) -> bool:
    """Return True for a parameter of a function with the assumed dtype, or a buffer that a cast of the model casts."""
    frame = interp.state.frame
    match average:
        case ast.Name(id=name):
            is_parameter = frame.function is not None and any(each.arg == name for each in frame.function.parameters())
            return is_parameter and dtype_info_of(interp, average).is_low
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            init = None if frame.cls is None else frame.cls.methods.get("__init__")
            registrations = [] if init is None else find_nodes(init.node, ast.Call)
            return any(
                last_name(call.func) == "register_buffer" and constant_of_node(first_argument(call)) == name
                for call in registrations
            )
    return False
