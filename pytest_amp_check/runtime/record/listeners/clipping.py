"""Clips and norms of gradients, and numbers that the program reads from tensors."""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

from ....protocol import events as e
from ....protocol.sites import Site
from ..deferred_values import ONE, ScaledValue
from ..graph import is_number, plain_number
from ..recording import Recording
from ..sharding import are_shards
from ..source.call_texts import Role, SiteText
from ..source.conditions import find_refusal, is_in_try
from ..source.mentions import mentions_scale, reads_gradient, reads_no_size, uses_scale
from ..tracked import TrackedOptimizer
from .gradients import GradientListener
from .listener import Listener, listener_method

#: Largest number of remembered norms, which are single numbers.
MOST = 512


class ClippingListener(Listener):
    """A listener for clips, and for norms of gradients."""

    def __init__(self, recording: Recording, gradients: GradientListener) -> None:
        super().__init__(recording)
        self._gradients = gradients
        #: The latest norms of gradients, each with the optimizers of the gradient. A strong reference would keep the
        #: graph of a gradient alive.
        self._norms: deque[tuple[weakref.ref[torch.Tensor], tuple[int, ...]]] = deque(maxlen=MOST)

    @listener_method
    def record_clip(
        self,
        params: Sequence[torch.Tensor],
        limit: Any,
        *,
        grads: Sequence[torch.Tensor] = (),
        nonfinite_error: bool,
        norm: bool = False,
        joint: bool = False,
    ) -> None:
        """Record a clip of the gradients of parameters, or of given gradients, that is about to run."""
        owners, unknown = self.registry.owners_of(params)
        owners.update([key for grad in grads for key in self._gradients.owners_of(grad)])
        site = self.sites.current_site()
        clipped_optimizers = [tracked for key in owners if (tracked := self.registry.find_by_key(key)) is not None]
        for tracked in clipped_optimizers:
            self._gradients.check_gradients(tracked)
            tracked.gradient_marks = []
        # torch converts other limits, such as a text.
        number = plain_number(limit) if is_number(limit) else 1.0
        if self._is_scaled(number, clipped_optimizers):
            return
        measures_only = math.isinf(number)
        if measures_only and self.recording.query_source(site, mentions_scale):
            return  # the program measures the norm and divides it by the scale
        if math.isnan(number):
            for tracked in clipped_optimizers:
                tracked.edit_site = site
        self.recording.emit(
            e.Clip(
                site,
                owners=owners,
                touches=unknown,
                joint=joint,
                nonfinite_error=nonfinite_error and not self.recording.query_source(site, is_in_try),
                measures_only=measures_only,
                # torch 2.4 has exhausted a generator of parameters, but the gradients identify the optimizers.
                local=norm and are_shards(params or (p for tracked in clipped_optimizers for p in tracked.params)),
                names=self.recording.query_source(site, _clip_names),
            )
        )

    def _is_scaled(self, limit: float, clipped_optimizers: Sequence[TrackedOptimizer]) -> bool:
        """Return True if a limit was multiplied by the scale, like the gradients."""
        scalers = [scaler for tracked in clipped_optimizers if (scaler := self.registry.scaler_of(tracked)) is not None]
        return any(scaler.has_read_scale and limit >= scaler.scale.value * 1e-3 for scaler in scalers)

    @listener_method
    def record_norm_read(self, tensors: Any) -> None:
        """Record a norm of tensors that the program computes for itself."""
        owners = {key for tensor in tensors or () for key in self._gradients.owners_of(tensor)}
        site = self.sites.current_site()
        if owners and not self.recording.query_source(site, mentions_scale):
            names = {"call": SiteText(site)}
            self.recording.emit(e.GradRead(site, owners=tuple(sorted(owners)), names=names))

    def note_norm(self, norm: torch.Tensor, tensor: torch.Tensor) -> None:
        """Note a norm that the program has computed, if the norm is of a gradient."""
        if self.recording.watches_tensors:
            self._note_norm_of_gradient(norm, tensor)

    @listener_method
    def _note_norm_of_gradient(self, norm: torch.Tensor, tensor: torch.Tensor) -> None:
        owners = self._gradients.owners_of(tensor)
        if owners:
            self._norms.append((weakref.ref(norm), owners))

    @listener_method
    def record_size_read(self, tensor: torch.Tensor) -> None:
        """Record a number that the program reads from a scaled gradient, as for a log.

        A program that reads the scale may divide the number later. The first step does not show if it reads the scale.
        """
        optimizers = [tracked for tracked in self.registry.optimizers.values() if tracked.is_used or tracked.is_scaled]
        if not self.recording.steps.total or not any(tracked.is_scaled for tracked in optimizers):
            return
        if any(scaler.has_read_scale for scaler in self.registry.scalers.values()):
            return
        site = self.sites.current_site()
        if self.recording.query_source(site, uses_scale) or self.recording.query_source(site, reads_no_size):
            return
        keys = self._gradients.owners_of(tensor) or next(
            (owners for norm_ref, owners in self._norms if norm_ref() is tensor), ()
        )
        # A number may be that of any optimizer's gradients.
        are_all_scaled = all(tracked.is_scaled for tracked in optimizers) and not any(
            tracked.is_unscaled for tracked in self.registry.optimizers.values()
        )
        if not keys and are_all_scaled and self.recording.query_source(site, reads_gradient):
            keys = tuple(tracked.tracked_object.key for tracked in optimizers)
        scaled_keys = tuple(tracked.tracked_object.key for tracked in optimizers if tracked.is_scaled)
        owners = tuple(key for key in keys if key in scaled_keys)
        if owners:
            names = {"call": SiteText(site)}
            self.recording.emit(e.GradRead(site, owners=owners, names=names))

    @listener_method
    def record_norm(self, norm: Any) -> None:
        """Record the norm by which gradients are clipped."""
        if isinstance(norm, torch.Tensor):
            for tracked in self.registry.optimizers.values():
                if tracked.is_unscaled or tracked.is_scaled:
                    scale = ONE if tracked.is_unscaled else self.registry.scale_for(tracked)
                    tracked.norm = ScaledValue(norm, scale)

    @listener_method
    def record_number_taken(self) -> None:
        """Record that the program converts a tensor to a number or a boolean."""
        live = []
        for tracked in self.registry.optimizers.values():
            tracked.has_taken_number = True
            if tracked.is_unscaled or tracked.is_scaled:
                live.append(tracked)
        if not live:
            return
        refusal = self.recording.query_source(self.sites.current_site(), find_refusal)
        if refusal.text:
            owners = tuple(tracked.tracked_object.key for tracked in live)
            scaler = self.registry.scaler_of(live[0])
            names = {"call": refusal.text, "optimizer": live[0].name, "scaler": "" if scaler is None else scaler.name}
            self.recording.emit(e.GradCheck(refusal.site, owners=owners, raises=True, names=names))


def _clip_names(site: Site) -> dict[str, object]:
    return {
        "call": SiteText(site),
        "module": SiteText(site, Role.MODULE, "parameters"),
        "limit": SiteText(site, Role.SECOND_ARGUMENT, "max_norm"),
    }
