"""Disabled flags: options that the code itself leaves off, so that the guarded code never runs unchanged.

Examples are ``fp16 = False`` at the top of a script, ``self.amp = False`` in a constructor and ``dict(amp=False)``.
Another example is a default of a function that the script calls once. Users turn such flags on, and the guarded code
must be right then.
"""

from __future__ import annotations

import ast
import re

from ..project.assignments import stored_names
from ..project.module import Function, Module
from ..project.syntax import children
from .interpreter import Interpreter
from .values.containers import MappingValue, SequenceValue
from .values.definitions import Frame
from .values.value import Const, UnknownValue, Value

#: Nodes whose body may run several times, or at any time.
_REPEATABLE_NODES = frozenset(
    (ast.For, ast.AsyncFor, ast.While, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
)
#: Nodes that bind a name only by a walrus; no code sets a flag by a walrus.
_UNBINDING_NODES = frozenset((ast.Call, ast.Attribute, ast.Compare, ast.BinOp, ast.Constant, ast.Dict, ast.JoinedStr))

#: Maximum length of an annotation, in characters. Without the limit, the search scans a long line from each position.
MAX_ANNOTATION = 200


def flag_value(interp: Interpreter, node: ast.Assign, value: Value) -> Value:
    """Return the assigned value; a disabled flag becomes an unknown value."""
    frame = interp.state.frame
    if isinstance(value, (MappingValue, SequenceValue)) and isinstance(node.targets[0], ast.Name):
        _open_shared_items(interp, node, node.targets[0].id, value)
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
        case [ast.Attribute(value=ast.Name(id=owner), attr=name)] if isinstance(node.value, ast.Constant):
            function = frame.function
            is_own = function is not None and function.name == "__init__" and owner == function.receiver_name()
            if is_own and _is_off(value) and _stored_once(frame.module, name):
                return _unknown_flag(interp, node, name)
    return value


class _ItemsStoredByFunctions(dict[Module, dict[tuple[str, str | int], list[Function]]]):
    """Functions of a module that store an item under a known key in a variable, by the variable's name and the key."""

    def __missing__(self, module: Module) -> dict[tuple[str, str | int], list[Function]]:
        made = self[module] = {}
        for function in module.functions.values():
            body = function.node.body
            for item in stored_names(body).items if isinstance(body, list) else ():
                made.setdefault(item, []).append(function)
        return made


def _open_shared_items(interp: Interpreter, node: ast.Assign, name: str, value: MappingValue | SequenceValue) -> None:
    """Let the constants that other functions replace in a new dict or list be unknown: a state that they share."""
    frame = interp.state.frame
    items = value.items.items() if isinstance(value, MappingValue) else enumerate(value.items)
    constants = [key for key, item in items if isinstance(item, Const) and isinstance(key, (str, int))]
    # Without a boundary before the name, which would make the search ten times slower.
    if not constants or not re.search(
        rf"{name}(?:\[[^][\n]{{1,80}}\]\s{{0,8}}[-+*/|&]?=(?!=)|\.update\()", frame.module.text
    ):
        return
    stored = interp.file_data(_ItemsStoredByFunctions)[frame.module]
    own = None if frame.function is None else frame.function.node
    for key in constants:
        inner = (each for each in stored.get((name, key), ()) if each is not frame.function)
        if any(own is None or own.lineno <= each.node.lineno <= (own.end_lineno or 0) for each in inner):
            value.set_item(key, interp.unknown_value(("shared", id(node), key), f"{name}[{key!r}]"))


def default_value(interp: Interpreter, function: Function, name: str, default: ast.expr, value: Value) -> Value:
    """Return the default of a parameter; unknown for a disabled flag of a function that the file calls once."""
    if not isinstance(default, ast.Constant) or not _is_off(value) or function.cls is not None:
        return value
    return _unknown_flag(interp, default, name) if _is_called_once(function) else value


def _is_called_once(function: Function) -> bool:
    """Return True if one expression of the file names a function. Methods of the same name are others."""
    if function.module.count_word(function.name) == 2:  # the definition and the call
        return True
    return sum(node.id == function.name for node in function.module.find_nodes(ast.Name)) == 1


def _is_off(value: Value) -> bool:
    return isinstance(value, Const) and value.value is False


def _unknown_flag(interp: Interpreter, node: ast.AST, name: str) -> UnknownValue:
    return interp.unknown_value(("switch", id(node), name), name)


def _bound_once(frame: Frame, name: str) -> bool:
    """Return True if exactly one binding of a name exists in a function or module, outside loops."""
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
    """Return True if the text of a file seems to store an item under a key."""
    return re.search(rf"""\[["']{re.escape(key)}["']\]\s*[-+*/|&]?=(?!=)""", module.text) is not None


def _stored_once(module: Module, attribute: str) -> bool:
    """Return True if the text of a file seems to assign an attribute at exactly one location."""
    return len(re.findall(rf"\.{attribute}\b\s*(?:[-+*/|&,)]|:[^=\n]{{1,{MAX_ANNOTATION}}})?=(?!=)", module.text)) == 1


class _AssignedAttributes:
    """Names of the attributes that a file assigns; None before the search."""

    def __init__(self) -> None:
        self.names: frozenset[str] | None = None


def assigns_attribute(interp: Interpreter, attribute: str, owner: str) -> bool:
    """Return True if this file assigns an attribute, or seems to set attributes of the owner by name."""
    known = interp.file_data(_AssignedAttributes)
    if known.names is None:
        stored = (node for node in interp.module.nodes if isinstance(node, ast.Attribute))
        known.names = frozenset(node.attr for node in stored if isinstance(node.ctx, ast.Store))
    by_name = rf"\bsetattr\(\s{{0,8}}{owner}\b|\b{owner}\.__dict__"
    return attribute in known.names or re.search(by_name, interp.module.text) is not None
