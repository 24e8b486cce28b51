"""Patches of activation checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils import checkpoint

from ..active import THREAD
from .table import Patch

if TYPE_CHECKING:
    from ..recorder import Recorder


def patches() -> list[Patch]:
    return [Patch(checkpoint.CheckpointFunction, "apply", make_wrapper=_wrap_apply)]


def _wrap_apply(original: Any) -> Any:
    """Wrap the inherited class method. torch only calls it on the class, to which ``original`` is bound."""

    def apply(run_function: Any, preserve_rng_state: Any, *args: Any) -> Any:
        if not torch.compiler.is_compiling():
            recorders: tuple[Recorder, ...] = THREAD.active_recorders
            for recorder in recorders:
                recorder.recomputation.record_call(run_function, args)
        return original(run_function, preserve_rng_state, *args)

    return apply
