"""Moving averages of weights that a class keeps in low precision."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...protocol import events as e
from ...protocol.source_text import SourceText
from ...protocol.torch_api import DTYPES
from ..interpreter.imports import dotted_name
from ..interpreter.interpreter import HandlerTable, Interpreter
from ..project.module import Class
from ..project.syntax import walk
from .syntax_queries import find_nodes, last_name, receiver_of

_CASTS = {"half": "float16", "bfloat16": "bfloat16"}
_LOW = frozenset(_CASTS.values())
#: Functions and methods that copy weights, or a model with its weights.
_COPIES = frozenset(("deepcopy", "clone"))
#: In-place methods that decay an average.
_DECAYS = frozenset(("mul_", "lerp_"))

#: Methods that give the weights of a module, or another view of weights.
_VIEWS = frozenset(
    "parameters named_parameters buffers named_buffers state_dict items values detach view flatten".split()
)
#: Builtins that iterate over their arguments.
_ITERATORS = frozenset("zip enumerate list tuple iter reversed sorted dict".split())


def _report_low_averages(interp: Interpreter) -> None:
    module = interp.module
    if module.identifiers.isdisjoint(_COPIES):
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
    """Return True if a method updates the weights in an attribute as a moving average: it decays them.

    What a copied model computes is no weight: a teacher in low precision is not averaged.
    """
    for method in cls.methods.values():
        if method.name != "__init__":
            nodes = walk(method.node)
            held = _find_holders(nodes, name)
            if any(_is_decay(node, name, held) for node in nodes):
                return True
    return False


def _find_holders(nodes: list[ast.AST], name: str) -> frozenset[str]:
    """Return the variables of a method that hold the weights in an attribute, directly or as loop variables."""
    bindings: list[tuple[list[ast.expr], ast.expr]] = []
    for node in nodes:
        match node:
            case ast.Assign(targets=targets, value=value):
                bindings.append((targets, value))
            case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
                bindings.append(([target], value))
    held: frozenset[str] = frozenset()
    while True:
        bound = [target for targets, value in bindings if _holds_weights(value, name, held) for target in targets]
        found = held.union(each.id for target in bound for each in walk(target) if isinstance(each, ast.Name))
        if found == held:
            return held
        held = found


def _holds_weights(node: ast.expr, name: str, held: frozenset[str]) -> bool:
    """Return True if an expression holds the weights in an attribute, or one of the variables in ``held``."""
    match node:
        case ast.Name(id=variable):
            return variable in held
        case ast.Attribute(value=owner):
            return _attribute_name(node) == name or _holds_weights(owner, name, held)
        case ast.Subscript(value=owner):
            return _holds_weights(owner, name, held)
        case ast.Call(func=ast.Attribute(value=owner, attr=method)) if method in _VIEWS:
            return _holds_weights(owner, name, held)
        case ast.Call(func=ast.Name(id=function), args=args) if function in _ITERATORS:
            return any(_holds_weights(arg, name, held) for arg in args)
    return False


def _is_decay(node: ast.AST, name: str, held: frozenset[str]) -> bool:
    match node:
        case ast.AugAssign(op=ast.Mult(), target=target):
            return _holds_weights(target, name, held)
        case ast.Call(func=ast.Attribute(value=owner, attr=method)) if method in _DECAYS:
            return _holds_weights(owner, name, held)
        case ast.BinOp(left=ast.BinOp(op=ast.Mult()) as left, op=ast.Add(), right=ast.BinOp(op=ast.Mult()) as right):
            parts = (left.left, left.right, right.left, right.right)
            return any(_holds_weights(part, name, held) for part in parts)
    return False


def _attribute_name(node: ast.AST | None) -> str:
    """Return the name of an attribute of ``self``, or ""."""
    match node:
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return name
    return ""


def register(handlers: HandlerTable) -> None:
    handlers.file_end_listeners.append(_report_low_averages)
