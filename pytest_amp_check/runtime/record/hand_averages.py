"""Averages of weights that a program computes by itself, beside steps that a scaler has skipped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .graph import storage
from .readings import FoundInf
from .tracked import TrackedOptimizer

#: How far a term may be from being a share of the weights, and the numbers that it takes for that to be no chance.
NEAR, MANY = 1e-3, 8


class AfterSkip:
    """What a program does to other tensors from a step that was skipped on, until the second step after it.

    What it does in both turns, at the same places, it does in each turn.
    """

    def __init__(self, tracked: TrackedOptimizer, skipped: FoundInf, trained: Sequence[torch.Tensor]) -> None:
        self.tracked = tracked
        self.skipped = skipped
        #: Whether the step after the skipped one is made.
        self.again = False
        #: Identities of the places that have averaged weights since the skipped step.
        self.places: set[int] = set()
        self._storages = {storage(p) for p in tracked.params}
        self._trained = trained

    def averages(self, tensor: torch.Tensor, effect: str, given: Sequence[Any]) -> bool:
        """Whether a tensor that is about to be changed moves a part of the way to the weights."""
        term = next((x for x in given if isinstance(x, torch.Tensor)), None)
        if term is None or term.shape != tensor.shape or not (_is_plain(tensor) and _is_plain(term)):
            return False
        # What is added to a gradient is a decay of the weights.
        changed = storage(tensor)
        if any(storage(p) == changed or (p._grad is not None and storage(p._grad) == changed) for p in self._trained):
            return False
        if effect != "replace":
            return storage(term) in self._storages or self._is_share(term, None)
        return storage(term) not in self._storages and self._is_share(term, tensor)

    def _is_share(self, term: torch.Tensor, start: torch.Tensor | None) -> bool:
        """Whether a term is a part of the weights, or of the way to them from a start."""
        if term.numel() < MANY:
            return False
        with torch.no_grad():
            moved = term.detach().float() if start is None else term.detach().float() - start.detach().float()
            for p in self.tracked.params:
                if p.shape != term.shape or p.device != term.device:
                    continue
                way = p.detach().float() if start is None else p.detach().float() - start.detach().float()
                size = float((way * way).sum())
                share = float((moved * way).sum()) / size if size else 0.0
                # Of a hundredth of a difference between numbers that are alike rounding takes its part.
                if 0.0 < share < 1.0 and float((moved - share * way).norm()) <= NEAR * float(way.norm()):
                    return True
        return False


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.layout is torch.strided and not tensor.is_meta
