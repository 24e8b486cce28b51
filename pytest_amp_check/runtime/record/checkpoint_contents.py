"""What a checkpoint holds: looked for in what is given to ``torch.save``, by shape and by type."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch

#: Containers within containers that are looked into.
DEPTH = 6
#: Objects that are looked at in one checkpoint.
MOST = 10_000
#: The keys of ``GradScaler.state_dict()``.
_SCALER_KEYS = frozenset({"scale", "growth_factor", "backoff_factor", "growth_interval"})


class Contents:
    """``states``: identities of optimizers' state dicts. ``scaler_states``: whether a scaler's state is among it.

    ``scalers``: GradScalers that are saved as whole objects.
    """

    def __init__(self) -> None:
        self.states: set[int] = set()
        #: For each of them how many parameters each group has, by which a copy is recognised.
        self.shapes: set[tuple[int, ...]] = set()
        self.scaler_states = False
        self.scalers: list[Any] = []


def look_into(obj: Any) -> Contents:
    """What an object that is saved holds of the training's state."""
    found = Contents()
    seen: set[int] = set()
    _look(obj, found, seen, 0)
    return found


def _look(value: Any, found: Contents, seen: set[int], depth: int) -> None:
    if depth > DEPTH or id(value) in seen or len(seen) > MOST or isinstance(value, (torch.Tensor, str, bytes, int)):
        return
    seen.add(id(value))
    if isinstance(value, torch.amp.GradScaler):
        found.scalers.append(value)
    elif isinstance(value, Mapping):
        keys = value.keys()
        if "param_groups" in keys and "state" in keys:
            found.states.add(id(value))
            with contextlib.suppress(TypeError, KeyError):
                found.shapes.add(tuple(len(group["params"]) for group in value["param_groups"]))
        elif keys >= _SCALER_KEYS:
            found.scaler_states = True
        else:
            for item in list(value.values()):
                _look(item, found, seen, depth + 1)
    elif isinstance(value, (list, tuple, set)):
        for item in value:
            _look(item, found, seen, depth + 1)
    elif hasattr(value, "__dict__") and not isinstance(value, (type, torch.nn.Module)):
        for item in list(vars(value).values()):
            _look(item, found, seen, depth + 1)
