"""Source text of expressions for messages."""

from __future__ import annotations

import ast

from ...protocol.source_text import SourceText
from ..project.syntax import walk


class TextTemplate:
    """Template around source texts, formatted on first use as a string."""

    __slots__ = ("_arguments", "_format")

    def __init__(self, form: str, *parts: object) -> None:
        self._format = form
        self._arguments = parts

    def __str__(self) -> str:
        return self._format.format(*self._arguments)


def expression_text(node: ast.AST) -> SourceText:
    """Return the source text of an expression; for a call, the source text of the callee."""
    return SourceText(node.func if isinstance(node, ast.Call) else node)


def short_text(node: ast.AST) -> SourceText:
    """Return the source text of an expression, cut to 80 characters for a message."""
    return SourceText(node, 80)


def short_text_or(node: ast.AST, otherwise: str = "") -> object:
    """Return the short source text of an expression, or ``otherwise`` for another node."""
    return short_text(node) if isinstance(node, ast.expr) else otherwise


def last_name(node: ast.AST) -> str:
    """Return the last name of a name or an attribute, "" for other nodes."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def names_in(*nodes: ast.AST) -> set[str]:
    """Return all names in the nodes."""
    return {node.id for top in nodes for node in walk(top) if isinstance(node, ast.Name)}


def receiver_text(node: ast.AST) -> object:
    """Return the source text of the receiver of a method call, or ""."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return SourceText(node.func.value)
    return ""


def loop_text(loop: ast.For | ast.AsyncFor | ast.While) -> object:
    """Return the source text of the head of a loop."""
    if isinstance(loop, ast.While):
        return TextTemplate("while {}", short_text(loop.test))
    targets = loop.target.elts if isinstance(loop.target, ast.Tuple) else [loop.target]
    return TextTemplate(
        "for {} in {}", TextTemplate(", ".join(["{}"] * len(targets)), *map(short_text, targets)), short_text(loop.iter)
    )
