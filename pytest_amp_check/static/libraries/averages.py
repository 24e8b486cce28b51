"""Moving averages of weights that a class keeps in low precision."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...protocol import events as e
from ...protocol.source_text import SourceText, find_access_path
from ...protocol.torch_api import DTYPES
from ..interpreter.imports import dotted_name
from ..interpreter.interpreter import HandlerTable, Interpreter
from ..project.module import Class
from ..project.syntax import walk
from .syntax_queries import callee_of, find_nodes, last_name, receiver_of

_CASTS = {"half": "float16", "bfloat16": "bfloat16"}
_LOW = frozenset(_CASTS.values())
#: Functions and methods that copy weights, or a model with its weights.
_COPIES = frozenset(("deepcopy", "clone"))
#: In-place methods that decay an average.
_DECAYS = frozenset(("mul_", "lerp_"))


def _report_low_averages(interp: Interpreter) -> None:
    module = interp.module
    if "deepcopy" not in module.identifiers and "clone" not in module.identifiers:
        return
    for cls in module.classes.values():
        for name, cast, dtype in _low_copies(interp, cls):
            if _is_averaged(cls, name):
                event = e.LowSum(interp.site_of(cast), average=True, names={"sum": SourceText(cast, 60)})
                event.dtype = dtype
                interp.emit_at(event)


def _low_copies(interp: Interpreter, cls: Class) -> Iterator[tuple[str, ast.Call, str]]:
    """Yield the attributes that hold copies of weights in a low dtype, each with the cast and the dtype."""
    for name, values in cls.assignments.items():
        calls = [(method, call) for method, value in values for call in find_nodes(value, ast.Call)]
        if not any(last_name(call.func) in _COPIES for _, call in calls):
            continue
        own = [
            (method, call)
            for method in cls.methods.values()
            for call in find_nodes(method.node, ast.Call)
            if _attribute_name(receiver_of(call)) == name
        ]
        if any(last_name(call.func) in ("float", "double") for _, call in own):
            continue
        for method, call in (*calls, *own):
            dtype = _cast_dtype(interp, call) if method.name == "__init__" else ""
            if dtype:
                yield name, call, dtype


def _cast_dtype(interp: Interpreter, call: ast.Call) -> str:
    """Return the low dtype to which a method call casts, or ""."""
    if receiver_of(call) is None:
        return ""
    method = last_name(call.func)
    if method in _CASTS and not call.args:
        return _CASTS[method]
    if method != "to":
        return ""
    given = (*call.args, *(keyword.value for keyword in call.keywords))
    named = (DTYPES.get(dotted_name(interp, value) or "", "") for value in given)
    return next((dtype for dtype in named if dtype in _LOW), "")


def _is_averaged(cls: Class, name: str) -> bool:
    """Return True if a method updates an attribute as a moving average: decays it, and adds a share of new weights."""
    return any(
        any(_attribute_name(node) == name for node in find_nodes(method.node, ast.Attribute))
        and any(map(_is_decay, walk(method.node)))
        for method in cls.methods.values()
        if method.name != "__init__"
    )


def _is_decay(node: ast.AST) -> bool:
    match node:
        case ast.AugAssign(op=ast.Mult()):
            return True
        case ast.Call():
            return last_name(callee_of(node)) in _DECAYS
        case ast.BinOp(left=ast.BinOp(op=ast.Mult()), op=ast.Add(), right=ast.BinOp(op=ast.Mult())):
            return True
    return False


def _attribute_name(node: ast.AST | None) -> str:
    """Return the name of an attribute of ``self``, or ""."""
    owner, _, name = (find_access_path(node) or "").rpartition(".") if isinstance(node, ast.Attribute) else ("", "", "")
    return name if owner == "self" else ""


def register(handlers: HandlerTable) -> None:
    handlers.file_end_listeners.append(_report_low_averages)
