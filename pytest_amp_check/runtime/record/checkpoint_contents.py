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


class CheckpointContents:
    """``states``: identities of optimizers' state dicts. ``scaler_states``: whether a scaler's state is among it.

    ``scalers``: GradScalers that are saved as whole objects.
    """

    def __init__(self) -> None:
        self.state_ids: set[int] = set()
        #: For each of them how many parameters each group has, by which a copy is recognised.
        self.group_sizes: set[tuple[int, ...]] = set()
        self.has_scaler_state = False
        self.scalers: list[Any] = []


def find_contents(obj: Any) -> CheckpointContents:
    """What an object that is saved holds of the training's state."""
    contents = CheckpointContents()
    seen_ids: set[int] = set()
    _search_value(obj, contents, seen_ids, 0)
    return contents


def _search_value(value: Any, contents: CheckpointContents, seen_ids: set[int], depth: int) -> None:
    if (
        depth > DEPTH
        or id(value) in seen_ids
        or len(seen_ids) > MOST
        or isinstance(value, (torch.Tensor, str, bytes, int))
    ):
        return
    seen_ids.add(id(value))
    if isinstance(value, torch.amp.GradScaler):
        contents.scalers.append(value)
    elif isinstance(value, Mapping):
        keys = value.keys()
        if "param_groups" in keys and "state" in keys:
            contents.state_ids.add(id(value))
            with contextlib.suppress(TypeError, KeyError):
                contents.group_sizes.add(tuple(len(group["params"]) for group in value["param_groups"]))
        elif keys >= _SCALER_KEYS:
            contents.has_scaler_state = True
        else:
            for item in list(value.values()):
                _search_value(item, contents, seen_ids, depth + 1)
    elif isinstance(value, (list, tuple, set)):
        for item in value:
            _search_value(item, contents, seen_ids, depth + 1)
    elif hasattr(value, "__dict__") and not isinstance(value, (type, torch.nn.Module)):
        for item in list(vars(value).values()):
            _search_value(item, contents, seen_ids, depth + 1)
