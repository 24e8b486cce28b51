"""Patches of modules: their gradients, their state, their dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..regions import LOW
from .table import After, Patch

if TYPE_CHECKING:
    from ..recorder import Recorder


def patches() -> list[Patch]:
    module = torch.nn.Module
    return [
        Patch(module, "zero_grad", after=_zero_grad, compiled=True),
        Patch(module, "load_state_dict", after=_loaded),
        Patch(module, "half", after=_cast(torch.float16), of_users=True),
        Patch(module, "bfloat16", after=_cast(torch.bfloat16), of_users=True),
        Patch(module, "to", after=_cast(None), of_users=True),
    ]


def _zero_grad(recorder: Recorder, result: object, module: Any, *args: Any, **kwargs: Any) -> None:
    recorder.clearing.by_module(module)


def _loaded(recorder: Recorder, result: object, module: Any, *args: Any, **kwargs: Any) -> None:
    recorder.weights.written(module)


def _cast(dtype: torch.dtype | None) -> After:
    """Tell of a cast to a dtype, or to the one among the arguments."""

    def cast(recorder: Recorder, result: object, module: Any, *args: Any, **kwargs: Any) -> None:
        wanted = dtype
        if wanted is None:
            wanted = next((x for x in (*args, *kwargs.values()) if isinstance(x, torch.dtype)), None)
        if wanted in LOW:
            recorder.weights.module_cast(module, LOW[wanted])

    return cast
