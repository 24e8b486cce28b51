"""Names, and the recognition of tracked objects by their use."""

from __future__ import annotations

import ast

from ....protocol import events as e
from ....protocol import torch_api
from ....protocol.source_text import access_text, find_access_path
from ..imports import BUILTINS, look_up
from ..interpreter import Interpreter
from ..loop_variables import is_other_item
from ..source_text import last_name
from ..values.containers import UnionValue
from ..values.definitions import ExternalName
from ..values.objects import ObjectRef
from ..values.value import Const, UnknownValue, Value


def evaluate_name(interp: Interpreter, node: ast.Name) -> Value:
    value = look_up(interp, node.id)
    if value is None:
        value = _evaluate_unbound(interp, node.id)
    if node.id not in interp.state.frame.module.role_names:
        return value
    return recognize_object(interp, value, node, node.id)


def _evaluate_unbound(interp: Interpreter, name: str) -> Value:
    module = interp.state.frame.module
    if name in torch_api.BARE and name not in module.functions_by_name:
        return ExternalName(torch_api.BARE[name], unresolved=True)
    if name in BUILTINS:
        return ExternalName(f"builtins.{name}")
    if name == "__name__":
        # Files are analyzed as scripts, so that the code that only a script runs is analyzed too.
        return Const("__main__")
    return interp.unknown_value(("global", module.path, name), name)


def recognize_object(interp: Interpreter, value: Value, node: ast.expr, last: str) -> Value:
    """Return the tracked object for an unknown value that the file uses as a scaler, an optimizer or a module.

    ``last`` is the last name of the expression; an empty name skips the test of the name.
    """
    if last and last not in interp.state.frame.module.role_names:
        return value
    if isinstance(value, ExternalName) and not value.name.startswith(("torch.", "builtins.")):
        value = _imported_object(interp, value, node)
    if isinstance(value, UnionValue):
        options = [(formula, recognize_object(interp, option, node, last)) for formula, option in value.options]
        known = any(new is not old for (_, new), (_, old) in zip(options, value.options, strict=True))
        return UnionValue(options) if known else value
    return _recognize_by_use(interp, value, node) if isinstance(value, UnknownValue) else value


def _recognize_by_use(interp: Interpreter, value: UnknownValue, node: ast.expr) -> Value:
    text, role = access_text(node), role_by_use(interp, node)
    # `parameters` of such a value is an argument of that name in the heap, not a method of a module.
    if role is None or (role == "module" and (value.key, "parameters") in interp.state.heap):
        return value
    maker = interp.handlers.recognizers.get(role)
    if maker is not None:
        return maker(interp, role, value, text, node)
    if role == "module":
        _adopt_joined_module(interp, value)
    tracked_object = interp.tracked_object(("used", value.key), role, text, interp.site_of(node))
    if role == "module" and interp.builder.nodes is interp.graph.nodes:
        for listener in interp.handlers.module_use_listeners:
            listener(interp, value)
    return ObjectRef(tracked_object, True, value)


def _adopt_joined_module(interp: Interpreter, value: UnknownValue) -> None:
    """Let a value that stands for two others after branches be the module that one of these is known to be."""
    todo = list(interp.joined_keys.get(value.key, ()) if ("used", value.key) not in interp.tracked_objects else ())
    for key in todo:
        known = interp.tracked_objects.get(("used", key))
        if known is not None and known.role == "module":
            interp.tracked_objects["used", value.key] = known
            return
        todo += [side for side in interp.joined_keys.get(key, ()) if side not in todo]


def _imported_object(interp: Interpreter, value: ExternalName, node: ast.expr) -> Value:
    """Return an unknown value for an imported name that the file uses as a scaler, an optimizer or a module."""
    text = find_access_path(node)
    return (
        interp.unknown_value(("imported", value.name), text)
        if text and text in interp.state.frame.module.role_by_text
        else value
    )


def role_by_use(interp: Interpreter, node: ast.expr) -> str | None:
    """Return the role in which the file uses an expression (scaler, optimizer, module or function), or None."""
    module = interp.state.frame.module
    if isinstance(node, (ast.Attribute, ast.Name)) and last_name(node) not in module.role_names:
        return None
    role = module.role_by_text.get(access_text(node))
    if role is not None and isinstance(node, ast.Name) and is_other_item(interp, node.id):
        return None
    return role


def is_used_as_optimizer(interp: Interpreter, target: ast.expr) -> bool:
    """Return True if the file uses the assigned expression as an optimizer."""
    return role_by_use(interp, target) == "optimizer"


def emit_found_optimizer(interp: Interpreter, target: ast.expr, value: UnknownValue) -> None:
    """Emit ``OPTIMIZER_NEW`` for an optimizer that unanalyzed code created or returned."""
    made = recognize_object(interp, value, target, last_name(target))
    if made.role == "optimizer" and made.tracked_object is not None:
        interp.emit(e.OptimizerNew, target, made.tracked_object.key, found=True)
