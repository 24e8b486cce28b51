"""Losses that are scaled though their forward ran in float32, without autocast."""

from __future__ import annotations

from typing import Any

import torch

from ....protocol import events as e
from ....protocol.events import Event, Site
from .. import active
from ..forwards import ModuleCalls, float32_products, is_outermost
from ..recording import Recording
from ..source import chooses_autocast
from .listener import Listener, listener_method

#: How often a scaler may scale until the forward behind a loss that it has scaled is seen.
TURNS = 8


class ForwardListener(Listener):
    """Finds the call of a module behind a loss, while it looks for one."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        #: Events of scaling whose forward is sought, and how often scalers have scaled since.
        self._sought_events: list[Event] = []
        self._scale_count = 0
        self._calls = ModuleCalls()

    def seek_forward(self, event: Event, losses: list[torch.Tensor]) -> None:
        """Look for the forward of a loss that was scaled for the first time, if that ran in float32."""
        if self._float32_products(event.site, losses):
            self._sought_events.append(event)
            self._scale_count = 0
            self._calls.start_watching(self._hook_forward)

    def record_scaling(self, site: Site, losses: list[torch.Tensor]) -> None:
        """Find the calls of the modules behind losses that are scaled once more.

        What is scaled once may be a trial, and by then its forward has been.
        """
        if not self._sought_events:
            return
        for event in [event for event in self._sought_events if event.site is site]:
            products = self._float32_products(site, losses) if self._calls else []
            if products:
                call_site = self._calls.site_of_product(products)
                event.attributes["forward"] = None if call_site is None else Event(e.FORWARD, call_site)
                enters_autocast = bool(self.recording.program.attributes["enters_autocast"])
                event.attributes.update(float32=True, forward_read=True, autocast="out", loss_in_region=enters_autocast)
                self._sought_events.remove(event)
        self._scale_count += 1
        if self._sought_events and self._scale_count <= TURNS:
            self._calls.start_watching(self._hook_forward)
        else:
            self._sought_events.clear()
            self.stop_watching()

    def stop_watching(self) -> None:
        self._calls.stop_watching()

    def _float32_products(self, site: Site, losses: list[torch.Tensor]) -> list[Any]:
        """The matrix products behind losses that ran without autocast, nearest first.

        A program that chooses whether to enter autocast, and has not, was told so. Where autocast is entered elsewhere,
        what runs in a region that switches it off does so on purpose.
        """
        spans = self.regions.spans
        products = float32_products(losses, spans.start_number)
        enabled_regions = [enabled for node in products for enabled in spans.enabled_around(node)]
        if any(enabled_regions):
            return []
        if not self.recording.program.attributes["enters_autocast"]:
            is_chosen = self.regions.is_autocast_chosen or self.recording.query_source(site, chooses_autocast)
            return [] if is_chosen else products
        return products if not enabled_regions and all(spans.is_enabled_at(loss.grad_fn) for loss in losses) else []

    def _hook_forward(self, module: torch.nn.Module, args: Any) -> None:
        if not torch.compiler.is_compiling() and active.is_active(self.recording) and is_outermost():
            self._record_call()

    @listener_method
    def _record_call(self) -> None:
        if not self.recording.backward_depth:
            self._calls.record_call(self.sites.current_site())
