"""Queries on ``ast`` nodes that the standard library lacks, or answers too slowly."""

from __future__ import annotations

import ast
from collections.abc import Iterator

#: Fields that hold no expression or statement.
_NODELESS_FIELDS = frozenset(
    "ctx op ops kind type_comment type_ignores id attr arg name asname module level simple is_async conversion rest "
    "kwd_attrs".split()
)
#: Nodes without children.
_LEAF_NODES = (ast.Constant, ast.Name, ast.Global, ast.Nonlocal, ast.MatchSingleton, ast.alias)
#: Nodes with lists that may hold None.
_NODES_WITH_GAPS = (ast.Dict, ast.arguments)
#: Fields of a statement, or of a part of a statement, that hold statements or such parts, in source order.
_BLOCK_FIELDS = ("body", "handlers", "orelse", "finalbody", "cases")


class _NodeFields(dict[type, tuple[str, ...]]):
    """Fields of each kind of node that hold nodes or lists of nodes.

    A field of a newer Python is recognized by its declared type. An object that is no node, such as a gap in a list of
    a newer kind of node, has no fields.
    """

    def __missing__(self, kind: type) -> tuple[str, ...]:
        names: tuple[str, ...] = getattr(kind, "_fields", ())
        made = self[kind] = tuple(
            name for name in names if name not in _NODELESS_FIELDS and _may_hold_nodes(kind, name)
        )
        return made


def _may_hold_nodes(kind: type, name: str) -> bool:
    """Return True unless a field is declared to hold no node. Python 3.13 and later declare the types of fields."""
    declared = getattr(kind, "_field_types", {}).get(name)
    if declared is None:
        return True
    members = getattr(declared, "__args__", (declared,))
    return any(isinstance(member, type) and issubclass(member, ast.AST) for member in members)


_fields = _NodeFields(dict.fromkeys(_LEAF_NODES, ()))


def children(node: ast.AST) -> list[ast.AST]:
    """Return the child nodes of a node, without operators and contexts."""
    kind = type(node)
    found: list[ast.AST] = []
    for name in _fields[kind]:
        value = getattr(node, name, None)
        if value.__class__ is list:
            found += value
        elif value is not None:
            found.append(value)
    if kind in _NODES_WITH_GAPS:
        return [child for child in found if child is not None]  # type: ignore[redundant-expr]
    return found


def walk(node: ast.AST) -> list[ast.AST]:
    """Return a node and all nodes below."""
    found = [node]
    # As in `children`, without a call and a list for each node: most nodes have no children.
    for one in found:
        kind = type(one)
        for name in _fields[kind]:
            value = getattr(one, name, None)
            if value.__class__ is list:
                found += value if kind not in _NODES_WITH_GAPS else [child for child in value if child is not None]
            elif value is not None:
                found.append(value)
    return found


def statements_in(body: list[ast.stmt]) -> list[ast.AST]:
    """Return the statements of a body at any depth, with handlers and cases, in the order of :func:`walk`."""
    found: list[ast.AST] = [*body]
    for one in found:
        for name in _BLOCK_FIELDS:
            found += getattr(one, name, ())
    return found


def tail_name(node: ast.AST) -> str:
    """Return the last name or attribute of an expression, or ""."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def bound_by_import(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """Yield the names that an import binds, each with the imported dotted name."""
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            yield alias.asname or alias.name, f"{node.module}.{alias.name}"
        else:
            top = alias.name.partition(".")[0]
            yield alias.asname or top, alias.name if alias.asname else top


def is_same_syntax(a: object, b: object) -> bool:
    """Return True if two nodes, or the values of their fields, have the same syntax."""
    if type(a) is not type(b):
        return False
    if isinstance(a, ast.AST):
        return all(is_same_syntax(getattr(a, name, None), getattr(b, name, None)) for name in a._fields)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(is_same_syntax, a, b))
    return a == b


def root_name(node: ast.expr) -> str:
    """Return the first name of an expression, as ``a`` of ``a.b[c]``, or ""."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
