"""Handlers and trainers of ignite: they save the states of live objects, and may make a scaler of their own."""

from __future__ import annotations

import ast

from ...protocol import events as e
from ...protocol import frameworks, surface
from ..interpreter.classes import call_method, method_of
from ..interpreter.interpreter import Handlers, Interpreter
from ..interpreter.truth import truth
from ..interpreter.unknown import hand_off
from ..interpreter.values import NONE, Choice, Instance, Keywords, Mapping, Opaque, Ref, Sequence, Value
from .arguments import each_item, literal, ref_of
from .checkpoints import saved, state_of
from .optimizers import optimizer_of


class Saver(Value):
    """A handler that saves the states of the objects in a dict that it is called with."""

    kind = "saver"
    matters = True

    __slots__ = ()


def _handler(at: Interpreter, entry: surface.Entry, bound: Keywords, node: ast.AST) -> Value:
    hand_off(at, list(bound.values()), node)
    return Saver()


def _saves(at: Interpreter, entry: surface.Entry, bound: Keywords, node: ast.AST) -> Value:
    objects = bound.pop("to_save", None)
    hand_off(at, list(bound.values()), node)
    if objects is not None:
        save_objects(at, objects, node)
    return at.fresh(node, entry.name)


def _handed(at: Interpreter, func: Value, given: list[Value], node: ast.AST) -> bool:
    """A handler is called with the objects that it saves, or is given to something together with them."""
    if func.kind != Saver.kind and Saver.kind not in [value.kind for value in given]:
        return False
    for value in given:
        if value.kind == "mapping":
            save_objects(at, value, node)
    return True


def save_objects(at: Interpreter, objects: Value, node: ast.AST) -> None:
    """The states of the objects of a dict are saved, by what is given the objects."""
    saved(at, _states_of(at, objects, node), node, objects=True)


def _states_of(at: Interpreter, value: Value, node: ast.AST) -> Value:
    if isinstance(value, (Mapping, Sequence)):
        return each_item(value, lambda item: _states_of(at, item, node))
    if isinstance(value, Choice):
        return Choice([(formula, _states_of(at, option, node)) for formula, option in value.options])
    if isinstance(value, Instance) and method_of(at, value.cls, "state_dict") is not None:
        return call_method(at, value, "state_dict", [], {}, node)
    if isinstance(value, Opaque):
        used = at.things.get(("used", value.key))
        return state_of(at, value if used is None else Ref(used), node)
    return state_of(at, value, node) if isinstance(value, (Ref, Instance)) else value


def _trainer(at: Interpreter, entry: surface.Entry, bound: Keywords, node: ast.AST) -> Value:
    """A trainer, with the scaler that it makes where it is asked to."""
    hand_off(at, list(bound.values()), node)
    trainer = at.fresh(node, "trainer")
    wanted = bound.get("scaler", NONE)
    scalers = [ref for value in wanted.alternatives() if (ref := ref_of(value, "scaler")) is not None]
    if not scalers and literal(wanted):
        scalers = [_own_scaler(at, trainer, wanted, node)]
    optimizer = optimizer_of(at, bound.get("optimizer", NONE), node)
    keys = tuple(v.thing.key for v in scalers if v.enabled is not False)
    if optimizer is not None:
        keys = (*keys, optimizer.key)
    at.emit(e.HANDOFF, node, things=keys, trains=keys, about=e.MATTERS)
    return trainer


def _own_scaler(at: Interpreter, trainer: Opaque, wanted: Value, node: ast.AST) -> Ref:
    """The scaler that a trainer makes if it is asked to, and keeps in its state."""
    thing = at.thing(("scaler", at.place_key(node)), "scaler", "", at.site(node))
    thing.facts["enabled"] = truth(at, wanted, "", node)
    state = at.fresh(node, "state")
    scaler = Ref(thing, thing.facts["enabled"])
    at.store(state.key, "scaler", scaler)
    at.store(trainer.key, "state", state)
    return scaler


def register(handlers: Handlers) -> None:
    handlers.framework_roles.update(
        {frameworks.SAVER: _handler, frameworks.SAVES: _saves, frameworks.TRAINER: _trainer}
    )
    handlers.handed.insert(0, _handed)
