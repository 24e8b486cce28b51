"""Actions after each step of an optimizer that also run if a scaler skips the step."""

from __future__ import annotations

import weakref
from typing import Any

from ....protocol import events as e
from ..deferred_values import FoundInf
from ..recording import Recording
from ..source.call_texts import SiteText
from ..tracked import TrackedOptimizer
from .listener import Listener, listener_method


class StepFollowersListener(Listener):
    """A listener for averages of weights over time or processes, and for hooks on an optimizer's steps."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        #: Averaging object to the optimizer's number of steps at the last average.
        self._steps_at_average: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()

    @listener_method
    def record_average(self, averaging: Any, model: Any) -> None:
        """Record an average of a model's weights over time.

        An exponential average moves towards the weights as they are, so a skipped step does it no harm.
        """
        if averaging.avg_fn is not None or averaging.multi_avg_fn is not None:
            return
        tracked = self._optimizer_of(model)
        if tracked is not None and self._is_next(averaging, tracked):
            self._emit_followed(
                tracked, tracked.last_found_inf, str(SiteText(self.sites.current_site())) or "the average"
            )

    @listener_method
    def record_process_average(self, averager: Any) -> None:
        """Record an average of the weights of all models over processes."""
        tracked = self._optimizer_of(None)
        if tracked is not None and self._is_next(averager, tracked) and _is_averaging(averager):
            call = str(SiteText(self.sites.current_site())) or "the averager"
            self._emit_followed(tracked, tracked.last_found_inf, call, "averaged")

    def _is_next(self, averaging: object, tracked: TrackedOptimizer) -> bool:
        """Return True if the optimizer has made or skipped exactly one step since the last average."""
        since = tracked.steps - self._steps_at_average.get(averaging, tracked.steps - 1)
        self._steps_at_average[averaging] = tracked.steps
        return since == 1

    def _optimizer_of(self, model: Any) -> TrackedOptimizer | None:
        """Return the only optimizer that steps and trains a model, or None if there is not exactly one."""
        ids = None if model is None else {id(p) for p in model.parameters()}
        optimizers = [
            tracked
            for tracked in self.registry.optimizers.values()
            if tracked.steps and (ids is None or any(id(p) in ids for p in tracked.params))
        ]
        return optimizers[0] if len(optimizers) == 1 else None

    def record_step(self, tracked: TrackedOptimizer, optimizer: Any, found_inf: FoundInf) -> None:
        """Record a step of an optimizer that a scaler applied or skipped.

        The step hooks of an optimizer that skips updates by itself, and its averager, also run after a skip.
        """
        step_hooks = optimizer.__dict__.get("_optimizer_step_post_hooks") or {}
        if step_hooks and getattr(optimizer, "_step_supports_amp_scaling", False):
            hook = next(iter(step_hooks.values()))
            self._emit_followed(tracked, found_inf, getattr(hook, "__name__", "") or "the hook")
        averager = getattr(optimizer, "averager", None)
        if averager is not None and _is_averaging(averager):
            self._emit_followed(tracked, found_inf, str(SiteText(self.sites.current_site())) or "the step", "left-out")

    def _emit_followed(self, tracked: TrackedOptimizer, found_inf: FoundInf, call: str, how: str = "followed") -> None:
        names: dict[str, object] = {"call": call, "optimizer": tracked.name}
        if tracked.scaler is not None:
            names["scaler"] = tracked.scaler.name
        optimizer = tracked.tracked_object.key
        self.recording.emit(
            e.StepFollowed(self.sites.current_site(), None, optimizer, skipped=found_inf, how=how, names=names)
        )


def _is_averaging(averager: Any) -> bool:
    """Return True if an averager of torch averages weights over processes now.

    During its warm-up the weights are equal.
    """
    group = getattr(averager, "process_group", None)
    return group is not None and group.size() > 1 and averager.step >= getattr(averager, "warmup_steps", 0)
