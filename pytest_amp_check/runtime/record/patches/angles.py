"""Patches of sine and cosine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..active import THREAD
from ..regions import LOW
from .table import Patch

if TYPE_CHECKING:
    from ..recorder import Recorder


def patches() -> list[Patch]:
    owners = (torch, torch.Tensor)
    return [Patch(owner, name, make_wrapper=_wrap_function) for owner in owners for name in ("sin", "cos")]


def _wrap_function(original: Any) -> Any:
    def patched_function(*args: Any, **kwargs: Any) -> Any:
        if args and not kwargs and THREAD.active_recorders and not torch.compiler.is_compiling():
            angles = args[0]
            if isinstance(angles, torch.Tensor) and angles.dtype in LOW:
                recorders: tuple[Recorder, ...] = THREAD.active_recorders
                for recorder in recorders:
                    recorder.angles.record_function(angles)
        return original(*args, **kwargs)

    return patched_function
