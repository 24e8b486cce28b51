"""Helpers over ``ast`` that the standard ones are too slow for, or do not have."""

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


def chain(node: ast.AST) -> str | None:
    """The text of a name, an attribute or an item of one: what a value can be recognised by."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = chain(node.value)
        return f"{head}.{node.attr}" if head else None
    if isinstance(node, ast.Subscript):
        head = chain(node.value)
        index = repr(node.slice.value) if isinstance(node.slice, ast.Constant) else chain(node.slice)
        return f"{head}[{index}]" if head and index else None
    return None


class Words:
    """The user's own words for an expression. Most are never shown, so they are put together when asked for."""

    __slots__ = ("_node", "_said", "limit")

    def __init__(self, node: ast.AST, limit: int = 60) -> None:
        self._node = node
        self._said: str | None = None
        self.limit = limit

    def __str__(self) -> str:
        if self._said is None:
            text = " ".join((chain(self._node) or ast.unparse(self._node)).split())
            self._said = text if len(text) <= self.limit else text[: self.limit - 3] + "..."
        return self._said
