"""Handlers and trainers of ignite: they save the states of live objects, and may make a scaler of their own."""

from __future__ import annotations

import ast
from abc import abstractmethod

from ...protocol import events as e
from ...protocol import frameworks
from ..interpreter.values import NONE, Choice, Const, Instance, Mapping, Opaque, Ref, Saver, Sequence, Value, options_of
from .frameworks import Frameworks


class Ignite(Frameworks):
    """Reads what is made of ignite's handlers."""

    @abstractmethod
    def _saved(self, value: Value, node: ast.AST, *, objects: bool = False) -> None: ...

    def framework_call(self, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value | None:
        entry = frameworks.lookup(name)
        role = entry.role if entry is not None else ""
        if entry is None or role not in (frameworks.SAVER, frameworks.SAVES, frameworks.TRAINER):
            return super().framework_call(name, args, keywords, node)
        if role == frameworks.SAVER:
            self.hand_off([*args, *keywords.values()], node)
            return Saver()
        bound = {**dict(zip(entry.parameters, args, strict=False)), **keywords}
        if role == frameworks.TRAINER:
            self.hand_off([*args, *keywords.values()], node)
            return self._trainer(bound, node)
        objects = bound.pop("to_save", None)
        self.hand_off(list(bound.values()), node)
        if objects is not None:
            self.save_objects(objects, node)
        return self.fresh(node, name)

    def save_objects(self, objects: Value, node: ast.AST) -> None:
        """The states of the objects of a dict are saved, by what is given the objects."""
        self._saved(self._states_of(objects, node), node, objects=True)

    def _states_of(self, value: Value, node: ast.AST) -> Value:
        if isinstance(value, Mapping):
            return Mapping({key: self._states_of(item, node) for key, item in value.items.items()}, open=value.open)
        if isinstance(value, Sequence):
            return Sequence([self._states_of(item, node) for item in value.items], open=value.open)
        if isinstance(value, Choice):
            return Choice([(formula, self._states_of(option, node)) for formula, option in value.options])
        if isinstance(value, Instance) and self.method_of(value.cls, "state_dict") is not None:
            return self.call_method(value, "state_dict", [], node)
        if isinstance(value, Opaque):
            used = self.things.get(("used", value.key))
            return self._state(value if used is None else Ref(used), node)
        return self._state(value, node) if isinstance(value, (Ref, Instance)) else value

    def _trainer(self, bound: dict[str, Value], node: ast.AST) -> Value:
        """A trainer, with the scaler that it makes where it is told to."""
        trainer = self.fresh(node, "trainer")
        wanted = bound.get("scaler", NONE)
        scalers = [v for v in options_of(wanted) if isinstance(v, Ref) and v.role == "scaler"]
        if not scalers and not (isinstance(wanted, Const) and not wanted.value):
            scalers = [self._own_scaler(trainer, wanted, node)]
        optimizer = self._optimizer_thing(bound.get("optimizer", NONE), node)
        keys = tuple(v.thing.key for v in scalers if v.enabled is not False)
        if optimizer is not None:
            keys = (*keys, optimizer.key)
        self.emit(e.HANDOFF, node, things=keys, trains=keys)
        return trainer

    def _own_scaler(self, trainer: Opaque, wanted: Value, node: ast.AST) -> Ref:
        """The scaler that a trainer makes if it is told to, and keeps in its state."""
        thing = self.thing(("scaler", self.place_key(node)), "scaler", "", self.site(node))
        thing.facts["enabled"] = self.truth(wanted, "", node)
        state = self.fresh(node, "state")
        scaler = Ref(thing, thing.facts["enabled"])
        self.store(state.key, "scaler", scaler)
        self.store(trainer.key, "state", state)
        return scaler
