"""Manual clipping: gradients multiplied by a number computed from their norm, without a clip function of torch.

One multiplication looks like an average. Two multiplications with different norms identify a clip: if number times norm
is the same in both, the product is the limit of a clip.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from ...protocol.events import Event
    from ...protocol.sites import Site
    from .registry import Registry
    from .tracked import TrackedOptimizer

#: Largest number of backward passes whose gradients are measured at a location. Each measurement waits for the device
#: once.
TRIALS = 6
#: Smallest relative change of the norm between two measurements, and largest relative difference of the products.
CHANGED, EQUAL = 1e-2, 1e-3


class _MultiplyingSite:
    """A location that multiplies gradients of one optimizer.

    ``norms`` are the norms of the latest backward pass, each with its product with the number.
    """

    __slots__ = ("is_clip", "last_backward", "norms", "reported_backward", "trial_count")

    def __init__(self) -> None:
        self.last_backward: Event | None = None
        self.reported_backward: Event | None = None
        self.norms: list[tuple[float, float]] = []
        self.trial_count = 0
        self.is_clip = False


class ManualClips:
    """A detector of manual clips that measures multiplied gradients until the location is known to clip."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._sites: dict[tuple[int, Site], _MultiplyingSite] = {}

    def is_clip(self, tracked: TrackedOptimizer, site: Site, factor: float, grad: torch.Tensor | None) -> bool:
        """Return True if a location that is about to multiply a gradient by a number is known to clip."""
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
        """Mark the clip of the latest backward pass as reported. Return True if the clip was already marked."""
        entry = self._sites[tracked.tracked_object.key, site]
        was_reported, entry.reported_backward = entry.reported_backward is tracked.backward, tracked.backward
        return was_reported

    def _gradient_norms(self, tracked: TrackedOptimizer, grad: torch.Tensor | None) -> list[float]:
        """Return the norms that a clip may use: of the optimizer's gradients, all gradients, the maximum, ``grad``."""
        optimizers = self._registry.optimizers.values()
        optimizer_grads = [p.grad for p in tracked.params if p.grad is not None]
        all_grads = [p.grad for other in optimizers for p in other.params if p.grad is not None]
        single_grad = [] if grad is None else [grad]
        if not all(type(each) is torch.Tensor and each.layout == torch.strided for each in (*all_grads, *single_grad)):
            return []  # norms of sharded gradients need all ranks
        if any(each.is_cuda for each in all_grads) and torch.cuda.is_current_stream_capturing():
            return []
        largest = max((float(each.detach().abs().max()) for each in optimizer_grads if each.numel()), default=0.0)
        return [_total_norm(optimizer_grads), _total_norm(all_grads), largest, _total_norm(single_grad)]

    def _is_scaled(self, tracked: TrackedOptimizer, norms: list[tuple[float, float]]) -> bool:
        """Return True if the limit was multiplied by the scale, like the gradients."""
        scaler = self._registry.scaler_of(tracked)
        limit = max(product for _, product in norms)
        return scaler is not None and scaler.has_read_scale and limit >= scaler.scale.value * 1e-3


def _total_norm(grads: list[torch.Tensor]) -> float:
    return math.sqrt(sum(float(each.detach().norm()) ** 2 for each in grads))


def _is_limit(earlier: tuple[float, float], later: tuple[float, float]) -> bool:
    """Return True if two norms and their products with a number imply a limit."""
    if not all(math.isfinite(number) and number > 0 for number in (*earlier, *later)):
        return False
    return not math.isclose(earlier[0], later[0], rel_tol=CHANGED) and math.isclose(earlier[1], later[1], rel_tol=EQUAL)
