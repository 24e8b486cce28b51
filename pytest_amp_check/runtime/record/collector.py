"""A costly part of a recording: made only when it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class Collector:
    """Told of a run's events by the recorder, in the recording thread and outside torch's own calls.

    What a collector does must change neither results nor the state of random generators. ``scaler`` is None where
    gradients were not scaled; ``scale`` is then 1.0.
    """

    def start(self) -> None:
        """The recording begins."""

    def set_model(self, model: torch.nn.Module) -> None:
        """The model that is trained has been found; the recording was begun without one."""

    def stop(self) -> None:
        """The recording ends, also after an exception; whatever was patched or hooked is restored here."""

    def record_loss_dtype(self, dtype: torch.dtype) -> None:
        """A backward pass has ended that ran from a loss, which had this dtype before it was scaled."""

    def after_backward(
        self, scaler: torch.amp.GradScaler | None, scale: float, optimizers: Sequence[torch.optim.Optimizer]
    ) -> None:
        """A backward pass has ended; the gradients of the optimizers in ``fed`` are multiplied by ``scale``."""

    def after_unscale(self, scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
        """``scaler.unscale_(optimizer)`` was called by the user."""

    def before_step(self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None, scale: float) -> None:
        """A step is about to happen; the gradients are still multiplied by ``scale`` (1.0 once unscaled)."""

    def after_step(
        self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None, *, skipped: bool
    ) -> None:
        """A step has happened, or was skipped because of an overflow."""
