"""Dtypes that the default of a setting gives: of a parameter, a configuration class or a command-line argument."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ...protocol.events import UNKNOWN
from ...protocol.source_text import access_text
from ..configuration.formats import LOW_DTYPES
from ..interpreter.conditions import Formula
from ..interpreter.functions import bind_unknown_arguments
from ..interpreter.imports import globals_of, load_any_import
from ..interpreter.interpreter import Interpreter
from ..interpreter.values.definitions import ClassValue, ExternalName, Frame, Instance
from ..interpreter.values.value import UnknownValue, Value
from ..project.module import Class, Function, Module
from ..project.syntax import tail_name
from .loaded_settings import find_loaded_setting
from .syntax_queries import assigned_values, constant_of_node, keywords_of, last_name

#: Maximum number of variables and attributes that lead to the default of a setting.
MAX_STEPS = 4


def find_default_dtypes(interp: Interpreter, node: ast.expr | None) -> list[tuple[str, Formula]]:
    """Return the low dtype that the default of a setting gives an expression, with the condition of the default.

    The dtype of an autocast region is a low one, whatever chooses it.
    """
    default = None if node is None else _find_default(interp, node, MAX_STEPS)
    dtype = _dtype_of(default)
    if node is None or default is node:
        return []
    if not dtype and default is None and _is_dtype_of_region(interp, node):
        dtype = "bfloat16"
    if not dtype:
        return []
    text = f"{access_text(_setting_of(node)) or access_text(node)} is {dtype}"
    return [(dtype, interp.predicate_formula(("default dtype", text), text, frozenset()))]


def _is_dtype_of_region(interp: Interpreter, node: ast.expr) -> bool:
    """Return True if the code also gives an expression to autocast as the dtype."""
    text, function = access_text(node), interp.state.frame.function
    if not text or "autocast" not in interp.state.frame.module.identifiers:
        return False
    # The same name in another function may be another variable.
    regions = (
        _autocast_calls(function.find_nodes(ast.Call))
        if isinstance(node, ast.Name) and function is not None
        else interp.file_data(_Regions)[interp.state.frame.module]
    )
    given = [keywords_of(call).get("dtype") or (call.args[1] if len(call.args) > 1 else None) for call in regions]
    text = text.removeprefix("self.")
    return any(each is not None and access_text(each).removeprefix("self.") == text for each in given)


class _Regions(dict[Module, list[ast.Call]]):
    """Calls of autocast in a module."""

    def __missing__(self, module: Module) -> list[ast.Call]:
        made = self[module] = _autocast_calls(module.find_nodes(ast.Call))
        return made


def _autocast_calls(calls: Iterable[ast.Call]) -> list[ast.Call]:
    return [call for call in calls if last_name(call.func) == "autocast"]


def find_default(interp: Interpreter, node: ast.expr) -> ast.expr | None:
    """Return the expression of the default that a setting gives an expression, or None."""
    return _find_default(interp, node, MAX_STEPS)


def _setting_of(node: ast.expr) -> ast.expr:
    """Return the setting in ``getattr(torch, setting)``, or the expression itself."""
    match node:
        case ast.Call(func=ast.Name(id="getattr"), args=[_, setting, *_]):
            return setting
    return node


def _dtype_of(node: ast.expr | None) -> str:
    """Return the low dtype that an expression names, as an attribute of torch or as a text, or ""."""
    if isinstance(node, ast.Constant):
        return LOW_DTYPES.get(node.value, "") if isinstance(node.value, str) else ""
    return LOW_DTYPES.get(last_name(node), "") if isinstance(node, ast.Attribute) else ""


def _find_default(interp: Interpreter, node: ast.expr, steps: int) -> ast.expr | None:
    """Return the expression of the default that leads to the value of an expression, or None."""
    if steps == 0 or isinstance(node, ast.Constant):
        return node
    match node:
        case ast.Call(func=ast.Name(id="getattr"), args=[ast.Name(id="torch"), setting, *_]):
            return _find_default(interp, setting, steps - 1)
        case ast.Name(id=name):
            return _default_of_variable(interp, name, steps)
        case ast.Attribute(value=ast.Name(id="self"), attr=name) if _is_assigned_once(interp, name):
            return _default_of_own_attribute(interp, name, steps)
        case ast.Attribute(value=owner, attr=name):
            loaded = find_loaded_setting(interp, node)
            cls = _class_of(interp, owner) if loaded is None else None
            default = loaded if cls is None else _default_of_field(cls, name)
            return default or _default_of_argument(interp, owner, name)
        case ast.Subscript(value=ast.Name(id=table), slice=setting):
            return find_loaded_setting(interp, node) or _default_of_entry(interp, table, setting, steps)
        case ast.Subscript() | ast.Call():
            return find_loaded_setting(interp, node)
    return None


def _is_assigned_once(interp: Interpreter, name: str) -> bool:
    cls = interp.state.frame.cls
    return cls is not None and len(cls.assignments.get(name, ())) == 1


def _default_of_own_attribute(interp: Interpreter, name: str, steps: int) -> ast.expr | None:
    """Return the default that leads to the only value that a method assigns to an attribute of the object."""
    outer = interp.state.frame
    assert outer.cls is not None
    [(method, value)] = outer.cls.assignments[name]
    # The parameters of the method are not those of the current one.
    frame = interp.state.frame = Frame(method, globals_of(interp, method.module), None)
    frame.receiver, frame.cls = outer.receiver, outer.cls
    bind_unknown_arguments(interp, frame, method)
    found = _find_default(interp, value, steps - 1)
    interp.state.frame = outer
    return found


def _default_of_entry(interp: Interpreter, table: str, setting: ast.expr, steps: int) -> ast.expr | None:
    """Return the value in a dict of the module for the default of a setting: ``DTYPES[args.dtype]``."""
    chosen = constant_of_node(_find_default(interp, setting, steps - 1))
    made = assigned_values(interp.state.frame.module.tree.body, table)
    if chosen is UNKNOWN or len(made) != 1 or not isinstance(made[0], ast.Dict):
        return None
    entries = zip(made[0].keys, made[0].values, strict=True)
    return next((value for key, value in entries if key is not None and constant_of_node(key) == chosen), None)


def _default_of_variable(interp: Interpreter, name: str, steps: int) -> ast.expr | None:
    function = interp.state.frame.function
    made = assigned_values(
        interp.state.frame.module.find_nodes(ast.Assign) if function is None else function.find_nodes(ast.Assign),
        name,
    )
    if made:
        return _find_default(interp, made[0], steps - 1) if len(made) == 1 else None
    return None if function is None else function.defaults().get(name)


def _class_of(interp: Interpreter, node: ast.expr) -> Class | None:
    """Return the class of a configuration object: by its value, or by the annotation of a parameter."""
    value = interp.without_events(lambda: interp.evaluate(node))
    if isinstance(value, (Instance, ClassValue)):
        return value.cls
    function = interp.state.frame.function
    if function is None or not isinstance(value, UnknownValue):
        return None
    match node:
        case ast.Name(id=name):
            return _annotated_class(interp, function, name)
        case ast.Attribute(value=ast.Name(id="self"), attr=name) if function.cls is not None:
            for method, assigned in function.cls.assignments.get(name, ()):
                if isinstance(assigned, ast.Name):
                    return _annotated_class(interp, method, assigned.id)
    return None


def _annotated_class(interp: Interpreter, function: Function, name: str) -> Class | None:
    """Return the class that annotates a parameter of a function, or None."""
    parameters = (*function.parameters(), *function.node.args.kwonlyargs)
    annotation = next((each.annotation for each in parameters if each.arg == name), None)
    if not isinstance(annotation, (ast.Name, ast.Attribute)):
        return None
    value: Value | None = interp.without_events(lambda: interp.evaluate(annotation))
    if isinstance(value, ExternalName) and isinstance(annotation, ast.Name):
        # A file of configuration classes trains nothing.
        value = load_any_import(interp, annotation.id, function.module)
    return value.cls if isinstance(value, ClassValue) else None


def _default_of_field(cls: Class, name: str) -> ast.expr | None:
    """Return the default that the body of a class gives an attribute, directly or by ``field(default=...)``."""
    for statement in cls.node.body:
        match statement:
            case (
                ast.AnnAssign(target=ast.Name(id=field), value=value)
                | ast.Assign(targets=[ast.Name(id=field)], value=value)
            ) if field == name:
                if isinstance(value, ast.Call):
                    return keywords_of(value).get("default")
                return value
    return None


class _ArgumentDefaults(dict[Module, dict[str, ast.expr | None]]):
    """Defaults of the command-line arguments that a module adds, by module and attribute."""

    def __missing__(self, module: Module) -> dict[str, ast.expr | None]:
        made: dict[str, ast.expr | None] = {}
        for call in module.find_nodes(ast.Call):
            if tail_name(call.func) == "add_argument":
                default = keywords_of(call).get("default")
                for flag in map(constant_of_node, call.args):
                    if isinstance(flag, str):
                        made.setdefault(flag.lstrip("-").replace("-", "_"), default)
        self[module] = made
        return made


def _default_of_argument(interp: Interpreter, owner: ast.expr, name: str) -> ast.expr | None:
    """Return the default of a command-line argument: of ``parser.add_argument("--dtype", default="bfloat16")``."""
    value = interp.without_events(lambda: interp.evaluate(owner))
    if isinstance(value, ExternalName):
        return None
    return interp.file_data(_ArgumentDefaults)[interp.state.frame.module].get(name)
