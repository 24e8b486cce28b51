"""Patches of functions that write and read checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .table import Patch

if TYPE_CHECKING:
    from ..recorder import Recorder


def patches() -> list[Patch]:
    # torch.save calls one of the two save functions, and torch.load one of the two load functions.
    return [
        *(Patch(torch.serialization, name, on_call=_notify_save) for name in ("_save", "_legacy_save")),
        *(Patch(torch.serialization, name, on_return=_notify_load) for name in ("_load", "_legacy_load")),
    ]


def _notify_save(recorder: Recorder, obj: Any, *args: Any, **kwargs: Any) -> None:
    recorder.checkpoints.record_save(obj)


def _notify_load(recorder: Recorder, result: Any, *args: Any, **kwargs: Any) -> None:
    recorder.checkpoints.record_load(result)
