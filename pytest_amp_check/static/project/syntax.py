"""Questions about ``ast`` that the standard ones are too slow for, or do not have."""

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
#: The fields of a statement, or of a part of one, that hold statements or such parts, in their order there.
_BLOCK_FIELDS = ("body", "handlers", "orelse", "finalbody", "cases")


class _NodeFields(dict[type, tuple[str, ...]]):
    """The fields of each kind of node that hold nodes, or lists of nodes.

    A field that only a newer Python has is recognized by its declared type. What is no node at all, such as a gap in a
    list of a newer kind of node, has no fields.
    """

    def __missing__(self, kind: type) -> tuple[str, ...]:
        names: tuple[str, ...] = getattr(kind, "_fields", ())
        made = self[kind] = tuple(
            name for name in names if name not in _NODELESS_FIELDS and _may_hold_nodes(kind, name)
        )
        return made


def _may_hold_nodes(kind: type, name: str) -> bool:
    """Return True unless a field is declared to hold no node. Python declares the types of fields from 3.13 on."""
    declared = getattr(kind, "_field_types", {}).get(name)
    if declared is None:
        return True
    members = getattr(declared, "__args__", (declared,))
    return any(isinstance(member, type) and issubclass(member, ast.AST) for member in members)


_fields = _NodeFields(dict.fromkeys(_LEAF_NODES, ()))


def children(node: ast.AST) -> list[ast.AST]:
    """The child nodes of a node, operators and contexts left out."""
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
    """A node and all below it."""
    found = [node]
    # As in children, without a call and a list for each node: most have none.
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
    """The statements of a body at any depth, with handlers and cases, in the order of :func:`walk`."""
    found: list[ast.AST] = [*body]
    for one in found:
        for name in _BLOCK_FIELDS:
            found += getattr(one, name, ())
    return found


def tail_name(node: ast.AST) -> str:
    """The name, or the attribute, that an expression ends in; nothing for any other."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def bound_by_import(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """The names that an import binds, with what they stand for."""
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            yield alias.asname or alias.name, f"{node.module}.{alias.name}"
        else:
            top = alias.name.partition(".")[0]
            yield alias.asname or top, alias.name if alias.asname else top


def is_same_syntax(a: object, b: object) -> bool:
    """Whether two nodes, or what their fields hold, are written alike."""
    if type(a) is not type(b):
        return False
    if isinstance(a, ast.AST):
        return all(is_same_syntax(getattr(a, name, None), getattr(b, name, None)) for name in a._fields)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(is_same_syntax, a, b))
    return a == b


def root_name(node: ast.expr) -> str:
    """The name that an expression begins with: of ``a`` in ``a.b[c]``; nothing for any other."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
