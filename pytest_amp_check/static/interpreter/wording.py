"""The user's own words for what a program does."""

from __future__ import annotations

import ast

from ...protocol.words import Words


def wording(node: ast.AST) -> Words:
    """The words of an expression; for a call, those of what is called."""
    return Words(node.func if isinstance(node, ast.Call) else node)


def shortened(node: ast.AST) -> Words:
    """The words of an expression as far as they fit into a message."""
    return Words(node, 80)


def receiver_words(node: ast.AST) -> object:
    """The words of what a method is called on."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return Words(node.func.value)
    return ""
