"""The user's own words for an expression."""

from __future__ import annotations

import ast


def find_access_path(node: ast.AST) -> str | None:
    """The text of a name, an attribute or an item of one: what a value can be recognised by."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = find_access_path(node.value)
        return f"{head}.{node.attr}" if head else None
    if isinstance(node, ast.Subscript):
        head = find_access_path(node.value)
        index = repr(node.slice.value) if isinstance(node.slice, ast.Constant) else find_access_path(node.slice)
        return f"{head}[{index}]" if head and index else None
    return None


def _find_beginning(node: ast.AST, limit: int) -> ast.AST:
    """What the first characters of an expression come from: of many calls in a row, the first ones."""
    calls: list[ast.Call] = []
    inner = node
    while isinstance(inner, ast.Call):
        calls.append(inner)
        inner = inner.func
    # Each writes two parentheses at least.
    return calls[-limit] if len(calls) > limit else node


class SourceText:
    """The user's own words for an expression. Most are never shown, so they are put together when asked for."""

    __slots__ = ("_node", "_text", "limit")

    def __init__(self, node: ast.AST, limit: int = 60) -> None:
        self._node = node
        self._text: str | None = None
        self.limit = limit

    def __str__(self) -> str:
        if self._text is None:
            text = " ".join(
                (find_access_path(self._node) or ast.unparse(_find_beginning(self._node, self.limit))).split()
            )
            self._text = text if len(text) <= self.limit else text[: self.limit - 3] + "..."
        return self._text


class NegatedText:
    """The words of the contrary of an expression, which are said without the denial where the answer is said, too."""

    __slots__ = ("operand",)

    def __init__(self, operand: SourceText) -> None:
        self.operand = operand

    def __str__(self) -> str:
        return f"not ({self.operand})"
