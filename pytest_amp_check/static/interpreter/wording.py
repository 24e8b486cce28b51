"""The user's own words for what a program does."""

from __future__ import annotations

import ast

from ...protocol.words import Words
from ..project.syntax import walk


class Phrase:
    """Words around those of the user, put together when asked for."""

    __slots__ = ("_form", "_parts")

    def __init__(self, form: str, *parts: object) -> None:
        self._form = form
        self._parts = parts

    def __str__(self) -> str:
        return self._form.format(*self._parts)


def wording(node: ast.AST) -> Words:
    """The words of an expression; for a call, those of what is called."""
    return Words(node.func if isinstance(node, ast.Call) else node)


def shortened(node: ast.AST) -> Words:
    """The words of an expression as far as they fit into a message."""
    return Words(node, 80)


def spelled(node: ast.AST, otherwise: str = "") -> object:
    """The same of what may be no expression, which goes by another word."""
    return shortened(node) if isinstance(node, ast.expr) else otherwise


def last_name(node: ast.AST) -> str:
    """The last name in a name or an attribute, "" in everything else."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def names_in(*nodes: ast.AST) -> set[str]:
    """The names that are written anywhere in nodes."""
    return {node.id for top in nodes for node in walk(top) if isinstance(node, ast.Name)}


def receiver_words(node: ast.AST) -> object:
    """The words of what a method is called on."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return Words(node.func.value)
    return ""
