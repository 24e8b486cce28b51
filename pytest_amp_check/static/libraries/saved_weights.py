"""Checkpoints for resuming that hold the weights in low precision: the float32 weights are lost."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ...protocol import events as e
from ...protocol.source_text import SourceText, access_text
from ..interpreter.interpreter import HandlerTable, Interpreter
from ..project.syntax import walk
from .syntax_queries import constant_of_node, find_nodes, iterate_scopes, last_name, receiver_of

_CASTS = {"half": "float16", "bfloat16": "bfloat16"}
_NAMES = {"float16": "float16", "half": "float16", "bfloat16": "bfloat16"}
#: Keys of a checkpoint, or of the object whose state is saved, that show that a run resumes from it.
_OPTIMIZER = re.compile(r"optim|(?:^|_)opt(?:s|$|_)", re.IGNORECASE)


def _report_low_checkpoints(interp: Interpreter) -> None:
    """Report casts of the weights in a dict that holds the state of an optimizer as well."""
    names = interp.module.identifiers
    if "state_dict" not in names or names.isdisjoint(_NAMES):
        return
    for nodes in iterate_scopes(interp.module):
        assigned = {
            target.id: node.value
            for node in nodes
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for saved in nodes:
            if isinstance(saved, ast.Dict) and _holds_optimizer_state(saved):
                for cast, dtype in _low_weights(saved, assigned):
                    site = interp.site_of(cast)
                    if not site.is_in_test():
                        event = e.LowParameter(site, how="saved", dtype=dtype, names={"call": SourceText(cast)})
                        interp.detached_events[e.LowParameter, site.call_key] = event


def _holds_optimizer_state(saved: ast.Dict) -> bool:
    """Return True if a dict has the state of an optimizer."""
    for key, value in zip(saved.keys, saved.values, strict=True):
        if isinstance(value, ast.Call) and last_name(value.func) == "state_dict":
            named = f"{constant_of_node(key)} {access_text(receiver_of(value))}"
            if any(map(_OPTIMIZER.search, named.split())):
                return True
    return False


def _low_weights(saved: ast.Dict, assigned: dict[str, ast.expr]) -> Iterator[tuple[ast.Call, str]]:
    """Yield the casts to a low dtype of the state of a model in a dict, one for each entry."""
    for key, value in zip(saved.keys, saved.values, strict=True):
        if _OPTIMIZER.search(str(constant_of_node(key))):
            continue
        state = assigned.get(value.id, value) if isinstance(value, ast.Name) else value
        calls = find_nodes(state, ast.Call)
        if any(last_name(call.func) in ("state_dict", "named_parameters", "deepcopy") for call in calls):
            casts = ((call, _cast_dtype(call)) for call in calls)
            yield from [pair for pair in casts if pair[1]][:1]


def _cast_dtype(call: ast.Call) -> str:
    """Return the low dtype to which a call casts, or ""."""
    name = last_name(call.func)
    if name in _CASTS and not call.args:
        return _CASTS[name]
    if name != "to":
        return ""
    given = (
        part for argument in (*call.args, *(keyword.value for keyword in call.keywords)) for part in walk(argument)
    )
    return next(
        (_NAMES[last_name(part)] for part in given if isinstance(part, ast.Attribute) and part.attr in _NAMES), ""
    )


def register(handlers: HandlerTable) -> None:
    handlers.file_end_listeners.append(_report_low_checkpoints)
