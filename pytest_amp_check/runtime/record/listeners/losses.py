"""Losses that are computed in low precision, and sums of them that are kept in it."""

from __future__ import annotations

from typing import Any

import torch

from ....protocol import events as e
from ..recording import Recording
from ..regions import LOW
from ..source import SourceText
from ..sums import Averages, Sums, can_follow
from .listener import Listener, listens


class Losses(Listener):
    """Listens to loss functions, and to what is added to tensors with one element."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        #: Places that computed a loss of low precision outside of any region.
        self._low: set[int] = set()
        self._sums = Sums()
        self._averages = Averages()

    @listens
    def computed(self, function: str) -> None:
        if not self.recording.backwards:
            site = self.sites.here()
            names = {"call": SourceText(site), "loss": SourceText(site, "argument")}
            self.recording.emit(e.LOSS, site, function=function, names=names)

    @listens
    def computed_low(self, output: torch.Tensor) -> None:
        """A loss of low precision was computed, from an output that must be as well."""
        if self.recording.backwards or not output.requires_grad or not torch.is_grad_enabled():
            return
        if output.dtype not in LOW:
            return
        site = self.sites.here()
        if id(site) in self._low or not self.regions.spans.left_behind(output):
            return
        self._low.add(id(site))
        names = {"call": SourceText(site), "loss": SourceText(site, "argument", "input")}
        self.recording.emit(e.LOSS, site, low_precision=LOW[output.dtype], names=names)

    def watches_averages(self, tensor: torch.Tensor) -> bool:
        """Whether to look at what changes a tensor of low precision a little."""
        return not (self.recording.backwards or self.recording.busy) and can_follow(tensor) and self._averages.wanted

    @listens
    def averaged_low(self, tensor: torch.Tensor, before: torch.Tensor, term: Any) -> None:
        """A tensor of low precision was changed a little, as averages are."""
        if isinstance(term, torch.Tensor) and self._averages.stands_still(tensor, before, term):
            site = self.sites.here()
            names = {"sum": SourceText(site, "receiver")}
            self.recording.emit(e.LOW_SUM, site, dtype=LOW[tensor.dtype], guessed=False, stands=True, names=names)

    @listens
    def added_low(self, tensor: torch.Tensor, term: Any, factor: float) -> None:
        """Something was added in place to a tensor of low precision with one element."""
        if not self.recording.backwards and can_follow(tensor) and self._sums.added(tensor, term, factor):
            site = self.sites.here()
            names = {"sum": SourceText(site, "receiver")}
            self.recording.emit(e.LOW_SUM, site, dtype=LOW[tensor.dtype], guessed=False, names=names)
