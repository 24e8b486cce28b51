"""Optional, costly parts of a recording."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class Collector:
    """A receiver of a run's events, called by the recorder in the recording thread, outside of torch's own calls.

    A collector must change neither results nor the state of random generators. ``scaler`` is None if gradients are not
    scaled; ``scale`` is then 1.0.
    """

    def start(self) -> None:
        """Start with the recording."""

    def set_model(self, model: torch.nn.Module) -> None:
        """Use a model that was found after the start of the recording."""

    def stop(self) -> None:
        """Stop with the recording, also after an exception. Remove all patches and hooks."""

    def record_loss_dtype(self, dtype: torch.dtype) -> None:
        """Record the dtype, before scaling, of a loss whose backward pass has ended."""

    def after_backward(
        self, scaler: torch.amp.GradScaler | None, scale: float, optimizers: Sequence[torch.optim.Optimizer]
    ) -> None:
        """Handle the end of a backward pass. The gradients of ``optimizers`` are multiplied by ``scale``."""

    def after_unscale(self, scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
        """Handle a call of ``scaler.unscale_(optimizer)`` by the user."""

    def before_step(self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None, scale: float) -> None:
        """Handle a step that is about to run. Gradients are still multiplied by ``scale`` (1.0 once unscaled)."""

    def after_step(
        self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None, *, skipped: bool
    ) -> None:
        """Handle a step that was made, or skipped because of an overflow."""
