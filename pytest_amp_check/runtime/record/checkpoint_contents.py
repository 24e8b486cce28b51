"""The contents of a checkpoint, found by shape and type in the argument of ``torch.save``."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch

#: Largest nesting depth of searched containers.
DEPTH = 6
#: Largest number of searched objects in one checkpoint.
MOST = 10_000
#: The keys of ``GradScaler.state_dict()``.
_SCALER_KEYS = frozenset({"scale", "growth_factor", "backoff_factor", "growth_interval"})


class CheckpointContents:
    """The training state found in a checkpoint.

    ``state_ids``: ids of optimizers' state dicts. ``has_scaler_state``: True if a scaler's state dict was found.
    ``scalers``: GradScalers that are saved as whole objects.
    """

    def __init__(self) -> None:
        self.state_ids: set[int] = set()
        #: For each optimizer state the number of parameters of each group, which identifies copies.
        self.group_sizes: set[tuple[int, ...]] = set()
        self.has_scaler_state = False
        self.scalers: list[Any] = []


def find_contents(obj: Any) -> CheckpointContents:
    """Return the training state in an object that is saved."""
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
