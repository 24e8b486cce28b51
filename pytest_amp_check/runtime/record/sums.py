"""Running sums of low precision, each beside the same sum in float32, and averages that stand still."""

from __future__ import annotations

import weakref
from typing import Any

import torch

#: Sums that are followed at once.
KEPT = 256
#: Terms after which a sum is looked at first, and again each time that they have doubled.
FIRST = 16
#: The share of its terms that a sum must have lost.
LOST = 0.01
#: Steps of averages that are looked at, in all and of one that stands still; each may wait for the device.
LOOKS, STILL = 64, 3
#: The share of its numbers up to which an average that stands still may have changed.
FEW = 0.1


def can_follow(tensor: torch.Tensor) -> bool:
    """Whether a tensor counts its changes and its value may be asked for."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and not tensor.is_inference()
        and not tensor.is_meta
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())
    )


class Sum:
    """A tensor with one element to which terms are added in place."""

    __slots__ = ("exact", "size", "tensor", "terms", "version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = weakref.ref(tensor)
        self.start(tensor)

    def start(self, tensor: torch.Tensor) -> None:
        """Take the sum as it is."""
        self.terms = 0
        self.exact = tensor.detach().float().reshape(())
        self.size = self.exact.abs()
        self.version = tensor._version

    def add(self, tensor: torch.Tensor, term: Any, factor: float) -> None:
        """Take note of a term that was added."""
        term = term.detach().float().reshape(()) * factor if isinstance(term, torch.Tensor) else term * factor
        self.exact = self.exact + term
        self.size = self.size + abs(term)
        self.terms += 1
        self.version = tensor._version

    def has_lost(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor, where it is time to look, has lost what was added. This waits for the device."""
        if self.terms < FIRST or self.terms & (self.terms - 1):
            return False
        error = (self.exact - tensor.detach().float().reshape(())).abs()
        return bool(torch.isfinite(error) & (error > LOST * self.size))


class Sums:
    """The running sums of a recording."""

    def __init__(self) -> None:
        self._sums: dict[int, Sum] = {}

    def added(self, tensor: torch.Tensor, term: Any, factor: float) -> bool:
        """A term was added to a tensor in place; whether the sum has lost too much by now."""
        followed = self._sums.get(id(tensor))
        if followed is None or followed.tensor() is not tensor:
            if len(self._sums) >= KEPT:
                self._sums = {key: kept for key, kept in self._sums.items() if kept.tensor() is not None}
            if len(self._sums) < KEPT:
                self._sums[id(tensor)] = Sum(tensor)
            return False
        if followed.version + 1 != tensor._version:
            # Something else has changed it, as a new epoch does that starts from zero.
            followed.start(tensor)
            return False
        followed.add(tensor, term, factor)
        return followed.has_lost(tensor)


class Averages:
    """Tensors of low precision that are changed a little again and again."""

    def __init__(self) -> None:
        self._looks = 0
        #: How often in a row a tensor was left as it was.
        self._still: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}

    @property
    def wanted(self) -> bool:
        """Whether to look at more of them."""
        return self._looks < LOOKS

    def stands_still(self, tensor: torch.Tensor, before: torch.Tensor, term: torch.Tensor) -> bool:
        """Whether a term that is not zero has left a tensor as it was, not for the first time."""
        self._looks += 1
        changed, moved = int((tensor.detach() != before).sum()), int((term.detach() != 0).sum())
        known, count = self._still.get(id(tensor), (None, 0))
        count = count + 1 if known is not None and known() is tensor else 1
        if not moved or changed > FEW * moved:
            count = 0
        self._still[id(tensor)] = (weakref.ref(tensor), count)
        return count == STILL
