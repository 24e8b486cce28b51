"""Actions after each step of an optimizer that also run if a scaler skips the step."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ....protocol import events as e
from ..deferred_values import FoundInf
from ..manual_averages import AfterSkip
from ..recording import Recording
from ..source import SiteText
from ..tracked import TrackedOptimizer
from .listener import Listener, listener_method

if TYPE_CHECKING:
    import torch

#: Number of skipped steps of an optimizer after which averages are searched.
LOOKS = 8


class StepFollowersListener(Listener):
    """A listener for averages of weights over time or processes, and for hooks on an optimizer's steps."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        #: Averaging object to the optimizer's number of steps at the last average.
        self._steps_at_average: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
        #: Set while manual averages are searched, else None.
        self.after_skip: AfterSkip | None = None
        #: Key of an optimizer to the number of its examined skips.
        self._look_counts: dict[int, int] = {}

    @listener_method
    def record_average(self, averaging: Any, model: Any) -> None:
        """Record an average of a model's weights over time."""
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
        """Record a step of an optimizer that a scaler applied or skipped."""
        self._check_step_hooks(tracked, optimizer, found_inf)
        after_skip = self.after_skip
        if after_skip is not None and after_skip.tracked_optimizer is tracked:
            if after_skip.averaging_site_ids and not after_skip.next_step_made:
                after_skip.next_step_made = True
                return
            after_skip = None
        if after_skip is None:
            look_count = self._look_counts.get(tracked.tracked_object.key, 0)
            if found_inf and look_count < LOOKS:
                self._look_counts[tracked.tracked_object.key] = look_count + 1
                trained_params = [p for other in self.registry.optimizers.values() for p in other.params]
                after_skip = AfterSkip(tracked, found_inf, trained_params)
        if after_skip is not self.after_skip:
            self.after_skip = after_skip
            self.recording.watches_after_skip = after_skip is not None
            self.recording.update_watching()

    @listener_method
    def record_change(self, tensor: torch.Tensor, effect: str, operands: Sequence[Any]) -> None:
        """Record a tensor that is about to change in place or get other data, while :attr:`after_skip` is set."""
        after_skip = self.after_skip
        if after_skip is None or self.recording.backward_depth or not after_skip.is_averaging(tensor, effect, operands):
            return
        site = self.sites.current_site()
        if not after_skip.next_step_made:
            after_skip.averaging_site_ids.add(id(site))
        elif id(site) in after_skip.averaging_site_ids:
            after_skip.averaging_site_ids.clear()
            self._look_counts[after_skip.tracked_optimizer.tracked_object.key] = LOOKS
            self._emit_followed(
                after_skip.tracked_optimizer, after_skip.found_inf, str(SiteText(site)) or "the average"
            )

    def _check_step_hooks(self, tracked: TrackedOptimizer, optimizer: Any, found_inf: FoundInf) -> None:
        """Check the step hooks and averager of an optimizer that skips updates by itself.

        They also run after a skip.
        """
        step_hooks = optimizer.__dict__.get("_optimizer_step_post_hooks") or {}
        if step_hooks and getattr(optimizer, "_step_supports_amp_scaling", False):
            hook = next(iter(step_hooks.values()))
            self._emit_followed(tracked, found_inf, getattr(hook, "__name__", "") or "the hook")
        averager = getattr(optimizer, "averager", None)
        if averager is not None and _is_averaging(averager):
            self._emit_followed(tracked, found_inf, str(SiteText(self.sites.current_site())) or "the step", "left-out")

    def _emit_followed(self, tracked: TrackedOptimizer, found_inf: FoundInf, call: str, how: str = "followed") -> None:
        names: dict[str, object] = {"call": call, "optimizer": tracked.name or ""}
        if tracked.scaler is not None and tracked.scaler.name is not None:
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
