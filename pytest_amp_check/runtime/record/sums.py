"""Running sums in low precision, each compared with the same sum in float32, and averages that no longer change."""

from __future__ import annotations

import weakref
from collections.abc import MutableMapping
from typing import Any, NamedTuple

import torch
from torch.utils.weak import WeakIdKeyDictionary

#: Largest number of sums that are tracked at once.
KEPT = 256
#: Number of terms after which a sum is first checked; the next checks follow when the number has doubled.
FIRST = 16
#: Share of its terms that a sum must have lost.
LOST = 0.01
#: Largest number of checked average steps in total, and number of consecutive unchanged steps of one average. Each
#: check may wait for the device.
LOOKS, STILL = 64, 3
#: Largest number of averages that are checked at once. Each average of a large model would use up the checks in a step.
FOLLOWED = 16
#: Largest share of an average's elements that may change in an unchanged step.
FEW = 0.1
#: Largest factor of the weights with which the rounding of an average matters: half a gap between numbers, divided
#: by the factor, is the largest distance that the average never closes.
SLOW = 0.01
#: Largest error of a step, relative to the step, with which an average still follows the weights.
FOLLOWS = 0.5


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

    __slots__ = ("absolute_sum", "check_count", "exact_sum", "term_count", "version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.restart(tensor)

    def restart(self, tensor: torch.Tensor) -> None:
        """Start again from the current value."""
        self.term_count, self.check_count = 0, FIRST
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
        if self.term_count < self.check_count:
            return False
        self.check_count *= 2
        error = (self.exact_sum - tensor.detach().float().reshape(())).abs()
        return bool(torch.isfinite(error) & (error > LOST * self.absolute_sum))


class RunningSums:
    """The running sums of a recording."""

    def __init__(self) -> None:
        self._sums: MutableMapping[torch.Tensor, RunningSum] = WeakIdKeyDictionary()

    def record_addition(self, tensor: torch.Tensor, term: Any, factor: float) -> bool:
        """Record that a term was added to a tensor in place. Return True if the sum has lost too much."""
        running_sum = self._sums.get(tensor)
        if running_sum is None:
            if len(self._sums) < KEPT:
                self._sums[tensor] = RunningSum(tensor)
            return False
        if running_sum.version + 1 != tensor._version:
            # Other code has changed the tensor, for example a new epoch that starts from zero.
            running_sum.restart(tensor)
            return False
        running_sum.add_term(tensor, term, factor)
        return running_sum.has_lost(tensor)


class Decay(NamedTuple):
    """A low-precision tensor that was multiplied by a decay in place: the tensor, and its value and version then."""

    tensor_ref: weakref.ref[torch.Tensor]
    value_before: torch.Tensor
    factor: float
    version: int


class RunningAverages:
    """Low-precision tensors that change a little in each step."""

    def __init__(self) -> None:
        self._look_count = 0
        #: Tensor to the number of its consecutive steps that were lost.
        self._lost_counts: MutableMapping[torch.Tensor, int] = WeakIdKeyDictionary()
        #: The latest decay, until its step is complete.
        self._decay: Decay | None = None

    def should_look(self, tensor: torch.Tensor) -> bool:
        """Return True if the next step of a tensor should be checked: few tensors, each in several steps."""
        return self._look_count < LOOKS and (tensor in self._lost_counts or len(self._lost_counts) < FOLLOWED)

    def note_decay(self, tensor: torch.Tensor, value_before: torch.Tensor, factor: float) -> None:
        """Note that a tensor was multiplied by a decay, the first half of a step of an average."""
        self._decay = Decay(weakref.ref(tensor), value_before, factor, tensor._version)

    def find_loss(
        self, tensor: torch.Tensor, value_before: torch.Tensor, term: torch.Tensor, factor: float
    ) -> bool | None:
        """Return how repeated non-zero terms, multiplied by a factor, were lost, or None if they were not.

        True: the tensor stands still. False: it strays. A decay and a term that complete each other are one step of an
        average.
        """
        self._look_count += 1
        is_average = False
        decay, self._decay = self._decay, None
        if (
            decay is not None
            and decay.tensor_ref() is tensor
            and decay.version + 1 == tensor._version
            and factor <= SLOW
            and abs(decay.factor + factor - 1.0) <= FOLLOWS * factor
            and term.shape == tensor.shape
        ):
            value_before = decay.value_before
            is_average = _strays(value_before, tensor.detach(), term.detach(), factor)
        changed, moved = int((tensor.detach() != value_before).sum()), int((term.detach() != 0).sum())
        is_still = moved > 0 and changed <= FEW * moved
        count = self._lost_counts.get(tensor, 0) + 1 if is_still or is_average else 0
        self._lost_counts[tensor] = count
        return is_still if count == STILL else None


def _strays(before: torch.Tensor, after: torch.Tensor, target: torch.Tensor, factor: float) -> bool:
    """Return True if rounding outweighs the step of an average toward a target. May wait for the device."""
    wanted = factor * (target.float() - before.float())
    error = (after.float() - before.float() - wanted).norm()
    return bool(error > FOLLOWS * wanted.norm())


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


class IntegerSums:
    """Low-precision tensors to which integers are added in place, as counts of tokens or samples."""

    def __init__(self) -> None:
        #: Tensor to the number of additions.
        self._term_counts: MutableMapping[torch.Tensor, int] = WeakIdKeyDictionary()

    def is_inexact(self, tensor: torch.Tensor) -> bool:
        """Return True if a check is due and the tensor no longer holds all integers. May wait for the device.

        A check is due after 2, 4, 8 and so on additions. After one, the tensor may be a copy of the integers.
        """
        if tensor not in self._term_counts and len(self._term_counts) >= KEPT:
            return False
        count = self._term_counts.get(tensor, 0) + 1
        self._term_counts[tensor] = count
        if count == 1 or count.bit_count() > 1 or not tensor.numel():
            return False
        return bool(tensor.detach().abs().max() >= 2.0 / torch.finfo(tensor.dtype).eps)
