"""Checkpoints: what a saved value holds of the state of a training."""

from __future__ import annotations

import ast

from ..protocol.words import Words
from .values import Choice, Mapping, Opaque, Ref, Sequence, StateDict, Value


class Contents:
    """What a saved value holds of the training state."""

    def __init__(self) -> None:
        self.optimizers: list[str] = []
        self.scalers: list[str] = []
        self.whole_scalers: list[str] = []
        self.open = False
        #: Where the first optimizer's state was taken.
        self.place: StateDict | None = None

    def look(self, value: Value, key: str = "", depth: int = 0) -> None:
        if depth > 5:
            return
        if isinstance(value, StateDict):
            known = len(self.optimizers)
            self._state_of(value, key)
            if self.place is None and len(self.optimizers) > known:
                self.place = value
        elif isinstance(value, Ref):
            if value.role == "scaler":
                self.whole_scalers.append(value.thing.name)
            elif value.role == "optimizer":
                self.optimizers.append(value.thing.name)
        elif isinstance(value, Mapping):
            self.open = self.open or value.open
            for name, item in value.items.items():
                self.look(item, str(name), depth + 1)
        elif isinstance(value, Sequence):
            for item in value.items:
                self.look(item, key, depth + 1)
        elif isinstance(value, Choice):
            for _, option in value.options:
                self.look(option, key, depth + 1)
        elif isinstance(value, Opaque):
            # Under such a name a scaler's state may have been put together elsewhere.
            words = f"{key} {value.text}".lower()
            if depth == 0 or "scal" in words or "amp" in words:
                self.open = True

    def _state_of(self, state: StateDict, key: str) -> None:
        owner = state.of
        role = owner.role if isinstance(owner, Ref) else ""
        words = f"{key} {owner.text}".lower() if isinstance(owner, Opaque) else ""
        if role == "scaler" or "scaler" in words or "amp" in words.split():
            self.scalers.append(key)
        elif role == "optimizer":
            taken = state.node.func if isinstance(state.node, ast.Call) else None
            self.optimizers.append(str(Words(taken.value)) if isinstance(taken, ast.Attribute) else key)
