"""What fixers look for in a syntax tree, whatever the program around it."""

from __future__ import annotations

import ast

from ...protocol.source_text import find_access_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeVar

    Node = TypeVar("Node", bound=ast.AST)
    Item = TypeVar("Item")


class NotFixable(Exception):
    """There is no fix here that is certainly right."""


# What a fix cannot do without.


def require(condition: object) -> None:
    """Raises :class:`Unfit` where a condition of a fix does not hold."""
    if not condition:
        raise NotFixable


def require_type(found: object, kind: type[Item]) -> Item:
    """What must be of one kind. Raises :class:`Unfit` where it is not."""
    if not isinstance(found, kind):
        raise NotFixable
    return found


def require_first(found: Iterable[Item]) -> Item:
    """The first of what was found. Raises :class:`Unfit` where nothing was."""
    for item in found:
        return item
    raise NotFixable


def require_only(found: Iterable[Item]) -> Item:
    """What was found alone. Raises :class:`Unfit` where there is nothing, or more."""
    items = list(found)
    require(len(items) == 1)
    return items[0]


# Calls.


def find_receiver(call: ast.Call, name: str) -> ast.expr | None:
    """What a method of that name is called on."""
    return call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr == name else None


def last_name(node: ast.expr) -> str:
    """The last part of a dotted name."""
    return (find_access_path(node) or "").rpartition(".")[2]


def all_arguments(call: ast.Call) -> list[ast.expr]:
    """All that a call is given, by position and by name."""
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def find_keyword(call: ast.Call, name: str) -> ast.expr | None:
    """What a call is given by a name."""
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


# Many nodes.


def filter_nodes(nodes: Iterable[ast.AST], kind: type[Node]) -> list[Node]:
    return [node for node in nodes if isinstance(node, kind)]


def find_assignments(nodes: Iterable[ast.AST], name: str) -> list[ast.Assign]:
    """The assignments that a name, or an attribute, has its value from."""
    return [
        node
        for node in filter_nodes(nodes, ast.Assign)
        if any(find_access_path(target) == name for target in node.targets)
    ]


def find_remainders(nodes: Iterable[ast.AST]) -> list[ast.BinOp]:
    return [node for node in filter_nodes(nodes, ast.BinOp) if isinstance(node.op, ast.Mod)]


def count_torch_imports(nodes: Iterable[ast.AST]) -> int:
    """How often torch is imported under its own name."""
    aliases = [alias for node in filter_nodes(nodes, ast.Import) for alias in node.names]
    return sum(alias.name.partition(".")[0] == "torch" and not alias.asname for alias in aliases)
