"""Records of non-finite values: all that a replay needs to find the cause of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import TYPE_CHECKING, NamedTuple

from ....protocol.sites import Site
from ..delayed_reads import Weights
from ..derivatives import Derivative
from ..tape import Slot, TapedCall

if TYPE_CHECKING:
    import torch
    from torch import nn

#: Kinds of non-finite values. A skipped step has a finite loss and non-finite gradients.
LOSS, GRADIENTS, STATISTICS, PARAMETERS, SKIPPED = "loss", "gradients", "statistics", "parameters", "skipped"


class TapedBackward(NamedTuple):
    """A backward pass: the values, and the roots as slots of the tape (None for roots that are not on the tape)."""

    root_slots: tuple[Slot | None, ...]
    site: Site
    scale: float
    loss_value: float | None
    is_scaled: bool


class NonFiniteRecord(NamedTuple):
    """A non-finite value: its ``kind``, the step, counted from 0, and the calls so far."""

    kind: str
    step: int
    calls: dict[int, TapedCall]
    backward: TapedBackward | None
    params: Sequence[torch.Tensor]
    optimizers: Sequence[torch.optim.Optimizer]
    buffers: Sequence[tuple[nn.Module, str]]
    #: Parameters that have changed since then, with their old values.
    previous_weights: Weights
    derivatives: Mapping[int, Derivative]
    locate: Callable[[Sequence[tuple[CodeType, int]]], Site]
    #: True if a scaler has skipped every step so far, so that no step has changed the weights.
    only_skipped: bool


def collect_params(optimizers: Sequence[torch.optim.Optimizer]) -> list[torch.Tensor]:
    return [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
