"""Losses that are computed in low precision, and low-precision sums of losses."""

from __future__ import annotations

import operator
from typing import Any

import torch

from ....protocol import events as e
from ..recording import Recording
from ..regions import LOW
from ..source.call_texts import Role, SiteText
from ..sums import IntegerSums, LowCounts, RunningAverages, RunningSums, can_observe
from .listener import Listener, listener_method

#: First batches of a CTC loss that are checked: a program that leaves out single bad batches is right.
UNALIGNED = 3


class LossListener(Listener):
    """A listener for loss functions, and for additions to tensors with one element."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        #: Ids of the locations that computed a low-precision loss outside of any region.
        self._low_loss_site_ids: set[int] = set()
        #: Id of a location -> batches so far without an alignment of any sample, or None after one with an alignment.
        self._unaligned_batches: dict[int, int | None] = {}
        self._sums = RunningSums()
        self._averages = RunningAverages()
        self._counts = LowCounts()
        self._integer_sums = IntegerSums()

    @listener_method
    def record_loss(self, function: str) -> None:
        if not self.recording.backward_depth:
            site = self.sites.current_site()
            names = {"call": SiteText(site), "loss": SiteText(site, Role.ARGUMENT)}
            self.recording.emit(e.Loss(site, function=function, names=names))

    @listener_method
    def record_low_loss(self, output: torch.Tensor) -> None:
        """Record a loss computed in low precision from a low-precision output."""
        if self.recording.backward_depth or not output.requires_grad or not torch.is_grad_enabled():
            return
        if output.dtype not in LOW:
            return
        site = self.sites.current_site()
        if id(site) in self._low_loss_site_ids or not self.regions.spans.is_from_closed_region(output):
            return
        self._low_loss_site_ids.add(id(site))
        given = SiteText(site, Role.ARGUMENT, "input")
        names = {"call": SiteText(site), "loss": given, "output": given}
        self.recording.emit(e.Loss(site, low_precision=LOW[output.dtype], names=names))

    @listener_method
    def record_lengths(self, output: torch.Tensor, input_lengths: Any, target_lengths: Any) -> None:
        """Record the lengths of a CTC loss that replaces infinities by zero."""
        if self.recording.backward_depth or not output.requires_grad or not torch.is_grad_enabled():
            return
        site = self.sites.current_site()
        count = self._unaligned_batches.get(id(site), 0)
        if count is None:
            return
        inputs, targets = _read_lengths(input_lengths), _read_lengths(target_lengths)
        # Repeated labels need even longer inputs.
        is_unaligned = len(inputs) == len(targets) > 0 and all(map(operator.gt, targets, inputs))
        self._unaligned_batches[id(site)] = count + 1 if is_unaligned else None
        if is_unaligned and count + 1 == UNALIGNED:
            self._unaligned_batches[id(site)] = None
            names = {"call": SiteText(site), "count": str(UNALIGNED)}
            self.recording.emit(e.NotFinite(site, how="no-alignment", names=names))

    def should_watch_averages(self, tensor: torch.Tensor) -> bool:
        """Return True if small changes of a low-precision tensor should be checked."""
        return (
            not (self.recording.backward_depth or self.recording.is_busy)
            and can_observe(tensor)
            and self._averages.should_look(tensor)
        )

    @listener_method
    def record_low_decay(self, tensor: torch.Tensor, before: torch.Tensor, factor: float) -> None:
        """Record that a low-precision tensor was multiplied by a decay, as in the first half of an average's step."""
        self._averages.note_decay(tensor, before, factor)

    @listener_method
    def record_low_average(self, tensor: torch.Tensor, before: torch.Tensor, term: Any, factor: float) -> None:
        """Record a small change of a low-precision tensor, as in averages."""
        is_still = self._averages.find_loss(tensor, before, term, factor) if isinstance(term, torch.Tensor) else None
        if is_still is not None:
            site = self.sites.current_site()
            names = {"sum": SiteText(site, Role.RECEIVER)}
            self.recording.emit(
                e.LowSum(
                    site,
                    dtype=LOW[tensor.dtype],
                    stands=is_still,
                    average=not is_still,
                    names=names,
                )
            )

    @listener_method
    def record_low_sum(self, tensor: torch.Tensor, term: Any, factor: float) -> None:
        """Record an in-place addition to a low-precision tensor with one element."""
        if (
            not self.recording.backward_depth
            and can_observe(tensor)
            and self._sums.record_addition(tensor, term, factor)
        ):
            site = self.sites.current_site()
            names = {"sum": SiteText(site, Role.RECEIVER)}
            self.recording.emit(e.LowSum(site, dtype=LOW[tensor.dtype], names=names))

    @listener_method
    def record_integers_added(self, tensor: torch.Tensor) -> None:
        """Record integers that were added to a low-precision tensor in place."""
        if not self.recording.backward_depth and can_observe(tensor) and self._integer_sums.is_inexact(tensor):
            self._emit_count(tensor)

    @listener_method
    def record_low_count(self, tensor: torch.Tensor, source: Any) -> None:
        """Record a sum by index in a low-precision tensor."""
        if not self.recording.backward_depth and can_observe(tensor) and self._counts.is_inexact(tensor, source):
            self._emit_count(tensor)

    def _emit_count(self, tensor: torch.Tensor) -> None:
        site = self.sites.current_site()
        names = {"sum": SiteText(site, Role.RECEIVER)}
        self.recording.emit(e.LowSum(site, dtype=LOW[tensor.dtype], count=True, names=names))


def _read_lengths(lengths: Any) -> list[int]:
    """Return the lengths of samples, or [] if they are on a device that would have to be waited for."""
    if not isinstance(lengths, torch.Tensor):
        return list(lengths) if isinstance(lengths, (list, tuple)) else []
    if not can_observe(lengths) or lengths.untyped_storage().device.type != "cpu":
        return []
    return [int(length) for length in lengths.flatten().tolist()]
