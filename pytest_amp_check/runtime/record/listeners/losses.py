"""Losses that are computed in low precision, and sums of them that are kept in it."""

from __future__ import annotations

from typing import Any

import torch

from ....protocol import events as e
from ..recording import Recording
from ..regions import LOW
from ..source import SiteText
from ..sums import RunningAverages, RunningSums, can_observe
from .listener import Listener, listener_method


class LossListener(Listener):
    """Listens to loss functions, and to what is added to tensors with one element."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        #: Places that computed a loss of low precision outside of any region.
        self._low_loss_site_ids: set[int] = set()
        self._sums = RunningSums()
        self._averages = RunningAverages()

    @listener_method
    def record_loss(self, function: str) -> None:
        if not self.recording.backward_depth:
            site = self.sites.current_site()
            names = {"call": SiteText(site), "loss": SiteText(site, "argument")}
            self.recording.emit(e.LOSS, site, function=function, names=names)

    @listener_method
    def record_low_loss(self, output: torch.Tensor) -> None:
        """A loss of low precision was computed, from an output that must be as well."""
        if self.recording.backward_depth or not output.requires_grad or not torch.is_grad_enabled():
            return
        if output.dtype not in LOW:
            return
        site = self.sites.current_site()
        if id(site) in self._low_loss_site_ids or not self.regions.spans.is_from_closed_region(output):
            return
        self._low_loss_site_ids.add(id(site))
        names = {"call": SiteText(site), "loss": SiteText(site, "argument", "input")}
        self.recording.emit(e.LOSS, site, low_precision=LOW[output.dtype], names=names)

    def should_watch_averages(self, tensor: torch.Tensor) -> bool:
        """Whether to look at what changes a tensor of low precision a little."""
        return (
            not (self.recording.backward_depth or self.recording.is_busy)
            and can_observe(tensor)
            and self._averages.should_look
        )

    @listener_method
    def record_low_average(self, tensor: torch.Tensor, before: torch.Tensor, term: Any) -> None:
        """A tensor of low precision was changed a little, as averages are."""
        if isinstance(term, torch.Tensor) and self._averages.stands_still(tensor, before, term):
            site = self.sites.current_site()
            names = {"sum": SiteText(site, "receiver")}
            self.recording.emit(e.LOW_SUM, site, dtype=LOW[tensor.dtype], guessed=False, stands=True, names=names)

    @listener_method
    def record_low_sum(self, tensor: torch.Tensor, term: Any, factor: float) -> None:
        """Something was added in place to a tensor of low precision with one element."""
        if (
            not self.recording.backward_depth
            and can_observe(tensor)
            and self._sums.record_addition(tensor, term, factor)
        ):
            site = self.sites.current_site()
            names = {"sum": SiteText(site, "receiver")}
            self.recording.emit(e.LOW_SUM, site, dtype=LOW[tensor.dtype], guessed=False, names=names)
