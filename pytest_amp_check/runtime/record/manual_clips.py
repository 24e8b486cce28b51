"""Gradients that are multiplied by a number which is made from their norm: a clip without a function of torch for it.

One multiplication does not tell it from an average. Two do: where the norm was another one and the number times the
norm is the same, that product is the limit of a clip.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from ...protocol.events import Event, Site
    from .registry import Registry
    from .tracked import TrackedOptimizer

#: Backward passes of which the gradients are measured at a place; each waits for the device once.
TRIALS = 6
#: How much a norm has to change for two of them to tell, and how much their products may differ.
CHANGED, EQUAL = 1e-2, 1e-3


class _MultiplyingSite:
    """A place that multiplies gradients of one optimizer.

    ``norms`` are those of the latest backward pass, each beside its product with the number.
    """

    __slots__ = ("is_clip", "last_backward", "norms", "reported_backward", "trial_count")

    def __init__(self) -> None:
        self.last_backward: Event | None = None
        self.reported_backward: Event | None = None
        self.norms: list[tuple[float, float]] = []
        self.trial_count = 0
        self.is_clip = False


class ManualClips:
    """Measures gradients that are multiplied, until it is known whether they are clipped."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._sites: dict[tuple[int, Site], _MultiplyingSite] = {}

    def is_clip(self, tracked: TrackedOptimizer, site: Site, factor: float, grad: torch.Tensor | None) -> bool:
        """Whether a place where a gradient is about to be multiplied by a number clips."""
        entry = self._sites.setdefault((tracked.tracked_object.key, site), _MultiplyingSite())
        if (
            entry.last_backward is not tracked.backward
            and not entry.is_clip
            and entry.trial_count < TRIALS
            and factor != 1.0
        ):
            entry.last_backward = tracked.backward
            entry.trial_count += 1
            earlier_norms, entry.norms = (
                entry.norms,
                [(norm, norm * factor) for norm in self._gradient_norms(tracked, grad)],
            )
            entry.is_clip = any(map(_is_limit, earlier_norms, entry.norms)) and not self._is_scaled(
                tracked, entry.norms
            )
        return entry.is_clip

    def mark_reported(self, tracked: TrackedOptimizer, site: Site) -> bool:
        """Whether it was said already that a place clips what the latest backward pass gave; from now on it was."""
        entry = self._sites[tracked.tracked_object.key, site]
        was_reported, entry.reported_backward = entry.reported_backward is tracked.backward, tracked.backward
        return was_reported

    def _gradient_norms(self, tracked: TrackedOptimizer, grad: torch.Tensor | None) -> list[float]:
        """The norms by which the gradients may be clipped: of the optimizer's, of all, the largest value, its own."""
        optimizers = self._registry.optimizers.values()
        optimizer_grads = [p.grad for p in tracked.params if p.grad is not None]
        all_grads = [p.grad for other in optimizers for p in other.params if p.grad is not None]
        single_grad = [] if grad is None else [grad]
        if not all(type(each) is torch.Tensor and each.layout == torch.strided for each in (*all_grads, *single_grad)):
            return []  # those of several ranks are measured by all of them together
        if any(each.is_cuda for each in all_grads) and torch.cuda.is_current_stream_capturing():
            return []
        largest = max((float(each.detach().abs().max()) for each in optimizer_grads if each.numel()), default=0.0)
        return [_total_norm(optimizer_grads), _total_norm(all_grads), largest, _total_norm(single_grad)]

    def _is_scaled(self, tracked: TrackedOptimizer, norms: list[tuple[float, float]]) -> bool:
        """Whether the limit was multiplied by the scale, as the gradients are."""
        scaler = self._registry.scaler_of(tracked)
        limit = max(product for _, product in norms)
        return scaler is not None and scaler.has_read_scale and limit >= scaler.scale.value * 1e-3


def _total_norm(grads: list[torch.Tensor]) -> float:
    return math.sqrt(sum(float(each.detach().norm()) ** 2 for each in grads))


def _is_limit(earlier: tuple[float, float], later: tuple[float, float]) -> bool:
    """Whether two norms and their products with a number show a limit."""
    if not all(math.isfinite(number) and number > 0 for number in (*earlier, *later)):
        return False
    return not math.isclose(earlier[0], later[0], rel_tol=CHANGED) and math.isclose(earlier[1], later[1], rel_tol=EQUAL)
