"""Queries of fixes about a syntax tree, independent of the surrounding program."""

from __future__ import annotations

import ast

from ...protocol.source_text import access_text, find_access_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeVar

    Node = TypeVar("Node", bound=ast.AST)
    Item = TypeVar("Item")


class NotFixable(Exception):
    """Exception for a finding without a certainly correct fix."""


# Requirements of a fix.


def require(condition: object) -> None:
    """Raise :class:`NotFixable` if a condition of a fix is false."""
    if not condition:
        raise NotFixable


def require_type(found: object, kind: type[Item]) -> Item:
    """Return an object of the required type. Raise :class:`NotFixable` for another type."""
    if not isinstance(found, kind):
        raise NotFixable
    return found


def require_first(found: Iterable[Item]) -> Item:
    """Return the first item. Raise :class:`NotFixable` if there is none."""
    for item in found:
        return item
    raise NotFixable


def require_only(found: Iterable[Item]) -> Item:
    """Return the only item. Raise :class:`NotFixable` for no item, or for several."""
    items = list(found)
    require(len(items) == 1)
    return items[0]


# Calls.


def find_receiver(call: ast.Call, name: str) -> ast.expr | None:
    """Return the receiver of a call of the named method, or None for another call."""
    return call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr == name else None


def last_name(node: ast.expr) -> str:
    """Return the last part of a dotted name, or ""."""
    return access_text(node).rpartition(".")[2]


def all_arguments(call: ast.Call) -> list[ast.expr]:
    """Return all positional and keyword arguments of a call."""
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def find_keyword(call: ast.Call, name: str) -> ast.expr | None:
    """Return a keyword argument of a call, or None."""
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


# Groups of nodes.


def filter_nodes(nodes: Iterable[ast.AST], kind: type[Node]) -> list[Node]:
    return [node for node in nodes if isinstance(node, kind)]


def find_assignments(nodes: Iterable[ast.AST], name: str) -> list[ast.Assign]:
    """Return the assignments to a name or an attribute."""
    return [
        node
        for node in filter_nodes(nodes, ast.Assign)
        if any(find_access_path(target) == name for target in node.targets)
    ]


def find_remainders(nodes: Iterable[ast.AST]) -> list[ast.BinOp]:
    return [node for node in filter_nodes(nodes, ast.BinOp) if isinstance(node.op, ast.Mod)]


def count_torch_imports(nodes: Iterable[ast.AST]) -> int:
    """Return the number of imports of torch under its own name."""
    aliases = [alias for node in filter_nodes(nodes, ast.Import) for alias in node.names]
    return sum(alias.name.partition(".")[0] == "torch" and not alias.asname for alias in aliases)
