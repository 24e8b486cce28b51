"""Moving averages in tensors that the caller keeps: parameters of functions, and buffers of modules."""

from __future__ import annotations

import ast

from ....protocol import events as e
from ....protocol.source_text import SourceText, find_access_path
from ...interpreter.dtypes import DtypeInfo
from ...interpreter.interpreter import Interpreter
from ...interpreter.values.value import Value
from ...project.module import Class
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
#: Methods by which a module decides the dtype of its buffers, and names of wide dtypes and of casts to them.
_CASTING_METHODS = frozenset({"_apply", "to", "half", "bfloat16"})
_WIDE = frozenset({"float", "double", "float32", "float64"})
#: From this share on, a new value moves the average even in bfloat16.
_LARGE_SHARE = 0.25


def check_moving_average(interp: Interpreter, node: ast.Call) -> None:
    """Report ``mean.mul_(d).add_(x, alpha=1 - d)`` and ``mean.lerp_(x, w)`` of a tensor in the assumed low dtype.

    A buffer may also grow in small steps: ``bias.add_(x, alpha=rate)``.
    """
    if interp.assumed_dtype and not interp.assumes_region:
        average = find_average(node)
        _check_average(interp, average if average is not None else _find_small_steps(node), node)


def check_assigned_average(interp: Interpreter, node: ast.Assign, value: Value) -> None:
    """Report ``self.mean = d * self.mean + (1 - d) * x`` for a buffer that a cast of the model casts."""
    if not interp.assumed_dtype or interp.assumes_region or len(node.targets) != 1:
        return
    if value.dtype_info.dtype in ("float32", "float64"):
        # A float32 term makes the new value float32, and the attribute with it.
        return
    target = node.targets[0]
    if isinstance(target, ast.Attribute) and is_share_added(node.value, target):
        _check_average(interp, target, node)


def is_share_added(node: ast.expr, target: ast.expr) -> bool:
    """Return True for the new value of an average: a sum with a share of the old value, or an interpolation from it."""
    path = find_access_path(without_data(target))
    if path is None:
        return False
    if isinstance(node, ast.Call):
        start = first_argument(node) if last_name(node.func) == "lerp" else None
        return start is not None and find_access_path(without_data(start)) == path
    sides = [side for term in operands_of(node, ast.Add) for side in operands_of(term, ast.Mult)]
    return any(find_access_path(without_data(side)) == path for side in sides)


def without_data(node: ast.expr) -> ast.expr:
    """Return the parameter or buffer of ``x.data``, or the expression itself."""
    while isinstance(node, ast.Attribute) and node.attr == "data":
        node = node.value
    return node


def _check_average(interp: Interpreter, average: ast.expr | None, node: ast.AST) -> None:
    average = None if average is None else without_data(average)
    is_buffer = isinstance(average, ast.Attribute)
    if average is not None and (_is_cast_buffer(interp, average) if is_buffer else _is_kept_low(interp, average)):
        dtype = DtypeInfo(interp.assumed_dtype)
        names = {"sum": SourceText(average)}
        emit_once(interp, e.LowSum, node, dtype, average=True, buffer=is_buffer, names=names)


def _find_small_steps(node: ast.Call) -> ast.expr | None:
    """Return the buffer to which a call adds a share, or None for another call."""
    share = keywords_of(node).get("alpha")
    target = receiver_of(node)
    if last_name(node.func) != "add_" or share is None or not isinstance(target, ast.Attribute):
        return None
    number = number_of_node(share)
    return None if isinstance(number, (int, float)) and abs(number) >= _LARGE_SHARE else target


def find_average(node: ast.Call) -> ast.expr | None:
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
    """Return True for a parameter of a function with the assumed dtype."""
    function = interp.state.frame.function
    if function is None or not isinstance(average, ast.Name):
        return False
    return average.id in {each.arg for each in function.parameters()} and dtype_info_of(interp, average).is_low


def _is_cast_buffer(interp: Interpreter, buffer: ast.expr) -> bool:
    """Return True for a buffer of the current module that a cast of the model casts, unless the class casts it back."""
    cls = interp.state.frame.cls
    init = None if cls is None else cls.methods.get("__init__")
    match buffer:
        case ast.Attribute(value=ast.Name(id="self"), attr=name) if cls is not None and init is not None:
            registered = (call for call in init.find_nodes(ast.Call) if last_name(call.func) == "register_buffer")
            is_buffer = any(constant_of_node(first_argument(call)) == name for call in registered)
            return is_buffer and not _keeps_wide(cls, name)
    return False


def _keeps_wide(cls: Class, name: str) -> bool:
    """Return True if a class decides the dtype of its buffers itself, or casts the buffer to float32."""
    if not _CASTING_METHODS.isdisjoint(cls.methods):
        return True
    for method in cls.methods.values():
        for node in method.find_nodes(ast.Assign) if method.name != "__init__" else ():
            paths = [find_access_path(target) for target in node.targets]
            if f"self.{name}" in paths or f"self.{name}.data" in paths:
                wide = {last_name(part) for part in find_nodes(node.value, ast.Attribute)}
                if not wide.isdisjoint(_WIDE):
                    return True
    return False
