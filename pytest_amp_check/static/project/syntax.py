"""Exports over ``ast`` that the standard ones are too slow for, or do not have."""

from __future__ import annotations

import ast

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


def alike(a: ast.AST, b: ast.AST) -> bool:
    """Whether two nodes are written alike."""
    if type(a) is not type(b):
        return False
    for name in a._fields:
        ours, others = getattr(a, name, None), getattr(b, name, None)
        if isinstance(ours, ast.AST):
            if not (isinstance(others, ast.AST) and alike(ours, others)):
                return False
        elif isinstance(ours, list):
            if not isinstance(others, list) or len(ours) != len(others):
                return False
            for one, other in zip(ours, others, strict=True):
                if not (alike(one, other) if isinstance(one, ast.AST) and isinstance(other, ast.AST) else one == other):
                    return False
        elif ours != others or type(ours) is not type(others):
            return False
    return True
