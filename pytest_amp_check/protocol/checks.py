"""Manual checks in a program, recognized by source text."""

from __future__ import annotations

import ast

from .source_text import find_access_path

#: Functions of torch, numpy and math that test for finite numbers.
ASKING = frozenset({"isnan", "isinf", "isfinite", "isposinf", "isneginf"})
_EXITS = frozenset({"sys.exit", "exit", "quit", "os._exit"})


def ends_program(statement: ast.stmt) -> bool:
    """Return True if a statement ends the program: raises or exits."""
    if isinstance(statement, ast.Raise):
        return True
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and find_access_path(call.func) in _EXITS


def raises_on_nonfinite(node: ast.AST) -> bool:
    """Return True if a statement ends the program on non-finite gradients, or on a non-finite gradient norm."""
    if isinstance(node, ast.If):
        if not any(ends_program(statement) for statement in (*node.body[-1:], *node.orelse[-1:])):
            return False
    elif not isinstance(node, ast.Assert):
        return False
    names = [
        part.id if isinstance(part, ast.Name) else part.attr
        for part in ast.walk(node.test)
        if isinstance(part, (ast.Name, ast.Attribute))
    ]
    words = " ".join(names).lower()
    return not ASKING.isdisjoint(names) and ("grad" in words or "norm" in words) and "loss" not in words


def find_finite_call(node: ast.If | ast.Assert) -> ast.expr:
    """Return the function that such a statement calls to test for finite values, or the condition if there is none."""
    calls = [part.func for part in ast.walk(node.test) if isinstance(part, ast.Call)]
    found = (call for call in calls if not ASKING.isdisjoint((getattr(call, "attr", ""), getattr(call, "id", ""))))
    return next(found, node.test)
