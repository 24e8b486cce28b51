"""GradScalers: what they unscale, step and update."""

from __future__ import annotations

import functools
from typing import Any

import torch

from ....protocol import events as e
from ....protocol.events import Event, Site
from ....protocol.report import words
from ..graph import values
from ..readings import ONE, FoundInf, Number
from ..recording import Recording
from ..sharding import unsynchronised
from ..source import SourceText, expected
from ..tracked import TrackedOptimizer, TrackedScaler
from .finite import Finite
from .followers import Followers
from .gradients import Gradients
from .listener import Listener, listens
from .optimizers import Optimizers
from .weights import Weights


class Scalers(Listener):
    """Listens to ``unscale_``, ``step`` and ``update``."""

    #: What a scaler was asked to do last.
    _asked: Event

    def __init__(
        self,
        recording: Recording,
        gradients: Gradients,
        weights: Weights,
        optimizers: Optimizers,
        followers: Followers,
        finite: Finite,
    ) -> None:
        super().__init__(recording)
        self._followers = followers
        self._finite = finite
        self._gradients = gradients
        self._weights = weights
        self._optimizers = optimizers

    @listens
    def before_unscale(self, scaler: Any, optimizer: Any) -> None:
        if not scaler.is_enabled():
            return
        tracked, holder = self.registry.optimizer(optimizer), self.registry.scaler(scaler)
        self._gradients.look(tracked)
        site = self.sites.here()
        names = self.recording.read(site, _handling)
        tracked.name, holder.name = names["optimizer"], names["scaler"]
        self._asked = self.recording.emit(e.UNSCALE, site, holder.thing.key, tracked.thing.key, names=names)

    @listens
    def after_unscale(self, scaler: Any, optimizer: Any) -> None:
        if not scaler.is_enabled():
            return
        tracked = self.registry.optimizer(optimizer)
        tracked.under_scale, tracked.unscaled, tracked.edited = False, True, None
        tracked.number_taken = False
        tracked.marks = tracked.sentinel_marks()
        self._gradients.forget_storages()
        self.recording.choose_watching()
        for collector in self.recording.collectors:
            collector.after_unscale(scaler, optimizer)

    @listens
    def before_step(self, scaler: Any, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not scaler.is_enabled():
            self._optimizers.stepped_by_disabled_scaler = SourceText(self.sites.here(), "argument", "optimizer")
            return
        self._finite.step_begins(optimizer)
        tracked, holder = self.registry.optimizer(optimizer), self.registry.scaler(scaler)
        self._gradients.look(tracked)
        site = self.sites.here()
        names = self.recording.read(site, _handling)
        tracked.name, holder.name = names["optimizer"], names["scaler"]
        if tracked.restored is not None:
            tracked.restored.facts["scope_scalers"] = (holder.name,)
            tracked.restored = None
        closure = bool(args or kwargs) and any(callable(x) for x in (*args, kwargs.get("closure")))
        self._weights.births.about_to_train(tracked)
        if tracked.unscaled and tracked.edited is not None:
            self._find_invalid(scaler, optimizer, tracked, tracked.edited)
        self._asked = self.recording.emit(
            e.SCALER_STEP,
            site,
            holder.thing.key,
            tracked.thing.key,
            closure=closure,
            unscales=_unscales(optimizer),
            unsynchronised=unsynchronised(scaler, optimizer, tracked.params),
            names=names,
        )
        self._optimizers.inside_scaler_step += 1
        scale = ONE if tracked.unscaled else holder.scale
        self.recording.steps.begin(tracked.name, holder.name, holder.scale, tracked.loss, tracked.norm, site)
        for collector in self.recording.collectors:
            collector.before_step(optimizer, scaler, scale.value)

    def _find_invalid(self, scaler: Any, optimizer: Any, tracked: TrackedOptimizer, edited: Site) -> None:
        """Gradients were edited after unscale_: whatever is not finite now was not before."""
        found = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        if any(value.item() for value in found.values()):
            return
        for p in tracked.params:
            if p.grad is not None and not bool(torch.isfinite(values(p.grad)).all()):
                names = {"optimizer": tracked.name or "", "call": SourceText(edited)}
                self.recording.emit(e.GRAD_INVALID, edited, None, tracked.thing.key, names=names)
                return

    @listens
    def after_step(self, scaler: Any, optimizer: Any, *, done: bool) -> None:
        self._optimizers.stepped_by_disabled_scaler = None
        if not scaler.is_enabled():
            return
        self._optimizers.inside_scaler_step -= 1
        steps = self.recording.steps
        record = steps.pending
        if not done or record is None:
            steps.drop()
            self._forget_refused()
            # torch has refused: what the gradients are now is not known.
            refused = self.registry.optimizer(optimizer)
            self.recording.emit(e.HANDOFF, self.sites.here(), things=(refused.thing.key,))
            self._weights.births.note_trained(refused)
            return
        tracked, holder = self.registry.optimizer(optimizer), self.registry.scaler(scaler)
        found = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        readings = self.recording.readings
        skipped = FoundInf([readings.number(value) for value in found.values()])
        steps.done(skipped)
        holder.waiting.append(record)
        tracked.steps += 1
        holder.steps = max(holder.steps + 1, tracked.steps)
        readings.then(functools.partial(_count_skips, tracked, holder, skipped))
        tracked.scaler = holder
        self._optimizers.stepped(tracked, skipped)
        self._followers.stepped(tracked, optimizer, skipped)
        self._finite.skipped(tracked, holder, optimizer)
        for collector in self.recording.collectors:
            collector.after_step(optimizer, scaler, skipped=bool(skipped))

    @listens
    def refused(self) -> None:
        """Torch has raised what it was asked to do back at the program."""
        self._forget_refused()

    def _forget_refused(self) -> None:
        """Forget what torch has refused where a test expects that."""
        pending = self.recording.chain.pending
        if self._asked in pending and expected(self._asked.site):
            pending.remove(self._asked)

    @listens
    def before_update(self, scaler: Any, new_scale: Any) -> None:
        if not scaler.is_enabled():
            return
        holder = self.registry.scaler(scaler)
        site = self.sites.here()
        names = self.recording.read(site, _updating)
        holder.name = names["scaler"]
        given = new_scale is not None
        self._asked = self.recording.emit(e.UPDATE, site, holder.thing.key, new_scale=given, names=names)

    @listens
    def after_update(self, scaler: Any) -> None:
        if not scaler.is_enabled():
            return
        holder = self.registry.scaler(scaler)
        readings = self.recording.readings
        scale = holder.scale = self.registry.scale_now(scaler)
        holder.scale_read = False
        tracker = None if scaler._growth_tracker is None else readings.number(scaler._growth_tracker)
        self.recording.steps.updated(holder.waiting, scale, tracker)
        holder.waiting.clear()
        for tracked in self.registry.optimizers.values():
            tracked.windows.updated()
        facts = self._asked.facts
        facts.update(steps=holder.steps, growth_interval=scaler.get_growth_interval())
        cause = self._finite.waiting
        if cause is not None:
            facts.update(cause=words(cause, self.recording.program), witness=cause.facts["witness"])
        readings.then(functools.partial(_tell_skips, facts, holder, scale))


def _count_skips(tracked: TrackedOptimizer, holder: TrackedScaler, skipped: FoundInf) -> None:
    holder.skips += bool(skipped)
    # Counted for the optimizer: a loop may make a new scaler in every turn.
    tracked.skips_in_a_row = tracked.skips_in_a_row + 1 if skipped else 0
    holder.skips_in_a_row = tracked.skips_in_a_row


def _tell_skips(facts: dict[str, Any], holder: TrackedScaler, scale: Number) -> None:
    facts.update(scale=scale.value, skips_in_a_row=holder.skips_in_a_row, skips=holder.skips)


def _handling(site: Site) -> dict[str, SourceText]:
    return {**_updating(site), "optimizer": SourceText(site, "argument", "optimizer")}


def _updating(site: Site) -> dict[str, SourceText]:
    return {"scaler": SourceText(site, "receiver"), "call": SourceText(site)}


def _unscales(optimizer: Any) -> bool:
    """Whether a step of the scaler leaves the gradients unscaled; an optimizer that divides by itself may not."""
    own = getattr(optimizer, "_step_supports_amp_scaling", False)
    return not own or type(optimizer).__module__.startswith("torch.")
