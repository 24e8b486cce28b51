"""Calls of ``torch.autograd.grad``: results for the search of non-finite values, and overflows that no scaler sees."""

from __future__ import annotations

from typing import Any

import torch

from ....protocol import events as e
from ....protocol.events import Event
from ..deferred_values import FoundInf
from ..derivatives import Derivatives
from ..graph import find_tensors
from ..recording import Recording
from ..scaled_losses import ScaledLosses
from ..source.call_texts import SiteText
from ..sums import can_observe
from .gradients import GradientListener
from .listener import Listener, listener_method


class DerivativeListener(Listener):
    """A listener for ``torch.autograd.grad``.

    A scaler checks only ``.grad``. If it applies a step after other gradients of a scaled loss overflowed, the program
    has used the overflow.
    """

    def __init__(
        self,
        recording: Recording,
        scaled_losses: ScaledLosses,
        gradients: GradientListener,
        derivatives: Derivatives,
    ) -> None:
        super().__init__(recording)
        self._scaled_losses = scaled_losses
        self._gradients = gradients
        self._derivatives = derivatives
        #: The overflow since the last step, or None; and ids of the reported locations.
        self._overflow: Event | None = None
        self._reported_site_ids: set[int] = set()

    @listener_method
    def record_differentiation(self, outputs: Any, results: Any, *, create_graph: bool) -> None:
        if self.recording.backward_depth:
            return
        tensors, roots = find_tensors(results), find_tensors(outputs)
        if not tensors or not all(
            can_observe(tensor) and tensor.layout is torch.strided for tensor in (*tensors, *roots)
        ):
            return
        is_scaled = self._scaled_losses.find_below(roots) is not None or any(map(self._is_scaled_gradient, roots))
        site = self.sites.current_site()
        self._derivatives.record(tensors, site, is_scaled=is_scaled)
        self._gradients.has_scaled_derivatives |= is_scaled
        # With a graph the result enters a loss, and the scaler sees its overflow in the gradients.
        if not is_scaled or create_graph or self._overflow is not None or id(site) in self._reported_site_ids:
            return
        if not all(map(_is_finite_on_cpu, tensors)):
            names: dict[str, object] = {"call": SiteText(site), "step": str(self.recording.steps.total)}
            self._overflow = e.NotFinite(site, how="derivative", names=names)

    def _is_scaled_gradient(self, tensor: torch.Tensor) -> bool:
        """Return True if a tensor is a scaled ``.grad``, or the result of another call for a scaled loss."""
        earlier = self._derivatives.by_storage().get(int(tensor.untyped_storage()._cdata))
        if earlier is not None:
            return earlier.is_scaled
        keys = self._gradients.owners_of(tensor)
        return any(tracked is not None and tracked.is_scaled for tracked in map(self.registry.find_by_key, keys))

    def record_step(self, found_inf: FoundInf) -> None:
        """Record a step that a scaler applied or skipped."""
        event, self._overflow = self._overflow, None
        self._gradients.has_scaled_derivatives = False
        if event is not None and not found_inf:
            self._reported_site_ids.add(id(event.site))
            self.recording.run_checker.add_event(event)


def _is_finite_on_cpu(tensor: torch.Tensor) -> bool:
    """Return True if a strided tensor is finite, or on a device that would have to be waited for."""
    return tensor.untyped_storage().device.type != "cpu" or bool(torch.isfinite(tensor.detach()).all())
