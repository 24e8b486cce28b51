"""Manual averages of weights around steps that a scaler skipped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .deferred_values import FoundInf
from .graph import storage_pointer
from .tracked import TrackedOptimizer

#: Largest relative deviation of a term from a share of the weights, and smallest number of elements that excludes
#: chance.
NEAR, MANY = 1e-3, 8


class AfterSkip:
    """The changes of other tensors from a skipped step until the second step after it.

    A change at the same location in both iterations happens in every iteration.
    """

    def __init__(self, tracked: TrackedOptimizer, found_inf: FoundInf, trained_params: Sequence[torch.Tensor]) -> None:
        self.tracked_optimizer = tracked
        self.found_inf = found_inf
        #: True if the step after the skipped step has run.
        self.next_step_made = False
        #: Ids of the locations that averaged weights since the skipped step.
        self.averaging_site_ids: set[int] = set()
        self._weight_storages = {storage_pointer(p) for p in tracked.params}
        self._trained_params = trained_params

    def is_averaging(self, tensor: torch.Tensor, effect: str, operands: Sequence[Any]) -> bool:
        """Return True if a tensor that is about to change moves a part of the distance to the weights."""
        term = next((x for x in operands if isinstance(x, torch.Tensor)), None)
        if term is None or term.shape != tensor.shape or not (_is_plain(tensor) and _is_plain(term)):
            return False
        # A term added to a gradient is weight decay.
        changed_storage = storage_pointer(tensor)
        if any(
            storage_pointer(p) == changed_storage
            or (p._grad is not None and storage_pointer(p._grad) == changed_storage)
            for p in self._trained_params
        ):
            return False
        if effect != "replace":
            return storage_pointer(term) in self._weight_storages or self._is_share(term, None)
        return storage_pointer(term) not in self._weight_storages and self._is_share(term, tensor)

    def _is_share(self, term: torch.Tensor, start: torch.Tensor | None) -> bool:
        """Return True if a term is a share of the weights, or of the distance from ``start`` to the weights."""
        if term.numel() < MANY:
            return False
        with torch.no_grad():
            change = term.detach().float() if start is None else term.detach().float() - start.detach().float()
            for p in self.tracked_optimizer.params:
                if p.shape != term.shape or p.device != term.device:
                    continue
                direction = p.detach().float() if start is None else p.detach().float() - start.detach().float()
                overlap, size = float((change * direction).sum()), float((direction * direction).sum())
                if 0.0 < overlap < size:
                    rest = change - overlap / size * direction
                    # Rounding dominates a hundredth of the difference between similar numbers.
                    if float(rest.norm()) <= NEAR * float(direction.norm()):
                        return True
        return False


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.layout is torch.strided and not tensor.is_meta
