"""Modules that are sharded or replicated: which hold shards of their gradients, and which average them."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial

from ...protocol import torch_api
from ..interpreter.imports import dotted_name
from ..interpreter.interpreter import Interpreter
from ..interpreter.values import ParamsValue, Value
from .arguments import items_of
from .syntax_queries import find_nodes, last_name, receiver_of


def has_local_shards(interp: Interpreter, keys: frozenset[int] | None, handles_shards: Callable[[], bool]) -> bool:
    """Whether some of these modules hold local shards here.

    ``aware`` asks whether the file shows that it knows what to do with shards: then it must be plain that it does
    not do so here.
    """
    mine = frozenset(interp.active_guards())
    for key in interp.program.with_submodules(keys) if keys else ():
        under = interp.program.objects[key].attributes.get("wrapped", {}).get("fsdp1")
        if (
            under is None
            or any((test, not truth) in mine for test, truth in under)
            or _is_known_unsharded(interp, mine)
        ):
            continue
        if (under and under <= mine) or not handles_shards():
            return True
    return False


def _is_known_unsharded(interp: Interpreter, guards: frozenset[tuple[int, bool]]) -> bool:
    """Whether a test has shown that a module is not wrapped in FSDP."""
    for key, truth in guards:
        question = interp.predicates.question_of(key)
        if not truth and isinstance(question, tuple) and question[0] == "isinstance":
            entry = torch_api.find_entry(str(question[2]))
            if entry is not None and entry.attributes.get("wraps") == "fsdp1":
                return True
    return False


def is_local_norm(interp: Interpreter, params: Value | None) -> bool:
    """Whether the norm of these parameters is that of one shard alone."""
    parts = [part for part in (params, *items_of(params)) if isinstance(part, ParamsValue)]
    modules: frozenset[int] = frozenset().union(*(part.modules or () for part in parts))
    return has_local_shards(interp, modules, partial(_clips_sharded_module, interp))


def _clips_sharded_module(interp: Interpreter) -> bool:
    """Whether something in this file clips its own gradients, as a module that is sharded does."""
    for call in find_nodes(interp.module.tree, ast.Call):
        of = receiver_of(call) if last_name(call.func) == "clip_grad_norm_" else None
        if of is not None and not (dotted_name(interp, of) or "").startswith("torch."):
            return True
    return False
