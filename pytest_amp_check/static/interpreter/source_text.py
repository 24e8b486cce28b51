"""The user's own words for what a program does."""

from __future__ import annotations

import ast

from ...protocol.source_text import SourceText
from ..project.syntax import walk


class TextTemplate:
    """Words around those of the user, put together when asked for."""

    __slots__ = ("_arguments", "_format")

    def __init__(self, form: str, *parts: object) -> None:
        self._format = form
        self._arguments = parts

    def __str__(self) -> str:
        return self._format.format(*self._arguments)


def expression_text(node: ast.AST) -> SourceText:
    """The words of an expression; for a call, those of what is called."""
    return SourceText(node.func if isinstance(node, ast.Call) else node)


def short_text(node: ast.AST) -> SourceText:
    """The words of an expression as far as they fit into a message."""
    return SourceText(node, 80)


def short_text_or(node: ast.AST, otherwise: str = "") -> object:
    """The same of what may be no expression, which goes by another word."""
    return short_text(node) if isinstance(node, ast.expr) else otherwise


def last_name(node: ast.AST) -> str:
    """The last name in a name or an attribute, "" in everything else."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def names_in(*nodes: ast.AST) -> set[str]:
    """The names that are written anywhere in nodes."""
    return {node.id for top in nodes for node in walk(top) if isinstance(node, ast.Name)}


def receiver_text(node: ast.AST) -> object:
    """The words of what a method is called on."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return SourceText(node.func.value)
    return ""
