"""Gradients that are clipped, cleared or edited outside of torch's own steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ...protocol import events as e
from ...protocol.events import Site
from .elsewhere import are_shards
from .graph import bare, holds, is_number, plain_number, storage
from .recording import CLIPPED_KEPT, told
from .regions import Regions
from .source import Spoken, caught, mentions_scale
from .tracked import Known, Loss, Scaler


class Gradients(Regions):
    """Told of what happens to gradients."""

    @told
    def tensor_changed(self, tensor: torch.Tensor, effect: str, args: tuple[Any, ...]) -> None:
        if self._passes:
            return
        if self._regions and (isinstance(tensor, torch.nn.Parameter) or id(tensor) in self.owners):
            site = self.sites.here()
            self._written.add(id(tensor))
            self._emit(e.PARAM_WRITE, site, names={"call": Spoken(site)})
            self._hook_forwards()
            return
        if not any(k.under_scale or k.unscaled for k in self.optimizers.values()):
            return
        site = self.sites.here()
        for key in self._owners_of_grad(tensor):
            known = self._by_key(key)
            if known is not None:
                self._edit(known, site, effect, args[-1] if args else None)

    def _edit(self, known: Known, site: Site, effect: str, number: Any) -> None:
        known.edited = site
        key = known.thing.key
        names = {"params": "p.grad", "call": Spoken(site), "optimizer": known.said or ""}
        if known.scaler is not None or known.backward is not None:
            holder = self._holder(known)
            names["scaler"] = holder.said if holder is not None and holder.said is not None else ""
        known.looked_at = []
        if effect == "zero":
            return  # found when all are
        scale = self._scale_for(known)
        if not known.under_scale and effect not in ("divide", "multiply"):
            return
        if effect == "fill":
            if _is_infinite(number):
                return  # an overflow that is made on purpose
            effect = "edit"
        if effect in ("divide", "multiply") and is_number(number):
            value = plain_number(number)
            factor = 1 / value if effect == "divide" and value else value
            # Of gradients that no scaler has scaled, it may be any scaler's scale.
            scales = [scale] if scale != 1.0 else [holder.scale for holder in self.scalers.values()]
            divides = any(math.isclose(factor * scale, 1.0, rel_tol=1e-3) for scale in scales if scale != 1.0)
            if divides:
                known.under_scale = False
            if divides or not known.unscaled:
                self._emit(e.GRAD_DIVIDE if divides else e.GRAD_NORMALISE, site, owners=(key,), names=names)
        elif effect == "replace":
            self._emit(e.HANDOFF, site, things=(key,))
        elif known.under_scale:
            self._emit(e.GRAD_EDIT, site, owners=(key,), names=names)

    def _holder(self, known: Known) -> Scaler | None:
        subject = known.backward.subject if known.backward is not None else None
        for scaler in self.scalers.values():
            if scaler.thing.key == subject:
                return scaler
        return known.scaler

    def _scale_for(self, known: Known) -> float:
        holder = self._holder(known)
        return 1.0 if holder is None else holder.scale

    @told
    def grad_set(self, param: torch.Tensor, value: Any) -> None:
        keys = self.owners.get(id(param))
        if not keys or self._passes:
            return
        self._grad_storages = None
        site = self.sites.here()
        for key in keys:
            known = self._by_key(key)
            if known is None:
                continue
            known.edited = site
            known.looked_at = []
            if value is None or not known.under_scale or param.grad is None:
                continue
            scale = self._scale_for(known)
            old, new = param.grad.detach().norm(), value.detach().norm()
            names = {"params": "p.grad", "call": "this assignment", "optimizer": known.said or ""}
            if scale != 1.0 and math.isclose(float(new) * scale, float(old), rel_tol=1e-2):
                self._emit(e.GRAD_DIVIDE, site, owners=(key,), names=names)
            elif _is_edited(param.grad, value):
                self._emit(e.GRAD_EDIT, site, owners=(key,), names=names)
            else:
                self._emit(e.HANDOFF, site, things=(key,))

    def _owners_of_grad(self, tensor: torch.Tensor) -> tuple[int, ...]:
        """The optimizers whose parameter has this tensor, or a view of it, as its gradient."""
        storages = self._grad_storages
        if storages is None:
            storages = self._grad_storages = {
                storage(p.grad): self.owners[id(p)]
                for known in self.optimizers.values()
                for p in known.params
                if p.grad is not None
            }
        return storages.get(storage(tensor), ())

    def _look(self, known: Known) -> None:
        """Find what has happened to gradients unseen: all cleared one by one, or edited by code that is not patched."""
        marks = known.sentinel_marks()
        if known.edited is not None and not any(identity for identity, _ in marks):
            if all(p.grad is None for p in known.params):
                self._emit(e.ZERO_GRAD, known.edited, owners=(known.thing.key,), names={"call": Spoken(known.edited)})
                known.under_scale = known.unscaled = False
        elif known.edited is not None and known.under_scale and all(not holds(p.grad) for p in known.sentinels):
            if all(not holds(p.grad) for p in known.params):
                self._emit(e.ZERO_GRAD, known.edited, owners=(known.thing.key,), names={"call": Spoken(known.edited)})
        elif known.looked_at and marks != known.looked_at:
            site = self.sites.here()
            self._edit(known, site, "edit", None)
            known.edited = site
        known.looked_at = marks

    @told
    def zero_grad(self, optimizer: Any) -> None:
        known = self._known(optimizer)
        site = self.sites.here()
        if known.said is None:
            known.said = Spoken(site, "receiver")
        self._cleared([known], site, self._at(site, _clearing))

    @told
    def module_zero_grad(self, module: torch.nn.Module) -> None:
        ids = {id(p) for p in module.parameters()}
        cleared = [k for k in self.optimizers.values() if k.params and all(id(p) in ids for p in k.params)]
        if cleared:
            site = self.sites.here()
            self._cleared(cleared, site, {"call": Spoken(site)})

    def _cleared(self, cleared: list[Known], site: Site, names: dict[str, object]) -> None:
        keys = {k.thing.key for k in cleared}
        for known in cleared:
            shares: set[int] = known.thing.facts["shares"]
            if shares:
                keys.update(key for key in shares if self._inside(key, known))
            known.under_scale = known.unscaled = known.used = False
            known.backwards_since = 0
            known.edited = None
            known.looked_at = []
        self._grad_storages = None
        self._emit(e.ZERO_GRAD, site, owners=tuple(sorted(keys)), names=names)
        self._watch()

    def _inside(self, key: int, known: Known) -> bool:
        """Whether another optimizer holds no parameter that this one does not."""
        other = self._by_key(key)
        ids = {id(p) for p in known.params}
        return other is not None and all(id(p) in ids for p in other.params)

    @told
    def clip(
        self,
        params: Sequence[torch.Tensor],
        limit: Any,
        *,
        grads: Sequence[torch.Tensor] = (),
        nonfinite_error: bool,
        norm: bool = False,
    ) -> None:
        owners, unknown = self._owners_of(params)
        owners.update([key for grad in grads for key in self._owners_of_grad(grad)])
        if not owners and not unknown:
            return
        site = self.sites.here()
        for key in owners:
            known = self._by_key(key)
            if known is not None:
                self._look(known)
                known.looked_at = []
        number = plain_number(limit) if is_number(limit) else 1.0
        holders = [h for key in owners if (k := self._by_key(key)) is not None and (h := self._holder(k)) is not None]
        if any(h.asked and number >= h.scale * 1e-3 for h in holders):
            return  # the limit was multiplied by the scale, as the gradients are
        measures_only = math.isinf(number)
        if measures_only and self._at(site, mentions_scale):
            return  # measured, and divided by the scale
        for key in owners if math.isnan(number) else ():
            known = self._by_key(key)
            if known is not None:
                known.edited = site
        if nonfinite_error and self._at(site, caught):
            nonfinite_error = False
        self._emit(
            e.CLIP,
            site,
            owners=owners,
            touches=unknown,
            nonfinite_error=nonfinite_error,
            measures_only=measures_only,
            local=norm and are_shards(params),
            names=self._at(site, _clipping),
        )

    def _owners_of(self, params: Sequence[torch.Tensor]) -> tuple[set[int], frozenset[int]]:
        """Keys of the optimizers that hold parameters, and those with a gradient that none holds."""
        ids = frozenset(map(id, params))
        known = self._clipped.get(ids)
        if known is not None:
            return set(known), frozenset()
        holders = self.owners
        owners = {key for identity in ids for key in holders.get(identity, ())}
        if ids <= holders.keys():
            if len(self._clipped) >= CLIPPED_KEPT:
                self._clipped.clear()
            self._clipped[ids] = frozenset(owners)
        return owners, frozenset([id(p) for p in params if id(p) not in holders and p.grad is not None])

    @told
    def norm_read(self, tensors: Any) -> None:
        owners = {key for tensor in tensors or () for key in self._owners_of_grad(tensor)}
        site = self.sites.here()
        if owners and not self._at(site, mentions_scale):
            names = {"params": "the gradients", "call": Spoken(site)}
            self._emit(e.GRAD_READ, site, owners=tuple(sorted(owners)), names=names)

    @told
    def number_taken(self) -> None:
        """The program turns a tensor into a number or a truth value."""
        for known in self.optimizers.values():
            known.looked = True

    @told
    def norm_known(self, norm: Any) -> None:
        if isinstance(norm, torch.Tensor):
            for known in self.optimizers.values():
                if known.unscaled or known.under_scale:
                    known.norm = Loss(bare(norm), 1.0 if known.unscaled else self._scale_for(known))


def _clearing(site: Site) -> dict[str, object]:
    return {"optimizer": Spoken(site, "receiver"), "call": Spoken(site)}


def _clipping(site: Site) -> dict[str, object]:
    return {"call": Spoken(site), "params": Spoken(site, "argument", "parameters")}


def _is_infinite(value: Any) -> bool:
    return is_number(value) and not math.isfinite(plain_number(value))


def _is_edited(old: torch.Tensor, new: torch.Tensor) -> bool:
    """Whether a gradient was made from another by changing some of its values, as clamp and nan_to_num do."""
    if old.shape != new.shape or old.is_sparse or new.is_sparse:
        return False
    before, after = old.detach(), new.detach()
    if not bool(torch.isfinite(before).all()) and bool(torch.isfinite(after).all()):
        return True
    ratio = (after / before)[before != 0]
    if not ratio.numel() or bool((ratio - ratio[0]).abs().max() <= 1e-3 * ratio[0].abs()):
        return False  # multiplied by a number, as averages are
    return bool((before.sign() == after.sign()).all())
