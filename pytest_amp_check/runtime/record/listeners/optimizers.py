"""Optimizers: how they are made, and stepped without a scaler."""

from __future__ import annotations

from typing import Any

import torch

from ....protocol import events as e
from ....protocol.events import Event, Site
from ..readings import ONE, FoundInf
from ..recording import Recording
from ..source import SourceText, asks, conditional, is_chosen, window_test
from ..tracked import TrackedOptimizer, TrackedScaler
from .finite import Finite
from .gradients import Gradients
from .listener import Listener, listens
from .scaler_construction import ScalerConstruction
from .weights import Weights


class Optimizers(Listener):
    """Listens to optimizers."""

    def __init__(
        self,
        recording: Recording,
        gradients: Gradients,
        weights: Weights,
        construction: ScalerConstruction,
        finite: Finite,
    ) -> None:
        super().__init__(recording)
        self._finite = finite
        self._gradients = gradients
        self._weights = weights
        self._construction = construction
        #: How many steps of scalers are running: optimizers that step in them are theirs.
        self.inside_scaler_step = 0
        #: The optimizer that a scaler steps which is switched off, in the user's words.
        self.stepped_by_disabled_scaler: SourceText | None = None

    @listens
    def constructed(self, optimizer: Any) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            return
        tracked = self.registry.optimizer(optimizer)
        tracked.thing.facts["constructed"] = tracked.windows.complete = True
        clean = all(p.grad is None for p in tracked.params)
        if clean:
            self.recording.emit(e.OPTIMIZER_NEW, self.sites.here(), tracked.thing.key)

    @listens
    def params_changed(self, optimizer: Any) -> None:
        self.registry.refresh(optimizer)

    @listens
    def before_step(self, optimizer: Any) -> None:
        self._finite.step_begins(optimizer)
        tracked = self.registry.optimizer(optimizer)
        site = self.sites.here()
        if not self.recording.backwards:
            self._gradients.look(tracked)
        tracked.name = self.stepped_by_disabled_scaler or SourceText(site, "receiver")
        self._weights.births.about_to_train(tracked)
        self._feed_by_running_backward(tracked)
        names = {"optimizer": tracked.name, "call": SourceText(site)}
        scaler = self.registry.scaler_of(tracked)
        if scaler is not None and scaler.name is not None:
            names["scaler"] = scaler.name
        checked = self._is_checked(tracked, optimizer, scaler, site)
        self.recording.emit(e.STEP, site, None, tracked.thing.key, checked=checked, names=names)
        if tracked.backward is not None and self._is_unscaled_float16(tracked.backward):
            tracked.backward.facts["alone"] = True
            self.recording.chain.judge(tracked.backward)
        self.recording.steps.begin(tracked.name, None, None, tracked.loss, tracked.norm, site)
        scale = self.registry.scale_for(tracked) if tracked.under_scale else ONE
        for collector in self.recording.collectors:
            collector.before_step(optimizer, None, scale.value)

    def _feed_by_running_backward(self, tracked: TrackedOptimizer) -> None:
        """A hook steps while the pass still runs, and clears the gradient that would show that it was fed."""
        if self.recording.backwards and self.recording.chain.pending:
            running = next((x for x in reversed(self.recording.chain.pending) if x.kind == e.BACKWARD), None)
            if running is not None:
                running.facts["feeds"].add(tracked.thing.key)
                tracked.backward = running

    def _is_checked(self, tracked: TrackedOptimizer, optimizer: Any, scaler: TrackedScaler | None, site: Site) -> bool:
        """Whether the program looks for an overflow by itself before it steps."""
        if not tracked.unscaled or _overflowed(optimizer, scaler):
            return False
        return self.recording.read(site, conditional if tracked.number_taken else asks)

    def _is_unscaled_float16(self, backward: Event) -> bool:
        """Whether a backward of float16 was never scaled, which no scaler that is switched off has asked for."""
        facts = backward.facts
        return (
            not self._construction.disabled_scales
            and not facts["scaled"]
            and facts["dtypes"] == {"float16"}
            and not facts.get("alone")
        )

    @listens
    def after_step(self, optimizer: Any) -> None:
        tracked = self.registry.optimizer(optimizer)
        self.recording.steps.done(FoundInf())
        self.stepped(tracked, FoundInf())
        for collector in self.recording.collectors:
            collector.after_step(optimizer, None, skipped=False)

    def stepped(self, tracked: TrackedOptimizer, found: FoundInf) -> None:
        """A step was made, by itself or by a scaler, or the scaler has skipped it."""
        self._look_at_windows(tracked)
        tracked.skipped = found
        tracked.used = True
        tracked.steps_since += 1
        tracked.under_scale = tracked.unscaled = tracked.zeroed = False
        tracked.edited = None
        tracked.norm = tracked.loss = None
        self._gradients.forget_storages()
        self._weights.births.note_trained(tracked)
        if self.regions and not found:
            self._weights.note_stepped(tracked.params)
        self.recording.choose_watching()

    def _look_at_windows(self, tracked: TrackedOptimizer) -> None:
        """Find micro-batches that accumulation windows lose."""
        for other in self.registry.optimizers.values():
            if other is not tracked:
                other.windows.another_stepped()
        thrown_away, early = tracked.windows.stepped()
        backward = tracked.backward
        # A step that something else than a count decides about leaves batches out on purpose.
        if thrown_away is not None and (backward is None or not is_chosen(self.sites.here(), backward.site)):
            names: dict[str, object] = {"optimizer": tracked.name or ""}
            self.recording.emit(e.WINDOW, thrown_away, None, tracked.thing.key, how="zero", names=names)
        mixed = early and self.recording.program.facts["enters_autocast"]
        test = self.recording.read(self.sites.here(), window_test) if mixed else None
        if test is not None and test.site is not None:
            names = {"window": test.text}
            self.recording.emit(e.WINDOW, test.site, None, tracked.thing.key, how="early", names=names)


def _overflowed(optimizer: Any, tracked: TrackedScaler | None) -> bool:
    """Whether unscale_ has found values that are not finite in gradients that are about to be stepped."""
    scaler = tracked.scaler() if tracked is not None else None
    if scaler is None:
        return False
    found = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
    return any(bool(value.item()) for value in found.values())
