"""Modules that are sharded or replicated: which hold shards of their gradients, and which average them."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial

from ...protocol import surface
from ..interpreter.imports import dotted_name
from ..interpreter.interpreter import Interpreter
from ..interpreter.values import Params, Value
from .arguments import items_of
from .written import all_of, last_name, receiver


def sharded(at: Interpreter, keys: frozenset[int] | None, aware: Callable[[], bool]) -> bool:
    """Whether some of these modules hold local shards here.

    ``aware`` asks whether the file shows that it knows what to do with shards: then it must be plain that it does
    not do so here.
    """
    mine = frozenset(at.guards())
    for key in at.program.whole(keys) if keys else ():
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
    parts = [part for part in (params, *items_of(params)) if isinstance(part, Params)]
    modules: frozenset[int] = frozenset().union(*(part.modules or () for part in parts))
    return sharded(at, modules, partial(_clips_shards, at))


def _clips_shards(at: Interpreter) -> bool:
    """Whether something in this file clips its own gradients, as a module that is sharded does."""
    for call in all_of(at.module.tree, ast.Call):
        of = receiver(call) if last_name(call.func) == "clip_grad_norm_" else None
        if of is not None and not (dotted_name(at, of) or "").startswith("torch."):
            return True
    return False
