"""Running sums in low precision, each compared with the same sum in float32, and averages that no longer change."""

from __future__ import annotations

import weakref
from typing import Any

import torch

#: Largest number of sums that are tracked at once.
KEPT = 256
#: Number of terms after which a sum is first checked; the next checks follow when the number has doubled.
FIRST = 16
#: Share of its terms that a sum must have lost.
LOST = 0.01
#: Largest number of checked average steps in total, and number of consecutive unchanged steps of one average. Each
#: check may wait for the device.
LOOKS, STILL = 64, 3
#: Largest share of an average's elements that may change in an unchanged step.
FEW = 0.1


def can_observe(tensor: torch.Tensor) -> bool:
    """Return True if a tensor has a version counter and its value may be read now."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and not tensor.is_inference()
        and not tensor.is_meta
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())
    )


class RunningSum:
    """A tensor with one element to which terms are added in place."""

    __slots__ = ("absolute_sum", "exact_sum", "tensor_ref", "term_count", "version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor_ref = weakref.ref(tensor)
        self.restart(tensor)

    def restart(self, tensor: torch.Tensor) -> None:
        """Start again from the current value."""
        self.term_count = 0
        self.exact_sum = tensor.detach().float().reshape(())
        self.absolute_sum = self.exact_sum.abs()
        self.version = tensor._version

    def add_term(self, tensor: torch.Tensor, term: Any, factor: float) -> None:
        """Add a term to the reference sum."""
        term = term.detach().float().reshape(()) * factor if isinstance(term, torch.Tensor) else term * factor
        self.exact_sum = self.exact_sum + term
        self.absolute_sum = self.absolute_sum + abs(term)
        self.term_count += 1
        self.version = tensor._version

    def has_lost(self, tensor: torch.Tensor) -> bool:
        """Return True if a check is due and the tensor has lost too much of its terms. Waits for the device."""
        if self.term_count < FIRST or self.term_count & (self.term_count - 1):
            return False
        error = (self.exact_sum - tensor.detach().float().reshape(())).abs()
        return bool(torch.isfinite(error) & (error > LOST * self.absolute_sum))


class RunningSums:
    """The running sums of a recording."""

    def __init__(self) -> None:
        self._sums: dict[int, RunningSum] = {}

    def record_addition(self, tensor: torch.Tensor, term: Any, factor: float) -> bool:
        """Record that a term was added to a tensor in place. Return True if the sum has lost too much."""
        running_sum = self._sums.get(id(tensor))
        if running_sum is None or running_sum.tensor_ref() is not tensor:
            if len(self._sums) >= KEPT:
                self._sums = {key: entry for key, entry in self._sums.items() if entry.tensor_ref() is not None}
            if len(self._sums) < KEPT:
                self._sums[id(tensor)] = RunningSum(tensor)
            return False
        if running_sum.version + 1 != tensor._version:
            # Other code has changed the tensor, for example a new epoch that starts from zero.
            running_sum.restart(tensor)
            return False
        running_sum.add_term(tensor, term, factor)
        return running_sum.has_lost(tensor)


class RunningAverages:
    """Low-precision tensors that change a little in each step."""

    def __init__(self) -> None:
        self._look_count = 0
        #: ``id`` of a tensor to a reference and the number of consecutive unchanged steps.
        self._still_counts: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}

    @property
    def should_look(self) -> bool:
        """True if the limit of checked steps is not reached."""
        return self._look_count < LOOKS

    def stands_still(self, tensor: torch.Tensor, value_before: torch.Tensor, term: torch.Tensor) -> bool:
        """Return True if repeated non-zero terms have left a tensor unchanged."""
        self._look_count += 1
        changed, moved = int((tensor.detach() != value_before).sum()), int((term.detach() != 0).sum())
        reference, count = self._still_counts.get(id(tensor), (None, 0))
        count = count + 1 if reference is not None and reference() is tensor else 1
        if not moved or changed > FEW * moved:
            count = 0
        self._still_counts[id(tensor)] = (weakref.ref(tensor), count)
        return count == STILL


class LowCounts:
    """Counts in low precision: ones that are added up by an index."""

    def __init__(self) -> None:
        self._look_count = 0

    def is_inexact(self, tensor: torch.Tensor, source: Any) -> bool:
        """Return True if ones were added to a tensor that no longer holds all integers. May wait for the device."""
        if self._look_count >= LOOKS or not isinstance(source, torch.Tensor) or not tensor.numel():
            return False
        self._look_count += 1
        return bool((tensor.detach().max() >= 2.0 / torch.finfo(tensor.dtype).eps) & (source.detach() == 1).all())
