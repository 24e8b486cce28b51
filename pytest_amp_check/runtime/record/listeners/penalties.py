"""Gradients that are part of a loss: scaled ones have to be divided by the scale first."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ....protocol import events as e
from ....protocol.events import Event
from ..graph import FAR, divides, nodes, tensors
from ..recording import Recording
from ..scaled_losses import ScaledLosses
from ..source import SourceText
from .listener import Listener, listens

if TYPE_CHECKING:
    import torch


class Penalty:
    """Scaled gradients that ``torch.autograd.grad`` made to be differentiated once more."""

    def __init__(self, event: Event, grads: list[torch.Tensor], scale: float) -> None:
        self.event = event
        self.grads = grads
        self.scale = scale
        self._sum = 0.0
        self._size = 0.0
        self._hooks: list[Any] = []

    def watch(self) -> None:
        """Learn, in the backward pass that follows, how the loss depends on these gradients."""
        for grad in self.grads:
            register: Any = grad.register_hook
            self._hooks.append(register(functools.partial(self._learn, grad.detach())))

    def _learn(self, grad: torch.Tensor, derivative: torch.Tensor) -> None:
        product = grad.double() * derivative.detach().double()
        self._sum += float(product.sum())
        self._size += float(product.abs().sum())

    def counts(self) -> bool:
        """Whether the scale matters.

        A loss that does not change with a common factor of them, as one that uses their direction alone, has a
        derivative of zero along it (Euler).
        """
        for hook in self._hooks:
            hook.remove()
        self.grads = []
        return not abs(self._sum) <= 1e-3 * self._size


class Penalties(Listener):
    """Listens to ``torch.autograd.grad``."""

    def __init__(self, recording: Recording, scaled: ScaledLosses) -> None:
        super().__init__(recording)
        self._scaled = scaled
        self._made: list[Penalty] = []
        self._suspects: list[Penalty] = []

    @listens
    def differentiated(self, outputs: Any, grads: Any, *, create_graph: bool) -> None:
        if not create_graph or self.recording.backwards:
            return
        scaling = self._scaled.scaling_below(tensors(outputs))
        if scaling is None:
            return
        site = self.sites.here()
        names: dict[str, object] = {"scaler": scaling.scaler.name or "", "call": SourceText(site)}
        event = Event(e.PENALTY, site, None, None, {}, names)
        self._made.append(Penalty(event, [grad for grad in tensors(grads) if grad.grad_fn is not None], scaling.scale))

    def backward_begins(self, roots: Sequence[torch.Tensor]) -> None:
        """Watch those whose gradients run backward now without having been divided by the scale."""
        penalties, self._made = self._made, []
        for penalty in penalties:
            # A node is known by its identity as long as it is held.
            made = [grad.grad_fn for grad in penalty.grads]
            sources = {id(node) for node in made}
            # Whatever lies below a division by the scale is right.
            if any(id(node) in sources for node in nodes(roots, FAR, functools.partial(divides, scale=penalty.scale))):
                penalty.watch()
                self._suspects.append(penalty)

    def backward_ended(self) -> None:
        suspects, self._suspects = self._suspects, []
        for penalty in suspects:
            if penalty.counts():
                self.recording.chain.add(penalty.event)
