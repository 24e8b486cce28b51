"""Gradients that a call of zero_grad clears."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....protocol import events as e
from ....protocol.sites import Site
from ..recording import Recording
from ..source.call_texts import Role, SiteText, text_of_optimizer
from ..tracked import TrackedOptimizer
from .gradients import GradientListener
from .listener import Listener, listener_method

if TYPE_CHECKING:
    import torch


class ClearingListener(Listener):
    """A listener for ``zero_grad`` of optimizers and modules."""

    def __init__(self, recording: Recording, gradients: GradientListener) -> None:
        super().__init__(recording)
        self._gradients = gradients

    @listener_method
    def record_optimizer_clear(self, optimizer: Any) -> None:
        tracked = self.registry.track_optimizer(optimizer)
        site = self.sites.current_site()
        if not tracked.name:
            tracked.name = text_of_optimizer(site, Role.RECEIVER)
        self._record_clear([tracked], site, self.recording.query_source(site, _clear_names))

    @listener_method
    def record_module_clear(self, module: torch.nn.Module) -> None:
        ids = {id(p) for p in module.parameters()}
        optimizers = self.registry.optimizers.values()
        cleared_optimizers = [tracked for tracked in optimizers if all(id(p) in ids for p in tracked.params)]
        if cleared_optimizers:
            site = self.sites.current_site()
            self._record_clear(cleared_optimizers, site, {"call": SiteText(site)})

    def _record_clear(self, cleared_optimizers: list[TrackedOptimizer], site: Site, names: dict[str, object]) -> None:
        keys = {tracked.tracked_object.key for tracked in cleared_optimizers}
        discarded = [self._gradients.are_discarded(tracked, site) for tracked in cleared_optimizers]
        rescue = any(discarded)
        for tracked, is_discarded in zip(cleared_optimizers, discarded, strict=True):
            # The use of unscaled gradients by the program is not observed, so only scaled gradients can count as lost.
            if tracked.is_scaled or tracked.is_unscaled:
                # Gradients that the user unscaled were meant for a step, which was then left out on purpose.
                tracked.windows.record_clear(site, is_discarded=is_discarded or tracked.is_unscaled)
            else:
                tracked.windows.record_empty_clear()
            for other in self.registry.find_sharing(tracked):
                # Its gradients change now, but nobody edits them.
                other.gradient_marks = []
                if {id(p) for p in other.params} <= {id(p) for p in tracked.params}:
                    keys.add(other.tracked_object.key)
                    # Its window has lost micro-batches as well, and which optimizer is to step them is unknown.
                    other.windows.record_clear(site, is_discarded=True)
            tracked.is_scaled = tracked.is_unscaled = tracked.is_used = tracked.has_zeroed_gradient = False
            tracked.backwards_since = 0
            tracked.is_cleared = True
            tracked.losses.clear()
            tracked.edit_site = None
            tracked.gradient_marks = []
        self._gradients.forget_storages()
        self.recording.emit(e.ZeroGrad(site, owners=tuple(sorted(keys)), rescue=rescue, names=names))
        self.recording.update_watching()


def _clear_names(site: Site) -> dict[str, object]:
    return {"optimizer": text_of_optimizer(site, Role.RECEIVER), "call": SiteText(site)}
