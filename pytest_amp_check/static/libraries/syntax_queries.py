"""Queries about syntax that several library models share."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ...protocol.events import UNKNOWN
from ...protocol.source_text import SourceText
from ..project.syntax import walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TypeVar

    from ..project.module import Class, Function, Module

    Kind = TypeVar("Kind", bound=ast.AST)


def find_nodes(node: ast.AST, kind: type[Kind]) -> list[Kind]:
    """Return all nodes of a type in a tree, including the root."""
    return [part for part in walk(node) if isinstance(part, kind)]


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def iterate_scopes(module: Module, names: frozenset[str] | None = None) -> Iterator[list[ast.AST]]:
    """Yield the nodes of each function, and of the statements outside of functions and classes.

    With ``names``, functions without one of these relevant names are omitted, inner functions and classes included.
    """
    outside = [each for each in module.tree.body if not isinstance(each, _DEFINITIONS)]
    yield [node for statement in outside for node in walk(statement)]
    holders: list[Function | Class] = [*module.functions.values(), *module.classes.values()]
    lines = [each.node.lineno for each in holders if names is None or not names.isdisjoint(each.used_names)]
    for function in module.functions.values():
        first, last = function.node.lineno, function.node.end_lineno or function.node.lineno
        if names is None or any(first <= line <= last for line in lines):
            yield function.nodes


def is_conditional_in_loop(tree: ast.AST, node: ast.AST) -> bool:
    """Return True if a loop runs a statement for some elements only, by a condition on the loop variable.

    Conditions on ``grad`` and ``requires_grad`` alone do not count.
    """
    around = [loop for loop in find_nodes(tree, ast.For) if any(part is node for part in walk(loop))]
    if not around:
        return False
    names = {name.id for name in find_nodes(around[-1].target, ast.Name)}
    for choice in find_nodes(around[-1], ast.If):
        if any(part is node for part in walk(choice)) or any(isinstance(last, ast.Continue) for last in choice.body):
            asked = find_nodes(choice.test, ast.Attribute)
            plain = {id(each.value) for each in asked if each.attr in ("grad", "requires_grad")}
            if any(name.id in names and id(name) not in plain for name in find_nodes(choice.test, ast.Name)):
                return True
    return False


def constant_of_node(node: ast.AST | None) -> object:
    """Return the value of a literal, or ``UNKNOWN`` for any other expression."""
    return node.value if isinstance(node, ast.Constant) else UNKNOWN


def assigned_values(nodes: Iterable[ast.AST], name: str) -> list[ast.expr]:
    """Return the expressions that the assignments among some statements give a variable."""
    return [
        node.value
        for node in nodes
        if isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
    ]


def number_of_node(node: ast.AST | None) -> object:
    """Return the value of a literal number with or without a minus sign, or ``UNKNOWN`` for any other expression."""
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
    return constant_of_node(node)


def last_name(node: ast.AST | None) -> str:
    """Return the last part of a dotted name, or "" for other expressions."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def name_of_data(node: ast.AST | None) -> str:
    """Return the name of the tensor that an expression takes a part or a copy of, or "".

    A text as the index is the name: ``batch["boxes"][:, 0]``.
    """
    while node is not None:
        match node:
            case ast.Subscript(slice=ast.Constant(value=str() as key)):
                return key
            case ast.Subscript(value=held) | ast.Call(func=ast.Attribute(value=held)):
                node = held
            case _:
                return last_name(node)
    return ""


def callee_of(node: ast.AST | None) -> ast.expr | None:
    """Return the called expression of a call, else None."""
    return node.func if isinstance(node, ast.Call) else None


def holder_of(node: ast.AST | None) -> ast.expr | None:
    """Return the expression before the dot of an attribute, else None."""
    return node.value if isinstance(node, ast.Attribute) else None


def receiver_of(node: ast.AST | None) -> ast.expr | None:
    """Return the receiver of a method call, else None."""
    return holder_of(callee_of(node))


def first_argument(node: ast.AST | None) -> ast.expr | None:
    """Return the first positional argument of a call, else None."""
    return node.args[0] if isinstance(node, ast.Call) and node.args else None


def first_argument_text(node: ast.AST) -> object:
    """Return the source text of the first positional argument of a call, or ""."""
    argument = first_argument(node)
    return SourceText(argument) if argument is not None else ""


def keywords_of(node: ast.AST) -> dict[str | None, ast.expr]:
    """Return the keyword arguments of a call by name. The key None holds an unpacked dict."""
    return {keyword.arg: keyword.value for keyword in node.keywords} if isinstance(node, ast.Call) else {}


def elements_of(node: ast.AST | None) -> list[ast.expr]:
    """Return the elements of a tuple or list display, or an empty list."""
    return node.elts if isinstance(node, (ast.Tuple, ast.List)) else []


def operands_of(node: ast.AST | None, operator: type[ast.operator]) -> list[ast.expr]:
    """Return both operands of a binary operation, or an empty list for another operator."""
    return [node.left, node.right] if isinstance(node, ast.BinOp) and type(node.op) is operator else []
