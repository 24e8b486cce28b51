"""Arguments of functions of torch, bound to their parameters."""

from __future__ import annotations

import ast

from ...protocol import events as e
from ...protocol import surface
from ...protocol.events import Symbol
from ...protocol.words import Words
from ..interpreter.interpreter import Interpreter
from ..interpreter.values import Args, Const, Keywords, Named, Ref, Value


def bound_arguments(entry: surface.Entry, args: Args, keywords: Keywords) -> tuple[dict[str, Value], int]:
    """Arguments bound to an entry's parameters, and how many did not bind."""
    bound = dict(zip(entry.parameters, args, strict=False))
    bound.update(keywords)
    return bound, max(0, len(args) - len(entry.parameters))


def plain(at: Interpreter, value: Value) -> object:
    """An argument as the protocol's facts hold it: a constant, or a name."""
    if isinstance(value, Const):
        return value.value
    if isinstance(value, Named):
        return Symbol(surface.canonical(value.name))
    if isinstance(value, Ref) and value.role == "device":
        return Symbol("torch.device()")
    return e.UNKNOWN


def words_of(keyword: str, node: ast.AST) -> object:
    if isinstance(node, ast.Call):
        for item in node.keywords:
            if item.arg == keyword:
                return Words(item.value)
    return ""
