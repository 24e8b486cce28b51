"""GradScalers: what they scale, unscale, step and update."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from ...protocol import events as e
from ...protocol import surface
from ...protocol.events import Event, Site
from . import patches
from .elsewhere import unsynchronised
from .graph import tensors, values
from .optimizers import Optimizers
from .origins import float32_products, is_outermost
from .passes import MARK
from .recording import plain, scale_of, told
from .source import Spoken, expected, mentions_autocast
from .tracked import Known, Scaler

#: How often a scaler may scale until the forward behind a loss that it has scaled is seen.
TURNS = 8


class Scalers(Optimizers):
    """Told of what GradScalers do."""

    #: What a scaler was asked to do last.
    _asked: Event
    #: How often they have scaled since a forward is sought.
    _turns = 0

    @told
    def scaler_new(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Event:
        entry = surface.SURFACE[name]
        bound = dict(zip(entry.parameters, args, strict=False))
        bound.update(kwargs)
        site = self.sites.here()
        return self._emit(
            e.SCALER_NEW,
            site,
            None,
            callable=name,
            arguments={key: plain(value) for key, value in bound.items()},
            excess=max(0, len(args) - len(entry.parameters)),
            names={"call": Spoken(site), "scaler": "the scaler"},
        )

    @told
    def scaler_made(self, scaler: Any, event: Event) -> None:
        self._made.add(scaler)
        asked = event.facts["arguments"].get("enabled", True)
        if asked is True and not scaler.is_enabled() and not self._told_disabled:
            self._told_disabled = event.facts["disabled_itself"] = True
            # It may be judged already.
            self.chain.judge(event)

    @told
    def scaled(self, scaler: Any, outputs: Any, result: Any) -> None:
        if not scaler.is_enabled():
            self._off(scaler)
            return
        known = self._scaler(scaler)
        site = self.sites.here()
        names = self._at(site, _scaling)
        known.said = names["scaler"]
        since = frozenset(self._dtypes)
        new = (id(site), since) not in self._scales
        twice = new and self._scaled_already(tensors(outputs), known.scale)
        for tensor in tensors(result):
            self._scaled.append((weakref.ref(tensor), known, known.scale))
            if tensor.grad_fn is not None:
                metadata: Any = tensor.grad_fn.metadata
                metadata[MARK] = (weakref.ref(self), known, known.scale)
        losses = tensors(outputs)
        if self._sought:
            self._seek(site, losses)
        if not new:
            return
        self._scales.add((id(site), since))
        dtypes = self._dtypes_below(site, losses)
        event = self._emit(e.SCALE, site, known.thing.key, dtypes=dtypes, twice=twice, float32=False, names=names)
        if self._in_float32(site, losses):
            self._sought.append(event)
            self._turns = 0
            self._calls.watch(self._module_called)
        self.program.facts["scaler_dtypes"].update(dtypes)
        self._goes_live(known)

    def _in_float32(self, site: Site, losses: list[torch.Tensor]) -> list[Any]:
        """The matrix products behind losses that ran without autocast, nearest first.

        A program that can enter autocast and has not was told so.
        """
        products = float32_products(losses, self._spans.began)
        if not products or any(self._spans.around(node) for node in products):
            return []
        if not self.program.facts["enters_autocast"]:
            return [] if self._at(site, mentions_autocast) else products
        return products if all(self._spans.enabled_at(loss.grad_fn) for loss in losses) else []

    def _seek(self, site: Site, losses: list[torch.Tensor]) -> None:
        """Find the calls of the modules behind losses that are scaled once more.

        What is scaled once may be a trial, and by then its forward has been.
        """
        for event in [event for event in self._sought if event.site is site]:
            products = self._in_float32(site, losses) if self._calls else []
            if products:
                found = self._calls.of(products)
                event.facts["forward"] = None if found is None else Event(e.FORWARD, found)
                entered = bool(self.program.facts["enters_autocast"])
                event.facts.update(float32=True, forward_read=True, autocast="out", loss_in_region=entered)
                self._sought.remove(event)
        self._turns += 1
        if self._sought and self._turns <= TURNS:
            self._calls.watch(self._module_called)
        else:
            self._sought.clear()
            self._calls.unwatch()

    def _module_called(self, module: torch.nn.Module, args: Any) -> None:
        if not torch.compiler.is_compiling() and self in patches.active() and is_outermost():
            self._call_seen()

    @told
    def _call_seen(self) -> None:
        if not self._passes:
            self._calls.saw(self.sites.here())

    def _off(self, scaler: Any) -> None:
        """Tell, once, of a scaler for CUDA that is off where there is no CUDA; it may have been made before this."""
        self._scaled_off = True
        if self._told_disabled or scaler in self._made or scaler._device != "cuda" or torch.cuda.is_available():
            return
        self._told_disabled = True
        site = self.sites.here()
        names = {"call": Spoken(site), "scaler": Spoken(site, "receiver")}
        self._emit(e.SCALER_NEW, site, None, callable="", arguments={}, disabled_itself=True, names=names)

    def _goes_live(self, known: Scaler) -> None:
        if known.thing.key not in self._live:
            self._live.add(known.thing.key)
            self.program.facts["live_scalers"].append(known.thing)

    @told
    def scale_asked(self, scaler: Any) -> None:
        if scaler.is_enabled():
            self._scaler(scaler).asked = True

    @told
    def before_unscale(self, scaler: Any, optimizer: Any) -> None:
        if not scaler.is_enabled():
            return
        known, holder = self._known(optimizer), self._scaler(scaler)
        self._look(known)
        site = self.sites.here()
        names = self._at(site, _handling)
        known.said, holder.said = names["optimizer"], names["scaler"]
        self._asked = self._emit(e.UNSCALE, site, holder.thing.key, known.thing.key, names=names)

    @told
    def after_unscale(self, scaler: Any, optimizer: Any) -> None:
        if not scaler.is_enabled():
            return
        known = self._known(optimizer)
        known.under_scale, known.unscaled, known.edited = False, True, None
        known.looked = False
        known.looked_at = known.sentinel_marks()
        self._grad_storages = None
        self._watch()
        for collector in self.collectors:
            collector.after_unscale(scaler, optimizer)

    @told
    def before_scaler_step(self, scaler: Any, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not scaler.is_enabled():
            self._through = Spoken(self.sites.here(), "argument", "optimizer")
            return
        known, holder = self._known(optimizer), self._scaler(scaler)
        self._look(known)
        site = self.sites.here()
        names = self._at(site, _handling)
        known.said, holder.said = names["optimizer"], names["scaler"]
        if known.restored is not None:
            known.restored.facts["scope_scalers"] = (holder.said,)
            known.restored = None
        closure = bool(args or kwargs) and any(callable(x) for x in (*args, kwargs.get("closure")))
        self._trains(known)
        if known.unscaled and known.edited is not None:
            self._invalid(scaler, optimizer, known, site)
        self._asked = self._emit(
            e.SCALER_STEP,
            site,
            holder.thing.key,
            known.thing.key,
            closure=closure,
            unscales=_unscales(optimizer),
            unsynchronised=unsynchronised(scaler, optimizer, known.params),
            names=names,
        )
        self.in_scaler_step += 1
        scale = 1.0 if known.unscaled else holder.scale
        self.steps.begin(known.said, holder.said, holder.scale, known.loss, known.norm, site)
        for collector in self.collectors:
            collector.before_step(optimizer, scaler, scale)

    def _invalid(self, scaler: Any, optimizer: Any, known: Known, site: Site) -> None:
        """Gradients were edited after unscale_: whatever is not finite now was not before."""
        found = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        if any(value.item() for value in found.values()):
            return
        for p in known.params:
            if p.grad is not None and not bool(torch.isfinite(values(p.grad)).all()):
                names = {"optimizer": known.said or "", "call": Spoken(known.edited or site)}
                self._emit(e.GRAD_INVALID, known.edited or site, None, known.thing.key, names=names)
                return

    @told
    def after_scaler_step(self, scaler: Any, optimizer: Any, *, done: bool) -> None:
        self._through = None
        if not scaler.is_enabled():
            return
        self.in_scaler_step -= 1
        record = self.steps.pending
        if not done or record is None:
            self.steps.drop()
            self._refused()
            # torch has refused: what the gradients are now is not known.
            self._emit(e.HANDOFF, self.sites.here(), things=(self._known(optimizer).thing.key,))
            return
        known, holder = self._known(optimizer), self._scaler(scaler)
        found = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        skipped = any(bool(value.item()) for value in found.values())
        self.steps.done(skipped=skipped, found_inf=skipped)
        holder.waiting.append(record)
        holder.steps += 1
        holder.skips += skipped
        # Counted for the optimizer: a loop may make a new scaler in every turn.
        known.skips_in_a_row = known.skips_in_a_row + 1 if skipped else 0
        known.steps += 1
        holder.skips_in_a_row, holder.steps = known.skips_in_a_row, max(holder.steps, known.steps)
        holder.stepped = True
        known.scaler = holder
        self._stepped(known, skipped=skipped)
        for collector in self.collectors:
            collector.after_step(optimizer, scaler, skipped=skipped)

    @told
    def refused(self) -> None:
        self._refused()

    def _refused(self) -> None:
        """Forget what torch has refused where a test expects that."""
        if self._asked in self.chain.pending and expected(self._asked.site):
            self.chain.pending.remove(self._asked)

    @told
    def before_update(self, scaler: Any, new_scale: Any) -> None:
        if not scaler.is_enabled():
            return
        holder = self._scaler(scaler)
        site = self.sites.here()
        names = self._at(site, _updating)
        holder.said = names["scaler"]
        self._asked = self._emit(e.UPDATE, site, holder.thing.key, new_scale=new_scale is not None, names=names)

    @told
    def after_update(self, scaler: Any) -> None:
        if not scaler.is_enabled():
            return
        holder = self._scaler(scaler)
        holder.scale = scale_of(scaler)
        holder.asked = False
        tracker = scaler._growth_tracker
        number = None if tracker is None else int(tracker.item())
        for record in holder.waiting:
            record.scale_after = holder.scale
            record.growth_tracker = number
        if holder.waiting:
            self.steps.scaled(holder.waiting[-1].index, holder.scale)
        holder.waiting.clear()
        self._asked.facts.update(
            scale=holder.scale,
            skips_in_a_row=holder.skips_in_a_row,
            skips=holder.skips,
            steps=holder.steps,
            growth_interval=scaler.get_growth_interval(),
        )

    @told
    def scaler_state(self, scaler: Any) -> None:
        if scaler.is_enabled():
            site = self.sites.here()
            holder = self._scaler(scaler)
            holder.said = holder.said or Spoken(site, "receiver")
            self._emit(e.SCALER_STATE, site, holder.thing.key, names={"scaler": Spoken(site, "receiver")})

    @told
    def scaler_load(self, scaler: Any) -> None:
        if scaler.is_enabled():
            holder = self._scaler(scaler)
            holder.scale = scale_of(scaler)
            self._emit(e.SCALER_LOAD, self.sites.here(), holder.thing.key)


def _scaling(site: Site) -> dict[str, Spoken]:
    return {**_updating(site), "loss": Spoken(site, "argument", "outputs")}


def _handling(site: Site) -> dict[str, Spoken]:
    return {**_updating(site), "optimizer": Spoken(site, "argument", "optimizer")}


def _updating(site: Site) -> dict[str, Spoken]:
    return {"scaler": Spoken(site, "receiver"), "call": Spoken(site)}


def _unscales(optimizer: Any) -> bool:
    """Whether a step of the scaler leaves the gradients unscaled; an optimizer that divides by itself may not."""
    own = getattr(optimizer, "_step_supports_amp_scaling", False)
    return not own or type(optimizer).__module__.startswith("torch.")
