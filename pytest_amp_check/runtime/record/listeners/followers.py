"""What a program does beside each step of an optimizer, which goes on where a scaler skips the step."""

from __future__ import annotations

import weakref
from typing import Any

from ....protocol import events as e
from ..readings import FoundInf
from ..recording import Recording
from ..source import SourceText
from ..tracked import TrackedOptimizer
from .listener import Listener, listens


class Followers(Listener):
    """Listens to weights that are averaged over time or over processes, and to hooks on an optimizer's steps."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        #: What averages -> how many steps the optimizer had made when it did so last.
        self._steps: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()

    @listens
    def averaged(self, averaging: Any, model: Any) -> None:
        """The weights of a model, or of all models where none is given, are averaged."""
        tracked = self._trains(model)
        if tracked is None:
            return
        since = tracked.steps - self._steps.get(averaging, tracked.steps - 1)
        self._steps[averaging] = tracked.steps
        if since == 1:
            self._followed(tracked, tracked.skipped, str(SourceText(self.sites.here())) or "the average")

    def _trains(self, model: Any) -> TrackedOptimizer | None:
        """The one optimizer that a scaler steps and that trains a model, if there is one."""
        ids = None if model is None else {id(p) for p in model.parameters()}
        found = [
            tracked
            for tracked in self.registry.optimizers.values()
            if tracked.steps and (ids is None or any(id(p) in ids for p in tracked.params))
        ]
        return found[0] if len(found) == 1 else None

    def hooks_called(self, tracked: TrackedOptimizer, optimizer: Any, skipped: FoundInf) -> None:
        """A scaler has stepped an optimizer that looks for overflows by itself: its hooks are called in any case."""
        own = optimizer.__dict__.get("_optimizer_step_post_hooks") or {}
        if own and getattr(optimizer, "_step_supports_amp_scaling", False):
            hook = next(iter(own.values()))
            self._followed(tracked, skipped, getattr(hook, "__name__", "") or "the hook")

    def _followed(self, tracked: TrackedOptimizer, skipped: FoundInf, call: str) -> None:
        names: dict[str, object] = {"call": call, "optimizer": tracked.name or ""}
        if tracked.scaler is not None and tracked.scaler.name is not None:
            names["scaler"] = tracked.scaler.name
        self.recording.emit(e.STEP_FOLLOWED, self.sites.here(), None, tracked.thing.key, skipped=skipped, names=names)
