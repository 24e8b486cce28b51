"""Comparisons of a torch device with a text, which are never equal, in the arguments of autocast."""

from __future__ import annotations

import ast

from ...protocol.source_text import SourceText
from ..interpreter.interpreter import Interpreter
from ..interpreter.values.value import Value
from .arguments import literal_value, object_ref_of
from .devices import device_text_of, device_types_of
from .syntax_queries import constant_of_node, find_nodes, keywords_of

#: Arguments of autocast that a comparison may decide, with the value that the failed comparison leaves.
_LEFT_BY = {"device_type": "cpu", "enabled": False}


def find_failed_comparison(
    interp: Interpreter, bound: dict[str, Value], node: ast.AST
) -> tuple[ast.Compare, ast.expr] | None:
    """Return the comparison that makes autocast run on the CPU or not at all, and its device; None without one.

    ``torch.device("cuda") == "cuda"`` is False.
    """
    for name, left in _LEFT_BY.items():
        given = _argument_node(node, name)
        if given is None or literal_value(bound.get(name)) != left:
            continue
        for decisive in _deciding_expressions(interp, given):
            for test in find_nodes(decisive, ast.Compare):
                device = _compared_device(interp, test)
                if device is not None:
                    return test, device
    return None


def _argument_node(node: ast.AST, name: str) -> ast.expr | None:
    """Return the expression of an argument of autocast, or None."""
    given = keywords_of(node).get(name)
    if given is None and name == "device_type" and isinstance(node, ast.Call) and node.args:
        return node.args[0]
    return given


def _deciding_expressions(interp: Interpreter, given: ast.expr) -> list[ast.expr]:
    """Return an expression, or the assigned values and the conditions that decide a variable of this function."""
    if not isinstance(given, ast.Name):
        return [given]
    frame = interp.state.frame
    code = frame.module.tree if frame.function is None else frame.function.node
    choices = find_nodes(code, ast.If)
    tests = [choice.test for choice in choices if any(_assigns(each, given.id) for each in choice.body)]
    return [*tests, *(each.value for each in find_nodes(code, ast.Assign) if _assigns(each, given.id))]


def _assigns(statement: ast.AST, name: str) -> bool:
    return isinstance(statement, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id == name for target in statement.targets
    )


def _compared_device(interp: Interpreter, test: ast.Compare) -> ast.expr | None:
    """Return the device that a comparison compares with a text, or None."""
    if len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq):
        return None
    for side, other in ((test.left, test.comparators[0]), (test.comparators[0], test.left)):
        text = constant_of_node(other)
        if isinstance(text, str) and _may_be_device_of_type(interp, side, text.partition(":")[0]):
            return side
    return None


def _may_be_device_of_type(interp: Interpreter, node: ast.expr, kind: str) -> bool:
    """Return True if an expression is a torch device that may have a type."""
    device = object_ref_of(interp.without_events(lambda: interp.evaluate(node)), "device")
    if device is None or device.recognized_from is not None:
        return False
    text = device_text_of(interp, device)
    return text is None or kind in device_types_of(text)


def comparison_texts(test: ast.Compare, device: ast.expr) -> dict[str, str]:
    """Return the source texts of a comparison and of its device."""
    return {"test": str(SourceText(test)), "device": str(SourceText(device))}
