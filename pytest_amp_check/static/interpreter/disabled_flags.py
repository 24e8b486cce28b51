"""Switches: settings that the code itself leaves off, so that it never runs as it stands what they guard.

``fp16 = False`` at the head of a script, ``self.amp = False`` in a constructor, ``dict(amp=False)``, or a default of
the function that the script calls once: people turn these on, and what is read must be right then, too.
"""

from __future__ import annotations

import ast
import re

from ..project.module import Function, Module
from ..project.syntax import children
from .interpreter import Interpreter
from .values import Const, Frame, MappingValue, UnknownValue, Value

#: What may run several times, or at any time.
_REPEATABLE_NODES = frozenset(
    (ast.For, ast.AsyncFor, ast.While, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
)
#: What binds no name but by a walrus, which nobody sets a switch with.
_UNBINDING_NODES = frozenset((ast.Call, ast.Attribute, ast.Compare, ast.BinOp, ast.Constant, ast.Dict, ast.JoinedStr))

#: Characters of an annotation, above which it is none: each place of a long line would be looked behind to its end.
MAX_ANNOTATION = 200


def flag_value(interp: Interpreter, node: ast.Assign, value: Value) -> Value:
    """The value that an assignment gives: that of a switch which is off may be either."""
    frame = interp.state.frame
    match node.targets:
        case [ast.Name(id=name)] if isinstance(value, MappingValue):
            off = [key for key, item in value.items.items() if _is_off(item) and isinstance(key, str)]
            if off and _bound_once(frame, name):
                for key in off:
                    if not _stores_item(frame.module, key):
                        value.items[key] = _unknown_flag(interp, node, key)
        case [ast.Name(id=name)] if isinstance(node.value, ast.Constant) and _is_off(value):
            if _bound_once(frame, name):
                return _unknown_flag(interp, node, name)
        case [ast.Attribute(attr=name)] if isinstance(node.value, ast.Constant) and _is_off(value):
            if frame.function is not None and frame.function.name == "__init__" and _stored_once(frame.module, name):
                return _unknown_flag(interp, node, name)
    return value


def default_value(interp: Interpreter, function: Function, name: str, default: ast.expr, value: Value) -> Value:
    """The default of a parameter: a switch, where the function is called at one place of its file alone."""
    if not isinstance(default, ast.Constant) or not _is_off(value) or function.cls is not None:
        return value
    # One place apart from where it is defined.
    return _unknown_flag(interp, default, name) if function.module.count_word(function.name) == 2 else value


def _is_off(value: Value) -> bool:
    return isinstance(value, Const) and value.value is False


def _unknown_flag(interp: Interpreter, node: ast.AST, name: str) -> UnknownValue:
    return interp.unknown_value(("switch", id(node), name), name)


def _bound_once(frame: Frame, name: str) -> bool:
    """Whether one assignment in a function or module binds a name, outside loops, and nothing else anywhere in it."""
    scope = frame.function.node if frame.function is not None else frame.module.tree
    known = frame.module.names_bound_once.get(scope)
    if known is None:
        known = frame.module.names_bound_once[scope] = _names_bound_once(scope)
    return name in known


def _names_bound_once(scope: ast.AST) -> frozenset[str]:
    bound: dict[str, int] = {}
    stack = [(scope, 1)]
    while stack:
        node, times = stack.pop()
        kind = type(node)
        if kind is ast.Name:
            if type(node.ctx) is not ast.Load:  # type: ignore[attr-defined]
                bound[node.id] = bound.get(node.id, 0) + times  # type: ignore[attr-defined]
        elif kind not in _UNBINDING_NODES:
            if kind in _REPEATABLE_NODES and node is not scope:
                times = 2
            stack.extend([(child, times) for child in children(node)])
    return frozenset(name for name, times in bound.items() if times == 1)


def _stores_item(module: Module, key: str) -> bool:
    """Whether a file seems to store an item under a key."""
    return re.search(rf"""\[["']{re.escape(key)}["']\]\s*[-+*/|&]?=(?!=)""", module.text) is not None


def _stored_once(module: Module, attribute: str) -> bool:
    """Whether a file seems to give objects an attribute at one place."""
    return len(re.findall(rf"\.{attribute}\b\s*(?:[-+*/|&,)]|:[^=\n]{{1,{MAX_ANNOTATION}}})?=(?!=)", module.text)) == 1
