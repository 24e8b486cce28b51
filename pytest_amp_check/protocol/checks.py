"""Checks that a program makes by hand, as far as their source tells what they are about."""

from __future__ import annotations

import ast

#: What asks whether a number is finite, in torch, numpy and math.
_ASKING = frozenset({"isnan", "isinf", "isfinite", "isposinf", "isneginf"})


def refuses_nonfinite(node: ast.AST) -> bool:
    """Whether a statement raises where gradients, or a norm of them, are not finite."""
    if isinstance(node, ast.If):
        if not (node.body and isinstance(node.body[-1], ast.Raise)):
            return False
    elif not isinstance(node, ast.Assert):
        return False
    names = [
        part.id if isinstance(part, ast.Name) else part.attr
        for part in ast.walk(node.test)
        if isinstance(part, (ast.Name, ast.Attribute))
    ]
    words = " ".join(names).lower()
    return not _ASKING.isdisjoint(names) and ("grad" in words or "norm" in words) and "loss" not in words


def asking(node: ast.If | ast.Assert) -> ast.AST:
    """What such a statement calls to ask whether something is finite."""
    calls = [part.func for part in ast.walk(node.test) if isinstance(part, ast.Call)]
    found = (call for call in calls if not _ASKING.isdisjoint((getattr(call, "attr", ""), getattr(call, "id", ""))))
    return next(found, node.test)
