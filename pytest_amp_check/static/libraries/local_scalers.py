"""Scalers that one function holds in a local name, so that their state is taken in sight or never."""

from __future__ import annotations

import ast

from ...protocol.source_text import find_access_path
from ..interpreter.interpreter import Interpreter
from .syntax_queries import last_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..project.module import Function

#: Attributes of a scaler that give its state away.
_STATES = frozenset({"state_dict", "__dict__", "__getstate__"})
#: Functions and methods that keep what they receive, without a call of unanalyzed code.
_KEEPERS = frozenset(
    "add append dict extend insert list namedtuple partial put register setattr setdefault tuple update vars".split()
)


def is_local_scaler(interp: Interpreter, node: ast.AST) -> bool:
    """Return True if the scaler that a call constructs stays in a local name, and its state is not taken there.

    The name may be used for methods, in conditions and as an argument of a call. What the called functions do with the
    scaler is seen in their analysis.
    """
    function = interp.state.frame.function
    name = None if function is None else _find_name(function, node)
    if function is None or name is None:
        return False
    allowed = {id(each) for part in function.nodes for each in _harmless_parts(part)}
    return all(
        id(each) in allowed or not isinstance(each.ctx, ast.Load)
        for each in function.find_nodes(ast.Name)
        if each.id == name
    ) and not any(isinstance(part, (ast.Global, ast.Nonlocal)) and name in part.names for part in function.nodes)


def may_be_none(interp: Interpreter, node: ast.AST) -> bool:
    """Return True if the file expects None in the variable or attribute of a scaler that a call constructs.

    The file assigns None to it as well, or compares it with None.
    """
    assigned = interp.module.find_nodes(ast.Assign)
    own = [each for each in assigned if any(value is node for value in _choices(each.value))]
    names = {find_access_path(target) for each in own for target in each.targets} - {None}
    with_none = (each for each in assigned if any(map(_is_none, _choices(each.value))))
    compared = (each for each in interp.module.find_nodes(ast.Compare) if any(map(_is_none, each.comparators)))
    return any(find_access_path(target) in names for each in with_none for target in each.targets) or any(
        find_access_path(each.left) in names for each in compared
    )


def _choices(node: ast.expr) -> list[ast.expr]:
    return [node.body, node.orelse] if isinstance(node, ast.IfExp) else [node]


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _find_name(function: Function, node: ast.AST) -> str | None:
    """Return the only name to which the result of a call is assigned, also as one option of a choice, or None."""
    for statement in function.find_nodes(ast.Assign):
        options = [statement.value]
        while options:
            option = options.pop()
            if option is node:
                target = statement.targets[0] if len(statement.targets) == 1 else None
                return target.id if isinstance(target, ast.Name) else None
            options += [option.body, option.orelse] if isinstance(option, ast.IfExp) else []
    return None


def _harmless_parts(node: ast.AST) -> list[ast.AST]:
    """Return the parts of an expression that neither store nor return the object that they name."""
    if isinstance(node, ast.Attribute):
        return [] if node.attr in _STATES else [node.value]
    if isinstance(node, ast.Call):
        return [] if last_name(node.func) in _KEEPERS else [*node.args, *(each.value for each in node.keywords)]
    if isinstance(node, ast.Compare):
        return [node.left, *node.comparators]
    if isinstance(node, (ast.If, ast.While, ast.IfExp, ast.Assert)):
        return _operands(node.test)
    return []


def _operands(test: ast.expr) -> list[ast.AST]:
    """Return the operands of ``and``, ``or`` and ``not`` in a condition."""
    found: list[ast.AST] = [test]
    for part in found:
        found += part.values if isinstance(part, ast.BoolOp) else []
        found += [part.operand] if isinstance(part, ast.UnaryOp) else []
    return found
