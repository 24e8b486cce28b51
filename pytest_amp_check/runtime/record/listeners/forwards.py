"""Losses that are scaled although their forward pass ran in float32 without autocast."""

from __future__ import annotations

from typing import Any

import torch

from ....protocol import events as e
from ....protocol.sites import Site
from .. import active
from ..forwards import ModuleCalls, float32_products, is_outermost
from ..recording import Recording
from ..source.call_texts import SiteText
from ..source.mentions import chooses_autocast
from .listener import Listener, listener_method

#: Largest number of scale calls until the forward pass of an earlier scaled loss is found.
MAX_SCALE_CALLS = 8


class ForwardListener(Listener):
    """A listener that finds the module call behind a loss while a search is active."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        #: Scale events whose forward pass is searched, and number of scale calls since the last of them.
        self._sought_events: list[e.Scale] = []
        self._scale_count = 0
        self._calls = ModuleCalls()

    def seek_forward(self, event: e.Scale, losses: list[torch.Tensor]) -> None:
        """Search the forward pass of a loss that was scaled for the first time, if the forward ran in float32."""
        if self._float32_products(event.site, losses):
            self._sought_events.append(event)
            self._scale_count = 0
            self._calls.start_watching(self._hook_forward)

    def record_scaling(self, site: Site, losses: list[torch.Tensor]) -> None:
        """Find the module calls behind losses that are scaled again.

        A loss that is scaled only once may be a trial, and its forward pass is already over.
        """
        if not self._sought_events:
            return
        for event in [event for event in self._sought_events if event.site is site]:
            products = self._float32_products(site, losses) if self._calls else []
            if products:
                call_site = self._calls.site_of_product(products)
                if call_site is not None:
                    event.forward = e.Forward(call_site, names={"module": SiteText(call_site)})
                enters_autocast = self.recording.program.attributes.enters_autocast
                event.float32 = event.forward_read = True
                event.autocast, event.loss_in_region = "out", enters_autocast
                if not enters_autocast and self._is_disabled_around(products):
                    region_site = self.regions.disabled_site
                    assert region_site is not None
                    names = {"call": SiteText(region_site)}
                    event.disabled_by = e.AutocastNew(region_site, arguments={}, callable="", names=names)
                self._sought_events.remove(event)
        self._scale_count += 1
        if self._sought_events and self._scale_count <= MAX_SCALE_CALLS:
            self._calls.start_watching(self._hook_forward)
        else:
            self._sought_events.clear()
            self.stop_watching()

    def stop_watching(self) -> None:
        self._calls.stop_watching()

    def _float32_products(self, site: Site, losses: list[torch.Tensor]) -> list[Any]:
        """Return the matrix products behind losses that ran without autocast, nearest first.

        If the program chooses about autocast and has not entered it, the choice is on purpose, unless a disabled region
        is around all products: the scaler and the region then disagree. If autocast is entered elsewhere, ops in a
        region that disables it also run in float32 on purpose. Return [] in both cases.
        """
        spans = self.regions.spans
        products = float32_products(losses, spans.start_number)
        enabled_regions = [enabled for node in products for enabled in spans.enabled_around(node)]
        if any(enabled_regions):
            return []
        if not self.recording.program.attributes.enters_autocast:
            if self._is_disabled_around(products):
                return products
            is_chosen = self.regions.is_autocast_chosen or self.recording.query_source(site, chooses_autocast)
            return [] if is_chosen else products
        return products if not enabled_regions and all(spans.is_enabled_at(loss.grad_fn) for loss in losses) else []

    def _is_disabled_around(self, products: list[Any]) -> bool:
        """Return True if a disabled region is around each of some graph nodes."""
        spans = self.regions.spans
        return self.regions.disabled_site is not None and all(spans.enabled_around(node) for node in products)

    def _hook_forward(self, module: torch.nn.Module, args: Any) -> None:
        if not torch.compiler.is_compiling() and active.is_active(self.recording) and is_outermost():
            self._record_call()

    @listener_method
    def _record_call(self) -> None:
        if not self.recording.backward_depth:
            self._calls.record_call(self.sites.current_site())
