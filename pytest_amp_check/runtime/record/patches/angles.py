"""Patches of sine, cosine and ranges."""

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
    return [
        *(Patch(owner, name, make_wrapper=_wrap_function) for owner in owners for name in ("sin", "cos")),
        Patch(torch, "arange", on_return=_notify_range, only_user_calls=True, may_be_compiled=True),
    ]


def _notify_range(recorder: Recorder, result: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    if result.dtype in LOW:
        numbers = [*args, *(kwargs[name] for name in ("start", "end", "step") if name in kwargs)]
        recorder.angles.record_range(result, numbers)


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
