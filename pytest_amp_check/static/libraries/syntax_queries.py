"""What is written at a place: questions about syntax that several libraries ask."""

from __future__ import annotations

import ast

from ...protocol.events import UNKNOWN
from ...protocol.source_text import SourceText
from ..project.syntax import walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    Kind = TypeVar("Kind", bound=ast.AST)


def find_nodes(node: ast.AST, kind: type[Kind]) -> list[Kind]:
    """The nodes of a kind in a node, itself among them."""
    return [part for part in walk(node) if isinstance(part, kind)]


def is_conditional_in_loop(tree: ast.AST, node: ast.AST) -> bool:
    """Whether a loop does something in some of its turns only, by what it goes over: not by its gradient alone."""
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
    """What a literal stands for; ``UNKNOWN`` for any other expression."""
    return node.value if isinstance(node, ast.Constant) else UNKNOWN


def last_name(node: ast.AST | None) -> str:
    """The last part of a dotted name, "" where an expression has none."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def callee_of(node: ast.AST | None) -> ast.expr | None:
    """What a call calls."""
    return node.func if isinstance(node, ast.Call) else None


def holder_of(node: ast.AST | None) -> ast.expr | None:
    """What an attribute is one of."""
    return node.value if isinstance(node, ast.Attribute) else None


def receiver_of(node: ast.AST | None) -> ast.expr | None:
    """What the method is called on that a call calls."""
    return holder_of(callee_of(node))


def first_argument(node: ast.AST | None) -> ast.expr | None:
    """The first argument of a call that has no name."""
    return node.args[0] if isinstance(node, ast.Call) and node.args else None


def first_argument_text(node: ast.AST) -> object:
    """The words of the first argument of a call, "" where it has none."""
    argument = first_argument(node)
    return SourceText(argument) if argument is not None else ""


def keywords_of(node: ast.AST) -> dict[str | None, ast.expr]:
    """The arguments of a call that have names; that of None is unpacked."""
    return {keyword.arg: keyword.value for keyword in node.keywords} if isinstance(node, ast.Call) else {}


def elements_of(node: ast.AST | None) -> list[ast.expr]:
    """What stands in a tuple or a list."""
    return node.elts if isinstance(node, (ast.Tuple, ast.List)) else []


def operands_of(node: ast.AST | None, operator: type[ast.operator]) -> list[ast.expr]:
    """The two sides of an operation, none where it is another."""
    return [node.left, node.right] if isinstance(node, ast.BinOp) and type(node.op) is operator else []
