"""Numbers written into tensors that are assumed to be float16."""

from __future__ import annotations

import ast

from ....protocol import events as e
from ....protocol.source_text import SourceText
from ...interpreter.dtypes import GUESSED_LOW
from ...interpreter.interpreter import Interpreter
from ...interpreter.values.value import Value
from ..arguments import literal_value
from ..losses import FILLS
from ..syntax_queries import first_argument, keywords_of
from .dtype_info import dtype_info_of, resolve_callee

_FLOAT16 = "float16"


def check_fill(interp: Interpreter, node: ast.Call) -> None:
    """Report ``scores.masked_fill(mask, -1e9)`` for a tensor whose dtype is an assumption.

    Tensors that the analysis follows by themselves are reported with their own dtype.
    """
    if interp.assumed_dtype != _FLOAT16 or not isinstance(node.func, ast.Attribute) or node.func.attr not in FILLS:
        return
    keywords = keywords_of(node)
    is_function = resolve_callee(interp, node.func) == f"torch.{node.func.attr}"
    tensor = keywords.get("input", first_argument(node)) if is_function else node.func.value
    number = keywords.get("value", node.args[-1] if node.args else None)
    if tensor is not None and number is not None:
        _emit_fill(interp, tensor, interp.expression_values.get(number), node)


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
