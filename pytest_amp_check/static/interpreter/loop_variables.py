"""Variables of loops: the use of each item in the body."""

from __future__ import annotations

import ast

from ..project.syntax import children
from .interpreter import Interpreter
from .source_text import names_in

#: Methods of optimizers and scalers.
_OF_OBJECTS = frozenset(("step", "zero_grad", "unscale_", "scale", "update", "state_dict", "load_state_dict"))


def is_other_item(interp: Interpreter, name: str) -> bool:
    """Return True for the variable of a running loop of this function that is used as no optimizer or scaler there.

    Another function of the file may use the same short name for one.
    """
    loops = [loop.node for loop in interp.state.loops if loop.frame is interp.state.frame]
    node = next((each for each in reversed(loops) if _has_variable(each, name)), None)
    return isinstance(node, (ast.For, ast.AsyncFor)) and not is_used_as_object(interp, node, name)


def _has_variable(loop: ast.AST | None, name: str) -> bool:
    return isinstance(loop, (ast.For, ast.AsyncFor)) and name in names_in(loop.target)


def is_used_as_object(interp: Interpreter, node: ast.For | ast.AsyncFor, name: str) -> bool:
    """Return True if a loop uses its variable as an optimizer or a scaler, or names it like one.

    Another function of the file may use the same short name for one.
    """
    if any(word in name.lower() for word in ("opt", "scaler")):
        return True
    calls = (inner for inner in statements_of(interp, node) if isinstance(inner, ast.Call))
    for call in calls:
        if isinstance(call.func, ast.Attribute):
            given = call.args[:1] if call.func.attr in ("step", "unscale_") else []
            owner = [call.func.value] if call.func.attr in _OF_OBJECTS else []
            if any(isinstance(each, ast.Name) and each.id == name for each in (*owner, *given)):
                return True
    return False


class _LoopStatements(dict[ast.AST, list[ast.AST]]):
    """Assignments and calls of loop bodies, without the bodies of nested functions, by loop."""


def statements_of(interp: Interpreter, node: ast.For | ast.AsyncFor) -> list[ast.AST]:
    """Return the assignments and calls of the body of a loop."""
    statements = interp.file_data(_LoopStatements)
    if node not in statements:
        statements[node] = [inner for inner in own_nodes(node.body) if isinstance(inner, (ast.Assign, ast.Call))]
    return statements[node]


def own_nodes(statements: list[ast.stmt]) -> list[ast.AST]:
    """Return the nodes of statements in source order, without the bodies of nested functions and classes."""
    found: list[ast.AST] = []
    stack: list[ast.AST] = [*reversed(statements)]
    while stack:
        node = stack.pop()
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            found.append(node)
            stack.extend(reversed(children(node)))
    return found
