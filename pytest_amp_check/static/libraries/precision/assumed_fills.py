"""Numbers written into tensors that are assumed to be float16."""

from __future__ import annotations

import ast

from ....protocol import events as e
from ....protocol.source_text import SourceText
from ....protocol.torch_api import FLOAT16_MAX
from ...interpreter.dtypes import BEYOND_FLOAT16, GUESSED_LOW, NO_DTYPE_INFO, DtypeInfo
from ...interpreter.interpreter import Interpreter
from ...interpreter.values.value import Value
from ...project.syntax import walk
from ..arguments import literal_value
from ..fills import FILLS
from ..syntax_queries import first_argument, keywords_of
from .dtype_info import dtype_info_of, resolve_callee

_FLOAT16 = "float16"


def check_fill(interp: Interpreter, node: ast.Call) -> None:
    """Report ``scores.masked_fill(mask, -1e9)`` for a tensor whose dtype is an assumption.

    Tensors that the analysis follows by themselves are reported with their own dtype.
    """
    if interp.assumed_dtype not in ("", _FLOAT16):
        return
    if not isinstance(node.func, ast.Attribute) or node.func.attr not in FILLS:
        return
    keywords = keywords_of(node)
    is_function = resolve_callee(interp, node.func) == f"torch.{node.func.attr}"
    tensor = keywords.get("input", first_argument(node)) if is_function else node.func.value
    number = keywords.get("value", node.args[-1] if node.args else None)
    if tensor is not None and number is not None:
        _emit_fill(interp, tensor, interp.expression_values.get(number), node)


def mark_fill(interp: Interpreter, node: ast.Call, result: DtypeInfo | None) -> DtypeInfo | None:
    """Return the dtype info of a call, marked if it fills a tensor that is not low with a number beyond float16."""
    if interp.assumed_dtype != _FLOAT16 or not isinstance(node.func, ast.Attribute) or node.func.attr not in FILLS:
        return result
    number = keywords_of(node).get("value", node.args[-1] if node.args else None)
    return _mark(interp, number, node, result or NO_DTYPE_INFO)


def mark_product(interp: Interpreter, node: ast.BinOp, result: DtypeInfo) -> DtypeInfo:
    """Return the dtype info of a product, marked if the product is a mask with a number below those of float16."""
    if interp.assumed_dtype == _FLOAT16 and isinstance(node.op, ast.Mult):
        for number in (node.left, node.right):
            if _number_beyond(interp, number) < 0:
                return _mark(interp, number, number, result)
    return result


def _mark(interp: Interpreter, number: ast.expr | None, place: ast.expr, result: DtypeInfo) -> DtypeInfo:
    if number is None or result.is_low or not _number_beyond(interp, number):
        return result
    return result._replace(trait_node=place).with_traits(BEYOND_FLOAT16)


def check_cast_fill(interp: Interpreter, filled: DtypeInfo, dtype: str, node: ast.Call) -> None:
    """Report the cast to float16 of a tensor that holds a number beyond the range of float16."""
    if BEYOND_FLOAT16 in filled.traits and dtype == _FLOAT16 and isinstance(filled.trait_node, ast.expr):
        parts = [part for part in walk(filled.trait_node) if isinstance(part, ast.expr)]
        value = next(filter(None, (_number_beyond(interp, part) for part in parts)), 0.0)
        interp.emit(e.Fill, node, value=value, eligible=True, cast=True, names={"call": SourceText(node)})


def _number_beyond(interp: Interpreter, node: ast.expr) -> float:
    """Return a finite number beyond the range of float16, written as a number or as ``float("-1e9")``, or 0."""
    match node:
        case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=str() as text)]):
            try:
                number: object = float(text)
            except ValueError:
                return 0.0
        case _:
            number = literal_value(interp.expression_values.get(node))
    is_beyond = isinstance(number, (int, float)) and FLOAT16_MAX < abs(number) < float("inf")
    return float(number) if is_beyond and isinstance(number, (int, float)) else 0.0


def check_item_fill(interp: Interpreter, receiver: Value, index: Value, target: ast.Subscript, value: Value) -> None:
    """Report ``scores[mask] = -1e9`` for a tensor whose dtype is an assumption."""
    if interp.assumed_dtype == _FLOAT16:
        _emit_fill(interp, target.value, value, target)


def _emit_fill(interp: Interpreter, tensor: ast.expr, value: Value | None, node: ast.AST) -> None:
    number, fact = literal_value(value), dtype_info_of(interp, tensor)
    held = interp.expression_values.get(tensor)
    is_followed = held is not None and held.kind == "tensor"
    if is_followed or fact.dtype != _FLOAT16 or GUESSED_LOW in fact.traits or not isinstance(number, (int, float)):
        return
    names = {"call": SourceText(node), "tensor": SourceText(tensor)}
    interp.emit(e.Fill, node, value=float(number), eligible=True, names=names)
