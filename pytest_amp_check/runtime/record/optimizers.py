"""Optimizers that are stepped directly, and their schedulers."""

from __future__ import annotations

from typing import Any

import torch

from ...protocol import events as e
from .passes import Passes
from .recording import told
from .source import Spoken, asks, conditional
from .tracked import Known, Scaler


class Optimizers(Passes):
    """Told of optimizers and schedulers."""

    @told
    def optimizer_new(self, optimizer: Any) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            return
        known = self._known(optimizer)
        known.thing.facts["constructed"] = True
        clean = all(p.grad is None for p in known.params)
        if clean:
            self._emit(e.OPTIMIZER_NEW, self.sites.here(), known.thing.key)

    @told
    def params_changed(self, optimizer: Any) -> None:
        known = self.optimizers.get(id(optimizer))
        held = None if known is None else known.optimizer()
        if known is not None and held is not None and held is optimizer:
            known.refresh(held)
            self._own(known)

    @told
    def before_step(self, optimizer: Any) -> None:
        known = self._known(optimizer)
        site = self.sites.here()
        if not self._passes:
            self._look(known)
        known.said = self._through or Spoken(site, "receiver")
        self._trains(known)
        if self._passes and self.chain.pending:
            # A hook steps while the pass still runs, and clears the gradient that shows it.
            running = next((x for x in reversed(self.chain.pending) if x.kind == e.BACKWARD), None)
            if running is not None:
                running.facts["feeds"].add(known.thing.key)
                known.backward = running
        names = {"optimizer": known.said, "call": Spoken(site)}
        holder = self._holder(known)
        if holder is not None and holder.said is not None:
            names["scaler"] = holder.said
        checked = (
            known.unscaled
            and not self._overflowed(optimizer, holder)
            and self._at(site, conditional if known.looked else asks)
        )
        self._emit(e.STEP, site, None, known.thing.key, checked=checked, names=names)
        backward = known.backward
        if (
            backward is not None
            and not self._scaled_off
            and not backward.facts["scaled"]
            and backward.facts["dtypes"] == {"float16"}
            and not backward.facts.get("alone")
        ):
            backward.facts["alone"] = True
            self.chain.judge(backward)
        self.steps.begin(known.said, None, None, known.loss, known.norm, site)
        scale = self._scale_for(known) if known.under_scale else 1.0
        for collector in self.collectors:
            collector.before_step(optimizer, None, scale)

    def _overflowed(self, optimizer: Any, holder: Scaler | None) -> bool:
        """Whether unscale_ has found values that are not finite in gradients that are about to be stepped."""
        scaler = holder.scaler() if holder is not None else None
        if scaler is None:
            return False
        found = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        return any(bool(value.item()) for value in found.values())

    @told
    def after_step(self, optimizer: Any) -> None:
        known = self._known(optimizer)
        self.steps.done(skipped=False, found_inf=False)
        self._stepped(known, skipped=False)
        for collector in self.collectors:
            collector.after_step(optimizer, None, skipped=False)

    def _stepped(self, known: Known, *, skipped: bool) -> None:
        known.skipped = skipped
        known.used = True
        known.steps_since += 1
        known.under_scale = known.unscaled = False
        known.edited = None
        known.norm = known.loss = None
        self._grad_storages = None
        if self._regions and not skipped:
            self._written.update(id(p) for p in known.params)
            self._hook_forwards()
        self._watch()

    @told
    def scheduler_step(self, scheduler: Any) -> None:
        known = self.optimizers.get(id(getattr(scheduler, "optimizer", None)))
        if known is None:
            return
        site = self.sites.here()
        idle = not known.steps_since and known.backwards_since > 0
        skipped = known.steps_since == 1 and known.skipped
        known.steps_since = known.backwards_since = 0
        scaler = known.scaler.said if known.scaler is not None else None
        names = {"call": Spoken(site), "optimizer": known.said or "", "scheduler": Spoken(site, "receiver")}
        if scaler is not None:
            names["scaler"] = scaler
        self._emit(e.SCHEDULER_STEP, site, None, known.thing.key, skipped=skipped, idle=idle, names=names)
