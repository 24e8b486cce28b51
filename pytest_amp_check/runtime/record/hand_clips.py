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


class _Place:
    """A place that multiplies gradients of one optimizer.

    ``norms`` are those of the latest backward pass, each beside its product with the number.
    """

    __slots__ = ("backward", "clips", "norms", "told", "trials")

    def __init__(self) -> None:
        self.backward: Event | None = None
        self.told: Event | None = None
        self.norms: list[tuple[float, float]] = []
        self.trials = 0
        self.clips = False


class HandClips:
    """Measures gradients that are multiplied, until it is known whether they are clipped."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._places: dict[tuple[int, Site], _Place] = {}

    def clips(self, tracked: TrackedOptimizer, site: Site, factor: float, grad: torch.Tensor | None) -> bool:
        """Whether a place where a gradient is about to be multiplied by a number clips."""
        place = self._places.setdefault((tracked.thing.key, site), _Place())
        if place.backward is not tracked.backward and not place.clips and place.trials < TRIALS and factor != 1.0:
            place.backward = tracked.backward
            place.trials += 1
            before, place.norms = place.norms, [(norm, norm * factor) for norm in self._norms(tracked, grad)]
            place.clips = any(map(_is_limit, before, place.norms)) and not self._is_scaled(tracked, place.norms)
        return place.clips

    def told(self, tracked: TrackedOptimizer, site: Site) -> bool:
        """Whether it was said already that a place clips what the latest backward pass gave; from now on it was."""
        place = self._places[tracked.thing.key, site]
        told, place.told = place.told is tracked.backward, tracked.backward
        return told

    def _norms(self, tracked: TrackedOptimizer, grad: torch.Tensor | None) -> list[float]:
        """The norms by which the gradients may be clipped: of the optimizer's, of all, the largest value, its own."""
        optimizers = self._registry.optimizers.values()
        mine = [p.grad for p in tracked.params if p.grad is not None]
        every = [p.grad for other in optimizers for p in other.params if p.grad is not None]
        own = [] if grad is None else [grad]
        if not all(type(each) is torch.Tensor and each.layout == torch.strided for each in (*every, *own)):
            return []  # those of several ranks are measured by all of them together
        if any(each.is_cuda for each in every) and torch.cuda.is_current_stream_capturing():
            return []
        largest = max((float(each.detach().abs().max()) for each in mine if each.numel()), default=0.0)
        return [_norm(mine), _norm(every), largest, _norm(own)]

    def _is_scaled(self, tracked: TrackedOptimizer, norms: list[tuple[float, float]]) -> bool:
        """Whether the limit was multiplied by the scale, as the gradients are."""
        scaler = self._registry.scaler_of(tracked)
        limit = max(product for _, product in norms)
        return scaler is not None and scaler.scale_read and limit >= scaler.scale.value * 1e-3


def _norm(grads: list[torch.Tensor]) -> float:
    return math.sqrt(sum(float(each.detach().norm()) ** 2 for each in grads))


def _is_limit(before: tuple[float, float], now: tuple[float, float]) -> bool:
    """Whether two norms and their products with a number show a limit."""
    if not all(math.isfinite(number) and number > 0 for number in (*before, *now)):
        return False
    return not math.isclose(before[0], now[0], rel_tol=CHANGED) and math.isclose(before[1], now[1], rel_tol=EQUAL)
