"""Optimizers: construction, and steps without a scaler."""

from __future__ import annotations

import inspect
from types import CodeType
from typing import Any

from ....protocol import events as e
from ....protocol.sites import Site
from ..deferred_values import ONE, FoundInf
from ..recording import Recording
from ..source.call_texts import Role, SiteText, text_of_optimizer
from ..source.conditions import find_window_predicate, has_calling_condition, is_chosen, is_conditional
from ..tracked import TrackedOptimizer, TrackedScaler, feed_optimizer
from .gradients import GradientListener
from .listener import Listener, listener_method
from .non_finite import NonFiniteListener
from .recomputation import RecomputationListener
from .scaler_construction import ScalerConstructionListener
from .weights import WeightListener


def _leave_constructors(site: Site, kind: type) -> Site:
    """Return the location at which the program constructs an optimizer, not the call of ``super()`` in its class."""
    constructors = [
        (code.co_filename, {line for *_, line in code.co_lines()})
        for cls in kind.__mro__
        if isinstance(code := getattr(inspect.unwrap(vars(cls).get("__init__", object)), "__code__", None), CodeType)
    ]
    while site.caller is not None and any(site.path == path and site.line in lines for path, lines in constructors):
        site = site.caller
    return site


class OptimizerListener(Listener):
    """A listener for optimizers."""

    def __init__(
        self,
        recording: Recording,
        gradients: GradientListener,
        weights: WeightListener,
        construction: ScalerConstructionListener,
        finite: NonFiniteListener,
        recomputation: RecomputationListener,
    ) -> None:
        super().__init__(recording)
        self._recomputation = recomputation
        self._nonfinite = finite
        self._gradients = gradients
        self._weights = weights
        self._construction = construction
        #: Number of running steps of scalers. Optimizer steps inside belong to the scaler.
        self.inside_scaler_step = 0
        #: True if an optimizer has made a step inside the running or latest step of a scaler.
        self.has_stepped_in_scaler = False
        #: Source text of the optimizer that a disabled scaler is stepping, or None.
        self.stepped_by_disabled_scaler: SiteText | None = None

    @listener_method
    def record_construction(self, optimizer: Any) -> None:
        tracked = self.registry.track_optimizer(optimizer)
        tracked.tracked_object.attributes.constructed = tracked.windows.is_complete = True
        tracked.construction_site = _leave_constructors(self.sites.current_site(), type(optimizer))
        clean = all(p.grad is None for p in tracked.params)
        if clean:
            self.recording.emit(e.OptimizerNew(tracked.construction_site, tracked.tracked_object.key))

    @listener_method
    def record_params_change(self, optimizer: Any) -> None:
        self.registry.refresh_optimizer(optimizer)

    @listener_method
    def before_step(self, optimizer: Any) -> None:
        self._nonfinite.begin_step(optimizer)
        tracked = self.registry.track_optimizer(optimizer)
        site = self.sites.current_site()
        # A hook may step before the end of the backward shows that the backward reached the optimizer.
        if not self.recording.backward_depth:
            self._gradients.check_gradients(tracked)
            self._gradients.note_written_gradients(tracked, site)
        tracked.name = self.stepped_by_disabled_scaler or text_of_optimizer(site, Role.RECEIVER)
        self._weights.low_precision.prepare_step(tracked)
        self._accumulate_in_backward(tracked)
        self._recomputation.report_cuts(tracked)
        names: dict[str, object] = {"optimizer": tracked.name, "call": SiteText(site)}
        scaler = self.registry.scaler_of(tracked)
        if scaler is not None:
            names["scaler"] = scaler.name
        checked = self._is_checked(tracked, optimizer, scaler, site)
        self.recording.emit(e.Step(site, None, tracked.tracked_object.key, checked=checked, names=names))
        if tracked.backward is not None and self._is_unscaled_float16(tracked.backward):
            if self._construction.has_disabled_scales:
                self._construction.report_float16()
            else:
                tracked.backward.alone = True
                self.recording.run_checker.check_event(tracked.backward)
        self.recording.steps.begin_step(tracked.name, None, None, tracked.losses, tracked.norm, site)
        scale = self.registry.scale_for(tracked) if tracked.is_scaled else ONE
        for collector in self.recording.collectors:
            collector.before_step(optimizer, None, scale.value)

    def _accumulate_in_backward(self, tracked: TrackedOptimizer) -> None:
        """Attribute the running pass to an optimizer that a hook steps before the pass ends.

        Such a hook clears the gradients that would show that the pass reached the optimizer.
        """
        if self.recording.backward_depth:
            running = next(
                (x for x in reversed(self.recording.run_checker.pending_events) if isinstance(x, e.Backward)), None
            )
            if running is not None:
                feed_optimizer(running, tracked.tracked_object.key)
                tracked.backward = running

    def _is_checked(self, tracked: TrackedOptimizer, optimizer: Any, scaler: TrackedScaler | None, site: Site) -> bool:
        """Return True if the program itself checks for an overflow before the step."""
        if not tracked.is_unscaled or _has_overflow(optimizer, scaler):
            return False
        return self.recording.query_source(site, is_conditional if tracked.has_taken_number else has_calling_condition)

    def _is_unscaled_float16(self, backward: e.Backward) -> bool:
        """Return True if a float16 backward pass was never scaled, and is not reported yet."""
        return not backward.scaling.is_scaled and backward.dtypes == {"float16"} and not backward.alone

    @listener_method
    def after_step(self, optimizer: Any) -> None:
        tracked = self.registry.track_optimizer(optimizer)
        self.recording.steps.finish_step(FoundInf())
        self.note_step(tracked, FoundInf())
        for collector in self.recording.collectors:
            collector.after_step(optimizer, None, skipped=False)

    def note_step(self, tracked: TrackedOptimizer, found_inf: FoundInf) -> None:
        """Update the state after a step of an optimizer, with or without a scaler, or after a skip."""
        self._check_windows(tracked)
        tracked.last_found_inf = found_inf
        tracked.is_used = True
        tracked.steps_since += 1
        tracked.is_scaled = tracked.is_unscaled = tracked.has_zeroed_gradient = False
        tracked.edit_site = None
        tracked.norm = None
        tracked.losses.clear()
        self._gradients.forget_storages()
        self._weights.low_precision.note_step(tracked)
        if self.regions and not found_inf:
            self._weights.note_step(tracked.params)
        self._nonfinite.end_step()
        self.recording.update_watching()

    def _check_windows(self, tracked: TrackedOptimizer) -> None:
        """Find micro-batches that accumulation windows lose."""
        for other in self.registry.optimizers.values():
            if other is not tracked:
                other.windows.record_other_step()
        discarded_site, early = tracked.windows.end_window()
        backward = tracked.backward
        # A step with a condition other than a count leaves batches out on purpose.
        if discarded_site is not None and (backward is None or not is_chosen(self.sites.current_site(), backward.site)):
            names: dict[str, object] = {"optimizer": tracked.name}
            self.recording.emit(e.Window(discarded_site, None, tracked.tracked_object.key, how="zero", names=names))
        early_in_autocast = early and self.recording.program.attributes.enters_autocast
        test = (
            self.recording.query_source(self.sites.current_site(), find_window_predicate) if early_in_autocast else None
        )
        if test is not None:
            names = {"window": test.text}
            self.recording.emit(e.Window(test.site, None, tracked.tracked_object.key, how="early", names=names))


def _has_overflow(optimizer: Any, tracked: TrackedScaler | None) -> bool:
    """Return True if unscale_ has found non-finite values in the gradients of the next step."""
    scaler = tracked.scaler() if tracked is not None else None
    if scaler is None:
        return False
    found_inf = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
    return any(bool(value.item()) for value in found_inf.values())
