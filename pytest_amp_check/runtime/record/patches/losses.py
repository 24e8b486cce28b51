"""Patches of loss functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..regions import LOW
from .table import Patch

if TYPE_CHECKING:
    from ..recorder import Recorder


def patches() -> list[Patch]:
    #: What no float32 target of the output's shape promotes, under the names by which torch.nn.functional calls it.
    low = ((torch._C._nn, "cross_entropy_loss"), (torch._C._nn, "nll_loss_nd"), (torch, "ctc_loss"))
    return [
        Patch(torch._C._nn, "binary_cross_entropy", before=_binary_cross_entropy, compiled=True),
        *(Patch(module, name, after=_computed, compiled=True) for module, name in low),
    ]


def _binary_cross_entropy(recorder: Recorder, *args: Any, **kwargs: Any) -> None:
    recorder.losses.computed("binary_cross_entropy")


def _computed(recorder: Recorder, result: Any, output: Any, *args: Any, **kwargs: Any) -> None:
    if getattr(result, "dtype", None) in LOW:
        recorder.losses.computed_low(output)
