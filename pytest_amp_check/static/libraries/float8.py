"""Training in float8 with torchao and TransformerEngine: the order of calls, and formats."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Sequence

from ...protocol import events as e
from ...protocol import torch_api
from ...protocol.source_text import SourceText, access_text
from ..interpreter.imports import dotted_name
from ..interpreter.interpreter import HandlerTable, Interpreter
from ..project.syntax import walk
from .syntax_queries import (
    constant_of_node,
    find_nodes,
    first_argument,
    iterate_scopes,
    keywords_of,
    last_name,
    receiver_of,
)

_CONVERTS = "convert_to_float8_training"
_COMPUTES_SCALES = "precompute_float8_dynamic_scale_for_fsdp"
_MXFP8, _HYBRID = "MXFP8BlockScaling", "HYBRID"
_FIRST = "is_first_microbatch"
_OPTIMIZER_NAME = re.compile(r"optim|^opts?$|_opts?$|^opt_", re.IGNORECASE)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


def _report_misused_float8(interp: Interpreter) -> None:
    module = interp.module
    names = module.identifiers
    if _CONVERTS in names:
        for nodes in iterate_scopes(module):
            _check_conversions(interp, [node for node in nodes if isinstance(node, ast.Call)])
    if _COMPUTES_SCALES in names:
        for nodes in iterate_scopes(module):
            _check_order_of_scales(interp, [node for node in nodes if isinstance(node, _LOOPS)])
        functions = [function.node for function in module.functions.values()]
        _check_order_of_scales(interp, [node for node in functions if isinstance(node, _FUNCTIONS)])
    calls = module.find_nodes(ast.Call) if _MXFP8 in names or _FIRST in module.text else []
    for call in calls:
        format_ = keywords_of(call).get("fp8_format")
        if (
            last_name(call.func) == _MXFP8
            and last_name(format_) == _HYBRID
            and _is_of(interp, call, "transformer_engine")
        ):
            _emit(interp, call, "format", {"call": SourceText(call.func)})
    _check_first_microbatches(interp, calls)


def _check_conversions(interp: Interpreter, calls: list[ast.Call]) -> None:
    """Report a conversion of a model that was compiled, sharded or given to an optimizer before."""
    for call in calls:
        model = keywords_of(call).get("module", first_argument(call))
        if last_name(call.func) != _CONVERTS or model is None or not _is_of(interp, call, "torchao"):
            continue
        text = access_text(model)
        earlier = [each for each in calls if (each.lineno, each.col_offset) < (call.lineno, call.col_offset)]
        for each in earlier:
            how = _early_use(interp, each, text)
            if how:
                _emit(interp, call, how, {"call": SourceText(call.func), "model": text, "early": SourceText(each.func)})
                break


def _early_use(interp: Interpreter, call: ast.Call, model: str) -> str:
    """Return what a call does with a model that must come after the conversion, or "" for another call."""
    entry = torch_api.find_entry(dotted_name(interp, call.func) or "")
    if entry is None:
        return ""
    given = keywords_of(call).get(entry.parameters[0] if entry.parameters else None, first_argument(call))
    if entry.role == torch_api.OPTIMIZER:
        is_model = last_name(given.func) == "parameters" if isinstance(given, ast.Call) else False
        held = receiver_of(given) if is_model else None
        return "late-optimizer" if held is not None and access_text(held) == model else ""
    if given is None or access_text(given) != model:
        return ""
    if entry.role == torch_api.COMPILE:
        return "late-compile"
    return "late-shard" if str(entry.attributes.get("wraps")).startswith("fsdp") else ""


def _check_order_of_scales(
    interp: Interpreter, scopes: Sequence[ast.For | ast.AsyncFor | ast.While | ast.FunctionDef | ast.AsyncFunctionDef]
) -> None:
    """Report scales that are computed from weights which the optimizer changes afterwards, in the same iteration.

    A function that runs a backward and a step is an iteration as well.
    """
    for scope in scopes:
        calls = [each for statement in scope.body for each in find_nodes(statement, ast.Call)]
        steps = [each.lineno for each in calls if _is_step(each)]
        backwards = [each.lineno for each in calls if last_name(each.func) == "backward"]
        first = 0 if isinstance(scope, _LOOPS) else min(backwards, default=sys.maxsize)
        for call in calls:
            if last_name(call.func) == _COMPUTES_SCALES and steps and first < call.lineno < min(steps):
                _emit(interp, call, "scales-early", {"call": SourceText(call.func)})


def _is_step(call: ast.Call) -> bool:
    return last_name(call.func) == "step" and bool(_OPTIMIZER_NAME.search(last_name(receiver_of(call))))


def _check_first_microbatches(interp: Interpreter, calls: list[ast.Call]) -> None:
    """Report a model that is never notified that its weights have changed, or only in the first micro-batch of all."""
    given = [(call, keywords_of(call)[_FIRST]) for call in calls if _FIRST in keywords_of(call)]
    if not given or "step" not in interp.module.identifiers:
        return
    call = given[0][0]
    if all(constant_of_node(value) is False for _, value in given):
        _emit(interp, call, "old-weights", {"call": SourceText(call.func)})
    names = {value.id for _, value in given if isinstance(value, ast.Name)}
    values = [value for _, value in given if not isinstance(value, ast.Name)]
    tree = interp.module.tree
    scopes: list[ast.AST] = [each for each in walk(tree) if isinstance(each, _FUNCTIONS)]
    for scope in (*scopes, tree):
        assigned = [
            each.value
            for each in find_nodes(scope, ast.Assign)
            if any(isinstance(target, ast.Name) and target.id in names for target in each.targets)
        ]
        inside = {id(each) for each in walk(scope)}
        for value in (*assigned, *(value for value in values if id(value) in inside)):
            if _is_true_once(scope, value):
                _emit(interp, value, "first-once", {"call": SourceText(call.func), "first": SourceText(value)})
                return


def _is_true_once(scope: ast.AST, value: ast.expr) -> bool:
    """Return True for a test that the counter of a loop with optimizer steps is 0, alone or as one of several."""
    if isinstance(value, ast.BoolOp) and isinstance(value.op, ast.And):
        return any(_is_true_once(scope, part) for part in value.values)
    match value:
        case ast.Compare(left=ast.Name(id=counter), ops=[ast.Eq()], comparators=[ast.Constant(value=0)]):
            return any(
                any(map(_is_step, find_nodes(loop, ast.Call)))
                for loop in find_nodes(scope, ast.For)
                if any(name.id == counter for name in find_nodes(loop.target, ast.Name))
            )
    return False


def _is_of(interp: Interpreter, call: ast.Call, package: str) -> bool:
    """Return True if a call is of a function of a package, or of a name that cannot be resolved."""
    name = dotted_name(interp, call.func)
    return name is None or name.partition(".")[0] == package or "." not in name


def _emit(interp: Interpreter, node: ast.expr, how: str, names: dict[str, object]) -> None:
    site = interp.site_of(node)
    if site.is_in_test():
        return  # A test compares formats.
    interp.detached_events[e.Float8, site.call_key] = e.Float8(site, how=how, names=names)


def register(handlers: HandlerTable) -> None:
    handlers.file_end_listeners.append(_report_misused_float8)
