"""Literals: constants, containers and formatted texts."""

from __future__ import annotations

import ast

from ..interpreter import Interpreter
from ..values.containers import MappingValue, SequenceValue, merge_into
from ..values.value import NO_CONSTANT, Const, Value
from .operators import notify_use

#: Maximum number of elements of an analyzed literal. A larger literal is data and becomes an unknown value.
MAX_LITERAL_ITEMS = 64


def evaluate_constant(interp: Interpreter, node: ast.Constant) -> Value:
    return Const(node.value)


def evaluate_sequence(interp: Interpreter, node: ast.Tuple | ast.List | ast.Set) -> Value:
    if len(node.elts) > MAX_LITERAL_ITEMS:
        return interp.fresh_unknown(node, "table")
    items = [interp.evaluate(element) for element in node.elts]
    return SequenceValue(items, is_open=any(isinstance(element, ast.Starred) for element in node.elts))


def evaluate_dict(interp: Interpreter, node: ast.Dict) -> Value:
    if len(node.values) > MAX_LITERAL_ITEMS:
        return interp.fresh_unknown(node, "table")
    made = MappingValue({})
    for key, item in zip(node.keys, node.values, strict=True):
        value = interp.evaluate(item)
        if key is not None:
            made.items[mapping_key(interp.evaluate(key), key)] = value
        else:
            merge_into(made, value)
    return made


def mapping_key(value: Value, node: ast.AST) -> object:
    """Return the key of a dict entry. An unknown key is different from all other keys."""
    return value.value if value.value is not NO_CONSTANT else ("?", id(node))


def evaluate_fstring(interp: Interpreter, node: ast.JoinedStr) -> Value:
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            value = interp.evaluate(part.value)
            notify_use(interp, value, part.value)
    made = interp.fresh_unknown(node, "text")
    if node.values and isinstance(node.values[0], ast.Constant):
        made.text_prefix = str(node.values[0].value)
    return made
