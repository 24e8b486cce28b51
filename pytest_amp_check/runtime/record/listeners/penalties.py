"""Gradients in a loss. Scaled gradients must first be divided by the scale."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ....protocol import events as e
from ....protocol.events import Event
from ..deferred_values import DeferredNumber
from ..graph import FAR, divides_by_scale, find_tensors, iter_nodes
from ..recording import Recording
from ..scaled_losses import ScaledLosses
from ..source.call_texts import SiteText
from .listener import Listener, listener_method

if TYPE_CHECKING:
    import torch


class Penalty:
    """Scaled gradients from ``torch.autograd.grad`` that will be differentiated again."""

    def __init__(self, event: Event, grads: list[torch.Tensor], scale: DeferredNumber) -> None:
        self.event = event
        self.grads = grads
        self.scale = scale
        self._product_sum = 0.0
        self._absolute_sum = 0.0
        self._hooks: list[Any] = []

    def watch_backward(self) -> None:
        """Register hooks that measure, in the next backward pass, how the loss depends on these gradients."""
        for grad in self.grads:
            register: Any = grad.register_hook
            self._hooks.append(register(functools.partial(self._record_derivative, grad.detach())))

    def _record_derivative(self, grad: torch.Tensor, derivative: torch.Tensor) -> None:
        product = grad.double() * derivative.detach().double()
        self._product_sum += float(product.sum())
        self._absolute_sum += float(product.abs().sum())

    def depends_on_scale(self) -> bool:
        """Return True if the loss depends on the scale of the gradients. Remove the hooks.

        A loss that does not change with a common factor of the gradients, such as a loss of their direction, has a
        derivative of zero along them (Euler).
        """
        for hook in self._hooks:
            hook.remove()
        self.grads = []
        return not abs(self._product_sum) <= 1e-3 * self._absolute_sum


class PenaltyListener(Listener):
    """A listener for ``torch.autograd.grad``."""

    def __init__(self, recording: Recording, scaled_losses: ScaledLosses) -> None:
        super().__init__(recording)
        self._scaled_losses = scaled_losses
        self._new_penalties: list[Penalty] = []
        self._suspects: list[Penalty] = []

    @listener_method
    def record_differentiation(self, outputs: Any, grads: Any) -> None:
        if self.recording.backward_depth:
            return
        scaled_loss = self._scaled_losses.find_below(find_tensors(outputs))
        if scaled_loss is None:
            return
        site = self.sites.current_site()
        names: dict[str, object] = {"scaler": scaled_loss.scaler.name, "call": SiteText(site)}
        event = e.Penalty(site, names=names)
        self._new_penalties.append(
            Penalty(event, [grad for grad in find_tensors(grads) if grad.grad_fn is not None], scaled_loss.scale)
        )

    def begin_backward(self, roots: Sequence[torch.Tensor]) -> None:
        """Watch the penalties whose gradients run backward now without a division by the scale."""
        penalties, self._new_penalties = self._new_penalties, []
        for penalty in penalties:
            # The nodes are kept alive, because an id is only unique for live objects.
            grad_nodes = [grad.grad_fn for grad in penalty.grads]
            sources = {id(node) for node in grad_nodes}
            # Nodes below a division by the scale are correct.
            if any(
                id(node) in sources
                for node in iter_nodes(roots, FAR, functools.partial(divides_by_scale, scale=penalty.scale))
            ):
                penalty.watch_backward()
                self._suspects.append(penalty)

    def end_backward(self) -> None:
        suspects, self._suspects = self._suspects, []
        for penalty in suspects:
            if penalty.depends_on_scale():
                self.recording.run_checker.add_event(penalty.event)
