"""Gradients that are clipped or measured, and numbers of tensors that the program looks at."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ....protocol import events as e
from ....protocol.events import Event, Site
from ..graph import bare, is_number, plain_number
from ..readings import ONE, ScaledValue
from ..recording import Recording
from ..sharding import are_shards
from ..source import SourceText, caught, mentions_scale, refusal
from ..tracked import TrackedOptimizer
from .gradients import Gradients
from .listener import Listener, listens


class Clipping(Listener):
    """Listens to clips, and to norms of gradients."""

    def __init__(self, recording: Recording, gradients: Gradients) -> None:
        super().__init__(recording)
        self._gradients = gradients
        #: Checks that raise where gradients are not finite -> the backward whose gradients they looked at last.
        self._refused: dict[Site, Event | None] = {}

    @listens
    def clipped(
        self,
        params: Sequence[torch.Tensor],
        limit: Any,
        *,
        grads: Sequence[torch.Tensor] = (),
        nonfinite_error: bool,
        norm: bool = False,
    ) -> None:
        """Gradients are about to be clipped: those of parameters, or ones that are given themselves."""
        owners, unknown = self.registry.owners_of(params)
        owners.update([key for grad in grads for key in self._gradients.owners_of(grad)])
        if not owners and not unknown:
            return
        site = self.sites.here()
        clipped = [tracked for key in owners if (tracked := self.registry.by_key(key)) is not None]
        for tracked in clipped:
            self._gradients.look(tracked)
            tracked.marks = []
        number = plain_number(limit) if is_number(limit) else 1.0
        if self._is_scaled(number, clipped):
            return
        measures_only = math.isinf(number)
        if measures_only and self.recording.read(site, mentions_scale):
            return  # measured, and divided by the scale
        if math.isnan(number):
            for tracked in clipped:
                tracked.edited = site
        self.recording.emit(
            e.CLIP,
            site,
            owners=owners,
            touches=unknown,
            nonfinite_error=nonfinite_error and not self.recording.read(site, caught),
            measures_only=measures_only,
            # Of a generator that torch 2.4 has used up, the gradients are left: those of these optimizers.
            local=norm and are_shards(params or (p for tracked in clipped for p in tracked.params)),
            names=self.recording.read(site, _clipping),
        )

    def _is_scaled(self, limit: float, clipped: Sequence[TrackedOptimizer]) -> bool:
        """Whether a limit was multiplied by the scale, as the gradients are."""
        scalers = [scaler for tracked in clipped if (scaler := self.registry.scaler_of(tracked)) is not None]
        return any(scaler.scale_read and limit >= scaler.scale.value * 1e-3 for scaler in scalers)

    @listens
    def norm_read(self, tensors: Any) -> None:
        """The norm of some tensors is computed, to be used by the program itself."""
        owners = {key for tensor in tensors or () for key in self._gradients.owners_of(tensor)}
        site = self.sites.here()
        if owners and not self.recording.read(site, mentions_scale):
            names = {"params": "the gradients", "call": SourceText(site)}
            self.recording.emit(e.GRAD_READ, site, owners=tuple(sorted(owners)), names=names)

    @listens
    def norm_computed(self, norm: Any) -> None:
        """The norm by which gradients are clipped."""
        if isinstance(norm, torch.Tensor):
            for tracked in self.registry.optimizers.values():
                if tracked.unscaled or tracked.under_scale:
                    scale = ONE if tracked.unscaled else self.registry.scale_for(tracked)
                    tracked.norm = ScaledValue(bare(norm), scale)

    @listens
    def number_taken(self) -> None:
        """The program turns a tensor into a number or a truth value."""
        live = []
        for tracked in self.registry.optimizers.values():
            tracked.number_taken = True
            if tracked.unscaled or tracked.under_scale:
                live.append(tracked)
        if not live:
            return
        site = self.sites.here()
        call = self.recording.read(site, refusal) if self._refused.get(site) is not live[0].backward else ""
        if call:
            self._refused[site] = live[0].backward
            owners = tuple(tracked.thing.key for tracked in live)
            scaler = self.registry.scaler_of(live[0])
            named = "" if scaler is None or scaler.name is None else scaler.name
            names = {"call": call, "optimizer": live[0].name or "", "scaler": named}
            self.recording.emit(e.GRAD_CHECK, site, owners=owners, raises=True, names=names)


def _clipping(site: Site) -> dict[str, object]:
    return {"call": SourceText(site), "params": SourceText(site, "argument", "parameters")}
