"""Patches of what writes and reads checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .table import Patch

if TYPE_CHECKING:
    from ..recorder import Recorder


def patches() -> list[Patch]:
    # torch.save ends in one of these, and torch.load in one of those.
    return [
        *(Patch(torch.serialization, name, before=_saved) for name in ("_save", "_legacy_save")),
        *(Patch(torch.serialization, name, after=_loaded) for name in ("_load", "_legacy_load")),
    ]


def _saved(recorder: Recorder, obj: Any, *args: Any, **kwargs: Any) -> None:
    recorder.checkpoints.saved(obj)


def _loaded(recorder: Recorder, result: Any, *args: Any, **kwargs: Any) -> None:
    recorder.checkpoints.loaded(result)
