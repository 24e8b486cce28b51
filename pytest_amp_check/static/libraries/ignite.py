"""Handlers and trainers of ignite: save handlers for live objects, and trainers that may create a scaler."""

from __future__ import annotations

import ast

from ...protocol import events as e
from ...protocol import frameworks, torch_api
from ..interpreter.classes.lineage import method_of
from ..interpreter.classes.methods import call_method
from ..interpreter.formulas import truth_of
from ..interpreter.interpreter import HandlerTable, Interpreter
from ..interpreter.unanalyzed_code import escape
from ..interpreter.values.containers import MappingValue, SequenceValue, UnionValue
from ..interpreter.values.definitions import Instance, Keywords
from ..interpreter.values.objects import ObjectRef
from ..interpreter.values.value import NONE, UnknownValue, Value
from .arguments import literal_value, make_object, map_items, object_ref_of
from .checkpoints import emit_save, take_state
from .optimizers import find_optimizer


class SaveHandler(Value):
    """A handler that saves the states of the objects in the dict argument."""

    kind = "saver"
    is_relevant = True

    __slots__ = ()


def _make_save_handler(interp: Interpreter, entry: torch_api.ApiEntry, bound: Keywords, node: ast.AST) -> Value:
    escape(interp, list(bound.values()), node)
    return SaveHandler()


def _call_save_function(interp: Interpreter, entry: torch_api.ApiEntry, bound: Keywords, node: ast.AST) -> Value:
    objects = bound.pop("to_save", None)
    escape(interp, list(bound.values()), node)
    if objects is not None:
        save_objects(interp, objects, node)
    return interp.fresh_unknown(node, entry.name)


def _check_escaped_handler(interp: Interpreter, func: Value, given: list[Value], node: ast.AST) -> None:
    """Save the objects of a dict if a handler is called with the dict, or escapes together with the dict."""
    if func.kind != SaveHandler.kind and SaveHandler.kind not in [value.kind for value in given]:
        return
    for value in given:
        if value.kind == "mapping":
            save_objects(interp, value, node)


def save_objects(interp: Interpreter, objects: Value, node: ast.AST) -> None:
    """Emit a save of the states of the objects in a dict."""
    emit_save(interp, _take_states(interp, objects, node), node, objects=True)


def _take_states(interp: Interpreter, value: Value, node: ast.AST) -> Value:
    if isinstance(value, (MappingValue, SequenceValue)):
        return map_items(value, lambda item: _take_states(interp, item, node))
    if isinstance(value, UnionValue):
        return UnionValue([(formula, _take_states(interp, option, node)) for formula, option in value.options])
    if isinstance(value, Instance) and method_of(interp, value.cls, "state_dict") is not None:
        return call_method(interp, value, "state_dict", [], {}, node)
    if isinstance(value, UnknownValue):
        used = interp.tracked_objects.get(("used", value.key))
        return take_state(interp, value if used is None else ObjectRef(used), node)
    return take_state(interp, value, node) if isinstance(value, (ObjectRef, Instance)) else value


def _call_trainer_factory(interp: Interpreter, entry: torch_api.ApiEntry, bound: Keywords, node: ast.AST) -> Value:
    """Return a trainer, and create the trainer's own scaler if requested."""
    escape(interp, list(bound.values()), node)
    trainer = interp.fresh_unknown(node)
    wanted = bound.get("scaler", NONE)
    scalers = [ref for value in wanted.alternatives() if (ref := object_ref_of(value, "scaler")) is not None]
    if not scalers and literal_value(wanted):
        scalers = [_make_trainer_scaler(interp, trainer, wanted, node)]
    optimizer = find_optimizer(interp, bound.get("optimizer", NONE), node)
    keys = tuple(v.tracked_object.key for v in scalers if v.enabled is not False)
    if optimizer is not None:
        keys = (*keys, optimizer.key)
    interp.emit(e.Handoff, node, objects=keys, trains=keys, about=e.ALL_EFFECTS)
    return trainer


def _make_trainer_scaler(interp: Interpreter, trainer: UnknownValue, wanted: Value, node: ast.AST) -> ObjectRef:
    """Return the scaler that a trainer creates on request and keeps in the trainer's state."""
    tracked_object = make_object(interp, "scaler", node)
    tracked_object.attributes.enabled = truth_of(interp, wanted, node=node)
    state = interp.fresh_unknown(node)
    scaler = ObjectRef(tracked_object, tracked_object.attributes.enabled)
    interp.store_attribute(state.key, "scaler", scaler)
    interp.store_attribute(trainer.key, "state", state)
    return scaler


def register(handlers: HandlerTable) -> None:
    handlers.framework_roles.update(
        {
            frameworks.SAVER: _make_save_handler,
            frameworks.SAVES: _call_save_function,
            frameworks.TRAINER: _call_trainer_factory,
        }
    )
    handlers.escape_listeners.append(_check_escaped_handler)
