"""Learning rate schedulers."""

from __future__ import annotations

from typing import Any

from ....protocol import events as e
from ..source import SourceText
from .listener import Listener, listens


class Schedulers(Listener):
    """Listens to steps of schedulers."""

    @listens
    def stepped(self, scheduler: Any) -> None:
        tracked = self.registry.optimizers.get(id(getattr(scheduler, "optimizer", None)))
        if tracked is None:
            return
        site = self.sites.here()
        idle = not tracked.steps_since and tracked.backwards_since > 0
        skipped = tracked.skipped if tracked.steps_since == 1 else False
        tracked.steps_since = tracked.backwards_since = 0
        scaler = tracked.scaler.name if tracked.scaler is not None else None
        names = {
            "call": SourceText(site),
            "optimizer": tracked.name or "",
            "scheduler": SourceText(site, "receiver"),
        }
        if scaler is not None:
            names["scaler"] = scaler
        key = tracked.thing.key
        self.recording.emit(e.SCHEDULER_STEP, site, None, key, skipped=skipped, idle=idle, names=names)
