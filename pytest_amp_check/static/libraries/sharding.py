"""Modules that are sharded or replicated: which hold shards of their gradients, and which average them."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial

from ...protocol import surface
from ..interpreter.imports import dotted_name
from ..interpreter.interpreter import Interpreter
from ..interpreter.values import Params, Sequence, Value
from ..project.syntax import walk
from .losses import whole


def sharded(at: Interpreter, keys: frozenset[int] | None, aware: Callable[[], bool]) -> bool:
    """Whether some of these modules hold local shards here.

    ``aware`` asks whether the file shows that it knows what to do with shards: then it must be plain that it does
    not do so here.
    """
    mine = frozenset(at.guards())
    for key in whole(at, keys) if keys else ():
        under = at.program.things[key].facts.get("wrapped", {}).get("fsdp1")
        if under is None or any((test, not truth) in mine for test, truth in under) or _told_whole(at, mine):
            continue
        if (under and under <= mine) or not aware():
            return True
    return False


def _told_whole(at: Interpreter, guards: frozenset[tuple[int, bool]]) -> bool:
    """Whether a test has shown that a module is not wrapped in FSDP."""
    for key, truth in guards:
        question = at.tests.question(key)
        if not truth and isinstance(question, tuple) and question[0] == "isinstance":
            entry = surface.lookup(str(question[2]))
            if entry is not None and entry.facts.get("wraps") == "fsdp1":
                return True
    return False


def local_clip(at: Interpreter, params: Value | None) -> bool:
    """Whether the norm of these parameters is that of one shard alone."""
    modules = params.modules if isinstance(params, Params) else None
    if isinstance(params, Sequence):
        parts = [item.modules for item in params.items if isinstance(item, Params) and item.modules]
        modules = frozenset().union(*parts)
    return sharded(at, modules, partial(_clips_shards, at))


def _clips_shards(at: Interpreter) -> bool:
    """Whether something in this file clips its own gradients, as a module that is sharded does."""
    for node in walk(at.module.tree):
        func = node.func if isinstance(node, ast.Call) else None
        if isinstance(func, ast.Attribute) and func.attr == "clip_grad_norm_":
            named = dotted_name(at, func.value)
            if named is None or not named.startswith("torch."):
                return True
    return False
