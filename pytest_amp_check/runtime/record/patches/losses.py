"""Patches of loss functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..regions import LOW
from .table import Patch

if TYPE_CHECKING:
    from ..recorder import Recorder


def patches() -> list[Patch]:
    #: Losses whose result no float32 target of the output's shape promotes, under the names that torch.nn.functional
    #: calls.
    low = ((torch._C._nn, "cross_entropy_loss"), (torch._C._nn, "nll_loss_nd"))
    return [
        Patch(torch._C._nn, "binary_cross_entropy", on_call=_notify_bce, may_be_compiled=True),
        Patch(torch, "ctc_loss", on_return=_notify_ctc, may_be_compiled=True),
        *(Patch(module, name, on_return=_notify_low_loss, may_be_compiled=True) for module, name in low),
    ]


def _notify_bce(recorder: Recorder, *args: Any, **kwargs: Any) -> None:
    recorder.losses.record_loss("binary_cross_entropy")


def _notify_low_loss(recorder: Recorder, result: Any, output: Any, *args: Any, **kwargs: Any) -> None:
    if getattr(result, "dtype", None) in LOW:
        recorder.losses.record_low_loss(output)


def _notify_ctc(
    recorder: Recorder,
    result: Any,
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> None:
    # No device has a kernel for low precision, so the loss itself is never low.
    if zero_infinity:
        recorder.losses.record_lengths(log_probs, input_lengths, target_lengths)
