"""Sharded or replicated modules: modules with local gradient shards, and modules that average gradients."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import partial

from ...protocol import events as e
from ...protocol import torch_api
from ...protocol.sites import Site, TraceFacts
from ...protocol.tracked_objects import TrackedObject
from ..interpreter.imports import dotted_name
from ..interpreter.interpreter import Interpreter
from ..interpreter.source_text import expression_text
from ..interpreter.values.gradients import ParamsValue
from ..interpreter.values.value import Value
from ..project.module import Class
from ..project.syntax import tail_name, walk
from .arguments import items_of
from .syntax_queries import callee_of, constant_of_node, keywords_of, last_name, receiver_of


def has_local_shards(interp: Interpreter, keys: frozenset[int] | None, handles_shards: Callable[[], bool]) -> bool:
    """Return True if some of the modules have local shards on this path.

    ``handles_shards`` returns True if the file shows knowledge of shards. In this case, only a path that is definitely
    wrapped counts.
    """
    mine = frozenset(interp.active_guards())
    for key in interp.program.with_submodules(keys) if keys else ():
        under = interp.program.objects[key].attributes.wrappers.get("fsdp1")
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
    """Return True if an ``isinstance`` predicate on the path excludes FSDP."""
    for key, truth in guards:
        question = interp.predicates.question_of(key)
        if not truth and isinstance(question, tuple) and question[0] == "isinstance":
            entry = torch_api.find_entry(str(question[2]))
            if entry is not None and entry.attributes.get("wraps") == "fsdp1":
                return True
    return False


def is_local_norm(interp: Interpreter, params: Value | None) -> bool:
    """Return True if the norm of the parameters covers the local shard only."""
    return has_local_shards(interp, _modules_of(params), partial(_clips_sharded_module, interp))


def trace_sharding(interp: Interpreter, params: Value | None) -> TraceFacts:
    """Return where the module of some parameters is sharded, for a trace."""
    keys = interp.program.with_submodules(_modules_of(params))
    sites = [interp.program.objects[key].attributes.sharding_site for key in sorted(keys)]
    return tuple((site, "the model is sharded") for site in sites if site is not None)[:1]


def report_late_sharding(interp: Interpreter, module: TrackedObject, node: ast.AST) -> None:
    """Report the optimizers of a module that were constructed before FSDP replaces its parameters."""
    given = keywords_of(node) if isinstance(node, ast.Call) else {}
    if constant_of_node(given.get("use_orig_params")) is True:
        return
    here = interp.site_of(node)
    for optimizer in interp.program.objects:
        if optimizer.role != "optimizer":
            continue
        if module.key not in (optimizer.attributes.owns or optimizer.attributes.given_modules):
            continue
        made = _earlier_frame(optimizer.site, here) if optimizer.attributes.constructed else None
        if made is not None and not here.is_in_test():
            names = {
                "optimizer": optimizer.name,
                "call": expression_text(callee_of(node) or node),
                "module": module.name,
            }
            event = e.LateSharding(made, module.key, optimizer.key, names=names)
            interp.detached_events[e.LateSharding, made.call_key] = event


def _earlier_frame(made: Site | None, here: Site) -> Site | None:
    """Return the call before ``here`` by which the code around both has constructed an object, or None."""
    if made is None:
        return None
    for one, other in zip(made.list_frames(), here.list_frames(), strict=False):
        if one.call_key != other.call_key:
            is_before = (one.path, one.function) == (other.path, other.function) and one.line < other.line
            return one if is_before else None
    return None


def _modules_of(params: Value | None) -> frozenset[int]:
    parts = [part for part in (params, *items_of(params)) if isinstance(part, ParamsValue)]
    return frozenset().union(*(part.modules or () for part in parts))


def _clips_sharded_module(interp: Interpreter) -> bool:
    """Return True if an object in this file clips its own gradients, like a sharded module does."""
    for call in interp.module.find_nodes(ast.Call):
        of = receiver_of(call) if last_name(call.func) == "clip_grad_norm_" else None
        if of is not None and not (dotted_name(interp, of) or "").startswith("torch."):
            return True
    return False


#: Names of functions and classes that shard a module.
_SHARDING_CALL = re.compile(r"FSDP|FullyShardedDataParallel|fully_shard|(?:prepare|wrap|apply|shard)_\w*fsdp\w*")


class _ShardingCalls(dict[Class, str]):
    """Call by which a class shards a module, "" for a class without such a call."""

    def __missing__(self, cls: Class) -> str:
        is_possible = any(map(_SHARDING_CALL.fullmatch, cls.module.identifiers))
        nodes = walk(cls.node) if is_possible else []
        names = [tail_name(node.func) for node in nodes if isinstance(node, ast.Call)]
        made = self[cls] = next((name for name in names if _SHARDING_CALL.fullmatch(name)), "")
        return made


def find_sharding_in_class(interp: Interpreter) -> str:
    """Return the call by which another method of the current class shards a module, or "".

    A file that knows ShardedGradScaler chooses between both scalers.
    """
    cls, module = interp.state.frame.cls, interp.state.frame.module
    if cls is None or "ShardedGradScaler" in module.identifiers:
        return ""
    return interp.file_data(_ShardingCalls)[cls]
