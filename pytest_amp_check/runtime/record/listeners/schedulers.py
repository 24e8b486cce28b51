"""Learning rate schedulers."""

from __future__ import annotations

from typing import Any

from ....protocol import events as e
from ..source.call_texts import SiteText
from .listener import Listener, listener_method


class SchedulerListener(Listener):
    """A listener for steps of schedulers."""

    @listener_method
    def record_step(self, scheduler: Any) -> None:
        tracked = self.registry.optimizers.get(id(getattr(scheduler, "optimizer", None)))
        if tracked is None:
            return
        site = self.sites.current_site()
        idle = not tracked.steps_since and tracked.backwards_since > 0
        skipped = tracked.last_found_inf if tracked.steps_since == 1 else False
        tracked.steps_since = tracked.backwards_since = 0
        names = {"call": SiteText(site), "optimizer": tracked.name}
        if tracked.scaler is not None:
            names["scaler"] = tracked.scaler.name
        key = tracked.tracked_object.key
        self.recording.emit(e.SchedulerStep(site, None, key, skipped=skipped, idle=idle, names=names))
