"""Losses that are scaled though their forward ran in float32, without autocast."""

from __future__ import annotations

from typing import Any

import torch

from ....protocol import events as e
from ....protocol.events import Event, Site
from .. import active
from ..forwards import Calls, float32_products, is_outermost
from ..recording import Recording
from ..source import chooses_autocast
from .listener import Listener, listens

#: How often a scaler may scale until the forward behind a loss that it has scaled is seen.
TURNS = 8


class Forwards(Listener):
    """Finds the call of a module behind a loss, while it looks for one."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        #: Events of scaling whose forward is sought, and how often scalers have scaled since.
        self._sought: list[Event] = []
        self._turns = 0
        self._calls = Calls()

    def seek(self, event: Event, losses: list[torch.Tensor]) -> None:
        """Look for the forward of a loss that was scaled for the first time, if that ran in float32."""
        if self._in_float32(event.site, losses):
            self._sought.append(event)
            self._turns = 0
            self._calls.watch(self._module_called)

    def scaled_again(self, site: Site, losses: list[torch.Tensor]) -> None:
        """Find the calls of the modules behind losses that are scaled once more.

        What is scaled once may be a trial, and by then its forward has been.
        """
        if not self._sought:
            return
        for event in [event for event in self._sought if event.site is site]:
            products = self._in_float32(site, losses) if self._calls else []
            if products:
                found = self._calls.of(products)
                event.facts["forward"] = None if found is None else Event(e.FORWARD, found)
                entered = bool(self.recording.program.facts["enters_autocast"])
                event.facts.update(float32=True, forward_read=True, autocast="out", loss_in_region=entered)
                self._sought.remove(event)
        self._turns += 1
        if self._sought and self._turns <= TURNS:
            self._calls.watch(self._module_called)
        else:
            self._sought.clear()
            self.unwatch()

    def unwatch(self) -> None:
        self._calls.unwatch()

    def _in_float32(self, site: Site, losses: list[torch.Tensor]) -> list[Any]:
        """The matrix products behind losses that ran without autocast, nearest first.

        A program that chooses whether to enter autocast, and has not, was told so. Where autocast is entered elsewhere,
        what runs in a region that switches it off does so on purpose.
        """
        spans = self.regions.spans
        products = float32_products(losses, spans.began)
        around = [enabled for node in products for enabled in spans.around(node)]
        if any(around):
            return []
        if not self.recording.program.facts["enters_autocast"]:
            chosen = self.regions.chosen or self.recording.read(site, chooses_autocast)
            return [] if chosen else products
        return products if not around and all(spans.enabled_at(loss.grad_fn) for loss in losses) else []

    def _module_called(self, module: torch.nn.Module, args: Any) -> None:
        if not torch.compiler.is_compiling() and active.is_active(self.recording) and is_outermost():
            self._call_seen()

    @listens
    def _call_seen(self) -> None:
        if not self.recording.backwards:
            self._calls.saw(self.sites.here())
