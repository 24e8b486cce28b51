"""Small numbers and bounds that low precision cannot represent."""

from __future__ import annotations

import ast

from ....protocol import events as e
from ....protocol import torch_api
from ....protocol.events import UNKNOWN
from ....protocol.source_text import SourceText
from ...interpreter.dtypes import BOUNDED, GUESSED_LOW, DtypeInfo, result_dtype
from ...interpreter.interpreter import Interpreter
from ...project.syntax import tail_name
from ..arguments import literal_value
from ..syntax_queries import constant_of_node, keywords_of, operands_of
from .dtype_info import OpCall, autocast_state, dtype_info_of
from .events import emit_once

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeGuard

#: Limits above which a number rounds to one in float16 and bfloat16: half a unit in the last place below one.
_ONES = (1 - 2.0**-12, 1 - 2.0**-9)

#: Default ``eps`` of ``torch.nn.functional.normalize``.
_NORMALIZE_EPSILON = 1e-12


def _emit_epsilon(
    interp: Interpreter, fact: DtypeInfo, number: float | ast.expr | None, place: ast.AST, *, how: str, divides: bool
) -> e.Epsilon | None:
    """Record a number between zero and one that is added to a tensor, or bounds the tensor. Return the event, or None.

    A default is one possible number.
    """
    if isinstance(number, ast.expr):
        known = _find_constant(interp, number)
        if known is UNKNOWN and interp.assumed_dtype:
            known, fact = _find_default(interp, number), fact.with_traits(GUESSED_LOW)
        number = known if isinstance(known, float) and 0 < known < 1 else None
    if number is None:
        return None
    names = {"sum": SourceText(place)}
    return emit_once(interp, e.Epsilon, place, fact, value=number, how=how, divides=divides, names=names)


def _find_constant(interp: Interpreter, node: ast.expr) -> object:
    if not isinstance(node, (ast.Constant, ast.Name, ast.Attribute)):
        return None
    return literal_value(interp.expression_values.get(node))


def _find_default(interp: Interpreter, node: ast.expr) -> object:
    """Return the default of a parameter, or of the attribute that the constructor sets to a parameter. None if unknown.

    A caller may pass another number. Only a default that float16 rounds to zero is wrong for every tensor.
    """
    frame = interp.state.frame
    function, name = frame.function, tail_name(node)
    if isinstance(node, ast.Attribute):
        given = frame.cls.assignments.get(name, []) if frame.cls is not None and _is_own(node) else []
        if len(given) != 1 or not isinstance(given[0][1], ast.Name):
            return None
        function, name = given[0][0], given[0][1].id
    elif len(interp.active_functions) > 1:
        return None  # The caller has passed a number that is not known.
    if function is None or any(part.id == name for part in function.nodes if _is_assigned(part)):
        return None
    number = constant_of_node(function.defaults().get(name))
    return number if isinstance(number, float) and number <= torch_api.FLOAT16_ZERO else None


def _is_own(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "self"


def _is_assigned(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def check_epsilons(interp: Interpreter, node: ast.expr, *, divides: bool) -> None:
    """Check the numbers added to an operand that may underflow. ``divides`` means that the sum is a divisor."""
    sides = operands_of(node, ast.Add)
    for side, other in zip(sides, reversed(sides), strict=True):
        fact = dtype_info_of(interp, side)
        if fact.may_underflow:
            check_epsilon(interp, fact, other, node, divides=divides)


def check_epsilon(interp: Interpreter, fact: DtypeInfo, node: ast.expr, place: ast.AST, *, divides: bool) -> None:
    event = _emit_epsilon(interp, fact, node, place, how="added", divides=divides)
    if event is not None and divides:
        event.divides = True


def check_clamp(interp: Interpreter, op: OpCall) -> None:
    """Report clamp bounds that the low dtype of a tensor cannot represent."""
    given = keywords_of(op.node)
    for bound in (*op.other_arguments[:2], *(given[name] for name in ("min", "max") if name in given)):
        number = literal_value(interp.expression_values.get(bound))
        if isinstance(number, (int, float)) and torch_api.FLOAT16_MAX < abs(number) < float("inf"):
            tensor = op.tensor_node
            names = {"call": SourceText(op.node), **({} if tensor is None else {"tensor": SourceText(tensor)})}
            if op.first_info.dtype == "float16" and GUESSED_LOW not in op.first_info.traits:
                interp.emit(e.Fill, op.node, value=float(number), eligible=True, bound=True, names=names)
    upper = (
        op.other_arguments[0]
        if op.base_name == "clamp_max" and op.other_arguments
        else given.get("max", op.other_arguments[1] if op.other_arguments[1:] else None)
    )
    number = literal_value(interp.expression_values.get(upper)) if upper is not None else None
    if interp.assumed_dtype and not interp.project.assumed_dtype and BOUNDED not in op.first_info.traits:
        upper = None  # Other values are seldom close to the bound.
    if upper is not None and isinstance(number, float) and _ONES[op.first_info.dtype == "bfloat16"] < number < 1:
        names = {"sum": SourceText(op.node)}
        emit_once(interp, e.Epsilon, op.node, op.first_info, value=number, how="to-one", divides=False, names=names)
    if op.first_info.may_underflow and op.base_name != "clamp_max":
        _check_clamp_minimum(interp, op)


def check_normalization(interp: Interpreter, op: OpCall) -> None:
    """Report the smallest divisor of ``normalize`` if the norm is computed in float16, where the divisor is zero."""
    if not op.first_info.may_underflow or result_dtype(op.name, op.first_info, autocast_state(interp)) == "float32":
        return
    bound = keywords_of(op.node).get("eps", op.other_arguments[2] if len(op.other_arguments) > 2 else None)
    number = _NORMALIZE_EPSILON if bound is None else bound
    _emit_epsilon(interp, op.first_info, number, op.node, how="normalized", divides=True)


def _check_clamp_minimum(interp: Interpreter, op: OpCall) -> None:
    bound = keywords_of(op.node).get("min", op.other_arguments[0] if op.other_arguments else None)
    _emit_epsilon(interp, op.first_info, bound, op.node, how="clamped", divides=False)
