"""The unscaled gradient norm of every step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..record.collector import Collector
from ..record.deferred_values import DeferredNumber, ScaledValue

if TYPE_CHECKING:
    from ..record.steps import StepLog


class Norms(Collector):
    """A collector of the total 2-norm of an optimizer's gradients, divided by their loss scale, for each step."""

    def __init__(self, steps: StepLog) -> None:
        self.steps = steps

    def before_step(self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None, scale: float) -> None:
        """Compute the norm of the gradients right before the step."""
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        norms = [torch.linalg.vector_norm(g.coalesce().values() if g.is_sparse else g.detach()) for g in grads]
        if norms:
            total = torch.linalg.vector_norm(torch.stack([n.to(norms[0].device, torch.float32) for n in norms]))
            self.steps.set_norm(ScaledValue(total, DeferredNumber(scale)))
