"""Gradients that are cleared by a call of zero_grad."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....protocol import events as e
from ....protocol.events import Site
from ..recording import Recording
from ..source import SourceText
from ..tracked import TrackedOptimizer
from .gradients import Gradients
from .listener import Listener, listens

if TYPE_CHECKING:
    import torch


class Clearing(Listener):
    """Listens to ``zero_grad`` of optimizers and modules."""

    def __init__(self, recording: Recording, gradients: Gradients) -> None:
        super().__init__(recording)
        self._gradients = gradients

    @listens
    def by_optimizer(self, optimizer: Any) -> None:
        tracked = self.registry.optimizer(optimizer)
        site = self.sites.here()
        if tracked.name is None:
            tracked.name = SourceText(site, "receiver")
        self._cleared([tracked], site, self.recording.read(site, _clearing))

    @listens
    def by_module(self, module: torch.nn.Module) -> None:
        ids = {id(p) for p in module.parameters()}
        optimizers = self.registry.optimizers.values()
        cleared = [tracked for tracked in optimizers if tracked.params and all(id(p) in ids for p in tracked.params)]
        if cleared:
            site = self.sites.here()
            self._cleared(cleared, site, {"call": SourceText(site)})

    def _cleared(self, cleared: list[TrackedOptimizer], site: Site, names: dict[str, object]) -> None:
        keys = {tracked.thing.key for tracked in cleared}
        given_up = [self._gradients.are_given_up(tracked, site) for tracked in cleared]
        rescue = any(given_up)
        for tracked, lost in zip(cleared, given_up, strict=True):
            # Of gradients that no scaler has scaled it is not seen what the program makes of them.
            if tracked.under_scale or tracked.unscaled:
                # What is unscaled was meant for a step, which was then left out.
                tracked.windows.cleared(site, given_up=lost or tracked.unscaled)
            else:
                tracked.windows.emptied()
            shares: set[int] = tracked.thing.facts["shares"]
            if shares:
                keys.update(key for key in shares if self.registry.is_within(key, tracked))
            tracked.under_scale = tracked.unscaled = tracked.used = tracked.zeroed = False
            tracked.backwards_since = 0
            tracked.edited = None
            tracked.marks = []
        self._gradients.forget_storages()
        self.recording.emit(e.ZERO_GRAD, site, owners=tuple(sorted(keys)), rescue=rescue, names=names)
        self.recording.choose_watching()


def _clearing(site: Site) -> dict[str, object]:
    return {"optimizer": SourceText(site, "receiver"), "call": SourceText(site)}
