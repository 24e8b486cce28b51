"""The calls of GradScalers: unscale, step and update."""

from __future__ import annotations

import functools
from typing import Any

import torch

from ....protocol import events as e
from ....protocol.events import Event
from ....protocol.findings_builder import describe_violation
from ....protocol.sites import Site
from ..deferred_values import ONE, DeferredNumber, FoundInf
from ..graph import dense_values
from ..recording import Recording
from ..sharding import unsynchronized_reason
from ..source.call_texts import Role, SiteText, text_of_optimizer
from ..source.conditions import is_expected_to_raise
from ..tracked import TrackedOptimizer, TrackedScaler
from .derivatives import DerivativeListener
from .followers import StepFollowersListener
from .gradients import GradientListener
from .listener import Listener, listener_method
from .non_finite import NonFiniteListener
from .optimizers import OptimizerListener
from .recomputation import RecomputationListener
from .scaler_construction import ScalerConstructionListener
from .weights import WeightListener


class ScalerListener(Listener):
    """A listener for ``unscale_``, ``step`` and ``update``."""

    #: The event of the latest call, or None if torch refuses its argument.
    _last_event: Event | None = None

    def __init__(
        self,
        recording: Recording,
        gradients: GradientListener,
        weights: WeightListener,
        optimizers: OptimizerListener,
        followers: StepFollowersListener,
        finite: NonFiniteListener,
        recomputation: RecomputationListener,
        derivatives: DerivativeListener,
        construction: ScalerConstructionListener,
    ) -> None:
        super().__init__(recording)
        self._construction = construction
        self._derivatives = derivatives
        self._recomputation = recomputation
        self._followers = followers
        self._nonfinite = finite
        self._gradients = gradients
        self._weights = weights
        self._optimizers = optimizers

    @listener_method
    def before_unscale(self, scaler: Any, optimizer: Any) -> None:
        self._last_event = None
        if not scaler.is_enabled() or not _is_optimizer(optimizer):
            return
        tracked, tracked_scaler = self.registry.track_optimizer(optimizer), self.registry.track_scaler(scaler)
        self._gradients.check_gradients(tracked)
        site = self.sites.current_site()
        names = self.recording.query_source(site, _step_names)
        tracked.name, tracked_scaler.name = names["optimizer"], names["scaler"]
        self._last_event = self.recording.emit(
            e.Unscale(site, tracked_scaler.tracked_object.key, tracked.tracked_object.key, names=names)
        )

    @listener_method
    def after_unscale(self, scaler: Any, optimizer: Any) -> None:
        if not scaler.is_enabled() or not _is_optimizer(optimizer):
            return
        tracked = self.registry.track_optimizer(optimizer)
        tracked.is_scaled, tracked.is_unscaled, tracked.edit_site = False, True, None
        tracked.has_taken_number = False
        tracked.gradient_marks = tracked.sentinel_marks()
        self._gradients.forget_storages()
        self.recording.update_watching()
        for collector in self.recording.collectors:
            collector.after_unscale(scaler, optimizer)

    @listener_method
    def before_step(self, scaler: Any, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not scaler.is_enabled():
            self._optimizers.stepped_by_disabled_scaler = SiteText(
                self.sites.current_site(), Role.ARGUMENT, "optimizer"
            )
            return
        self._last_event = None
        if not _is_optimizer(optimizer):
            return
        self._nonfinite.begin_step(optimizer)
        tracked, tracked_scaler = self.registry.track_optimizer(optimizer), self.registry.track_scaler(scaler)
        self._gradients.check_gradients(tracked)
        site = self.sites.current_site()
        names = self.recording.query_source(site, _step_names)
        tracked.name, tracked_scaler.name = names["optimizer"], names["scaler"]
        if tracked.load_event is not None:
            tracked.load_event.scope_scalers = (tracked_scaler.name,)
            tracked.load_event = None
        has_named_closure = callable(kwargs.get("closure"))
        self._weights.low_precision.prepare_step(tracked)
        self._recomputation.report_cuts(tracked)
        if tracked.is_unscaled and tracked.edit_site is not None:
            self._find_invalid(scaler, optimizer, tracked, tracked.edit_site)
        self._last_event = self.recording.emit(
            e.ScalerStep(
                site,
                tracked_scaler.tracked_object.key,
                tracked.tracked_object.key,
                closure=has_named_closure or any(map(callable, args)),
                has_named_closure=has_named_closure,
                unscales=_leaves_unscaled(optimizer),
                unsynchronised=unsynchronized_reason(scaler, optimizer, tracked.params),
                names=names,
            )
        )
        self._optimizers.inside_scaler_step += 1
        self._optimizers.has_stepped_in_scaler = False
        scale = ONE if tracked.is_unscaled else tracked_scaler.scale
        self.recording.steps.begin_step(
            tracked.name, tracked_scaler.name, tracked_scaler.scale, tracked.losses, tracked.norm, site
        )
        for collector in self.recording.collectors:
            collector.before_step(optimizer, scaler, scale.value)

    def _find_invalid(self, scaler: Any, optimizer: Any, tracked: TrackedOptimizer, edit_site: Site) -> None:
        """Find gradients that became non-finite by an edit after unscale_."""
        found_inf = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        if any(value.item() for value in found_inf.values()):
            return
        for p in tracked.params:
            if p.grad is not None and not bool(torch.isfinite(dense_values(p.grad)).all()):
                names = {"optimizer": tracked.name, "call": SiteText(edit_site)}
                self.recording.emit(e.GradInvalid(edit_site, None, tracked.tracked_object.key, names=names))
                return

    @listener_method
    def after_step(self, scaler: Any, optimizer: Any, *, done: bool) -> None:
        self._optimizers.stepped_by_disabled_scaler = None
        if not scaler.is_enabled() or not _is_optimizer(optimizer):
            return
        self._optimizers.inside_scaler_step -= 1
        steps = self.recording.steps
        record = steps.pending_step
        if not done or record is None:
            steps.drop_step()
            self._drop_expected_refusal()
            # torch raised an error, so the state of the gradients is unknown.
            tracked_optimizer = self.registry.track_optimizer(optimizer)
            self.recording.emit(e.Handoff(self.sites.current_site(), objects=(tracked_optimizer.tracked_object.key,)))
            self._weights.low_precision.note_step(tracked_optimizer, is_refused=True)
            return
        tracked, tracked_scaler = self.registry.track_optimizer(optimizer), self.registry.track_scaler(scaler)
        readings = self.recording.deferred_values
        skipped = self._found_inf(scaler, optimizer)
        steps.finish_step(skipped)
        tracked_scaler.steps_since_update.append(record)
        tracked.steps += 1
        tracked_scaler.steps = max(tracked_scaler.steps + 1, tracked.steps)
        readings.run_when_known(functools.partial(_count_skips, tracked, tracked_scaler, skipped))
        self._construction.note_step(scaler, tracked)
        tracked.scaler = tracked_scaler
        self._optimizers.note_step(tracked, skipped)
        self._followers.record_step(tracked, optimizer, skipped)
        self._derivatives.record_step(skipped)
        self._nonfinite.skips.check_skip(tracked, scaler, optimizer)
        for collector in self.recording.collectors:
            collector.after_step(optimizer, scaler, skipped=bool(skipped))

    def _found_inf(self, scaler: Any, optimizer: Any) -> FoundInf:
        """Return whether the scaler skipped the step that has ended."""
        if self._optimizers.has_stepped_in_scaler and not getattr(optimizer, "_step_supports_amp_scaling", False):
            # The scaler has read its flags to decide, so nobody has to wait for the device again.
            return FoundInf()
        found_inf = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        return FoundInf([self.recording.deferred_values.defer_number(value) for value in found_inf.values()])

    @listener_method
    def record_refusal(self) -> None:
        """Record that torch raised an error for the latest call."""
        self._drop_expected_refusal()

    def _drop_expected_refusal(self) -> None:
        """Drop the event of a refused call if a test expects the error."""
        pending = self.recording.run_checker.pending_events
        if self._last_event is not None and self._last_event in pending and is_expected_to_raise(self._last_event.site):
            pending.remove(self._last_event)

    @listener_method
    def before_update(self, scaler: Any, new_scale: Any) -> None:
        if not scaler.is_enabled():
            return
        tracked_scaler = self.registry.track_scaler(scaler)
        site = self.sites.current_site()
        names = self.recording.query_source(site, _update_names)
        tracked_scaler.name = names["scaler"]
        has_new_scale = new_scale is not None
        self._last_event = self.recording.emit(
            e.Update(site, tracked_scaler.tracked_object.key, new_scale=has_new_scale, names=names)
        )

    @listener_method
    def after_update(self, scaler: Any) -> None:
        if not scaler.is_enabled():
            return
        tracked_scaler = self.registry.track_scaler(scaler)
        readings = self.recording.deferred_values
        scale = tracked_scaler.scale = self.registry.current_scale(scaler)
        tracked_scaler.has_read_scale = False
        tracker = None if scaler._growth_tracker is None else readings.defer_number(scaler._growth_tracker)
        self.recording.steps.record_update(tracked_scaler.steps_since_update, scale, tracker)
        tracked_scaler.steps_since_update.clear()
        for tracked in self.registry.optimizers.values():
            tracked.windows.record_update()
        update = self._last_event
        assert isinstance(update, e.Update)
        update.steps, update.growth_interval = tracked_scaler.steps, scaler.get_growth_interval()
        cause = self._nonfinite.reports.pending_cause
        if cause is not None:
            update.cause, update.trace = describe_violation(cause, self.recording.program), cause.trace
        readings.run_when_known(functools.partial(_store_skips, update, tracked_scaler, scale))


def _is_optimizer(value: Any) -> bool:
    """Return True if a scaler can step an object. torch raises for other objects, such as a method."""
    return hasattr(value, "param_groups")


def _count_skips(tracked: TrackedOptimizer, tracked_scaler: TrackedScaler, skipped: FoundInf) -> None:
    tracked_scaler.skips += bool(skipped)
    # Counted for the optimizer, because a loop may create a new scaler in every iteration.
    tracked.skips_in_a_row = tracked.skips_in_a_row + 1 if skipped else 0
    tracked_scaler.skips_in_a_row = tracked.skips_in_a_row


def _store_skips(update: e.Update, tracked_scaler: TrackedScaler, scale: DeferredNumber) -> None:
    update.scale = scale.value
    update.skips_in_a_row, update.skips = tracked_scaler.skips_in_a_row, tracked_scaler.skips


def _step_names(site: Site) -> dict[str, SiteText]:
    return {**_update_names(site), "optimizer": text_of_optimizer(site, Role.ARGUMENT, "optimizer")}


def _update_names(site: Site) -> dict[str, SiteText]:
    return {"scaler": SiteText(site, Role.RECEIVER), "call": SiteText(site)}


def _leaves_unscaled(optimizer: Any) -> bool:
    """Return True if a scaler's step leaves the gradients unscaled. An optimizer that divides by itself may not."""
    scales_itself = getattr(optimizer, "_step_supports_amp_scaling", False)
    return not scales_itself or type(optimizer).__module__.startswith("torch.")
