"""Switches: settings that the code itself leaves off, so that it never runs as it stands what they guard.

``fp16 = False`` at the head of a script, ``self.amp = False`` in a constructor, ``dict(amp=False)``, or a default of
the function that the script calls once: people turn these on, and what is read must be right then, too.
"""

from __future__ import annotations

import ast

from ..project.module import Function, Module
from ..project.syntax import children, walk
from .interpreter import Interpreter
from .values import Const, Mapping, Opaque, Value

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def switched(at: Interpreter, node: ast.Assign, value: Value) -> Value:
    """The value that an assignment gives: that of a switch which is off may be either."""
    frame = at.state.frame
    match node.targets:
        case [ast.Name(id=name)] if _is_off(value) or isinstance(value, Mapping):
            scope = frame.function.node if frame.function is not None else frame.module.tree
            if name not in _bound_once(frame.module, scope):
                return value
            if isinstance(value, Mapping):
                _switch_items(at, value, frame.module, node)
            elif isinstance(node.value, ast.Constant):
                return _switch(at, node, name)
        case [ast.Attribute(attr=name)] if isinstance(node.value, ast.Constant) and _is_off(value):
            if frame.function is not None and frame.function.name == "__init__" and _stored_once(frame.module, name):
                return _switch(at, node, name)
    return value


def default_of(at: Interpreter, function: Function, name: str, default: ast.expr, value: Value) -> Value:
    """The default of a parameter: a switch, where the function is called at one place of its file alone."""
    if not isinstance(default, ast.Constant) or not _is_off(value) or function.cls is not None:
        return value
    return _switch(at, default, name) if _named_once(function.module, function.name) else value


def _is_off(value: Value) -> bool:
    return isinstance(value, Const) and value.value is False


def _switch(at: Interpreter, place: ast.AST, name: str) -> Opaque:
    return at.opaque(("switch", id(place), name), name)


def _switch_items(at: Interpreter, value: Mapping, module: Module, node: ast.Assign) -> None:
    written = module.switches.setdefault("items", frozenset(_keys_written(module.tree)))
    for key, item in value.items.items():
        if _is_off(item) and isinstance(key, str) and key not in written:
            value.items[key] = _switch(at, node, key)


def _keys_written(tree: ast.AST) -> list[str]:
    """Keys under which items are stored."""
    return [
        node.slice.value
        for node in walk(tree)
        if isinstance(node, ast.Subscript)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.slice, ast.Constant)
        and isinstance(node.slice.value, str)
    ]


def _bound_once(module: Module, scope: ast.AST) -> frozenset[str]:
    """Names that one assignment in a function or module binds, outside loops, and nothing else anywhere in it."""
    known = module.switches.get(scope)
    if known is None:
        known = module.switches[scope] = _look_for_names(scope)
    return known


def _look_for_names(scope: ast.AST) -> frozenset[str]:
    bound: dict[str, int] = {}
    stack = [(scope, 1)]
    while stack:
        node, times = stack.pop()
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound[node.id] = bound.get(node.id, 0) + times
        if node is not scope and isinstance(node, (*_LOOPS, *_SCOPES)):
            times = 2
        stack.extend((child, times) for child in children(node))
    return frozenset(name for name, times in bound.items() if times == 1)


def _stored_once(module: Module, attribute: str) -> bool:
    """Whether one assignment in a file gives objects an attribute."""
    once = module.switches.get("attributes")
    if once is None:
        stored = [n.attr for n in walk(module.tree) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)]
        once = module.switches["attributes"] = _single(stored)
    return attribute in once


def _named_once(module: Module, function: str) -> bool:
    """Whether a file names a function at one place, apart from where it defines it."""
    once = module.switches.get("names")
    if once is None:
        once = module.switches["names"] = _single([n.id for n in walk(module.tree) if isinstance(n, ast.Name)])
    return function in once


def _single(names: list[str]) -> frozenset[str]:
    seen: set[str] = set()
    again: set[str] = set()
    for name in names:
        (again if name in seen else seen).add(name)
    return frozenset(seen - again)
