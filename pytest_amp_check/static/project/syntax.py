"""Questions about ``ast`` that the standard ones are too slow for, or do not have."""

from __future__ import annotations

import ast
from collections.abc import Iterator

#: Fields that hold no expression or statement.
_PLAIN = frozenset(
    "ctx op ops kind type_comment type_ignores id attr arg name asname module level simple is_async conversion rest "
    "kwd_attrs".split()
)
#: Nodes without children.
_LEAVES = (ast.Constant, ast.Name, ast.Global, ast.Nonlocal, ast.MatchSingleton, ast.alias)
#: The fields of a node that hold nodes, or lists of them; whether such a list may hold None.
_fields: dict[type[ast.AST], tuple[str, ...]] = dict.fromkeys(_LEAVES, ())
_GAPS = (ast.Dict, ast.arguments)


def children(node: ast.AST) -> list[ast.AST]:
    """The child nodes of a node, operators and contexts left out."""
    kind = type(node)
    fields = _fields.get(kind)
    if fields is None:
        fields = _fields[kind] = tuple(name for name in kind._fields if name not in _PLAIN)
    found: list[ast.AST] = []
    for name in fields:
        value = getattr(node, name, None)
        if value.__class__ is list:
            found += value
        elif value is not None:
            found.append(value)
    if kind in _GAPS:
        return [child for child in found if child is not None]  # type: ignore[redundant-expr]
    return found


def walk(node: ast.AST) -> list[ast.AST]:
    """A node and all below it."""
    found = [node]
    for one in found:
        found.extend(children(one))
    return found


def tail(node: ast.AST) -> str:
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


def alike(a: object, b: object) -> bool:
    """Whether two nodes, or what their fields hold, are written alike."""
    if type(a) is not type(b):
        return False
    if isinstance(a, ast.AST):
        return all(alike(getattr(a, name, None), getattr(b, name, None)) for name in a._fields)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(alike, a, b))
    return a == b


def root_of(node: ast.expr) -> str:
    """The name that an expression begins with: of ``a`` in ``a.b[c]``; nothing for any other."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
