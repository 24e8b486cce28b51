"""The losses that GradScalers scale, and reads of their scale."""

from __future__ import annotations

from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler

from ....protocol import events as e
from ....protocol.sites import Site
from ..graph import find_tensors
from ..loose_ops import LooseOps
from ..recording import Recording
from ..scaled_losses import ScaledLosses
from ..source.call_texts import ContextText, Role, SiteText
from ..tracked import TrackedScaler
from .forwards import ForwardListener
from .listener import Listener, listener_method
from .scaler_construction import ScalerConstructionListener
from .taped_calls import TapeListener


class ScalingListener(Listener):
    """A listener for ``scaler.scale`` and ``scaler.get_scale``."""

    def __init__(
        self,
        recording: Recording,
        scaled_losses: ScaledLosses,
        forwards: ForwardListener,
        construction: ScalerConstructionListener,
        taped_calls: TapeListener,
    ) -> None:
        super().__init__(recording)
        self._scaled_losses = scaled_losses
        self._forwards = forwards
        self._construction = construction
        self._taped_calls = taped_calls
        #: The op mode while it is paused, because the op of scaling one loss is known without it.
        self._paused_ops: LooseOps | None = None
        #: (``id`` of a scaling location, dtypes of the regions before) that were already examined.
        self._seen_sites: set[tuple[int, frozenset[str]]] = set()
        #: Keys of the scalers that have scaled.
        self._live_keys: set[int] = set()

    def record_begin(self, scaler: Any, outputs: Any) -> None:
        """Pause the op mode before a scaler scales.

        Reporting each op of the call costs more than all other records of it.
        """
        ops = self.recording.loose_ops
        if (
            ops is not None
            and ops.is_on
            and not self.recording.is_busy
            and type(outputs) is torch.Tensor
            and type(scaler).scale is GradScaler.scale
            and ops.try_pause()
        ):
            self._paused_ops = ops

    def record_end(self) -> None:
        """Resume the op mode after the scaler has scaled or failed."""
        ops, self._paused_ops = self._paused_ops, None
        if ops is not None:
            ops.resume()

    @listener_method
    def record_scaling(self, scaler: Any, outputs: Any, result: Any) -> None:
        if not scaler.is_enabled():
            self._construction.record_disabled_scale(scaler)
            return
        if self._paused_ops is not None:
            self._taped_calls.record_scaling(outputs, scaler._scale, result)
        tracked = self.registry.track_scaler(scaler)
        site = self.sites.current_site()
        names = self.recording.query_source(site, _scale_names)
        tracked.name = names["scaler"]
        region_dtypes = frozenset(self.regions.entered_dtypes)
        losses = find_tensors(outputs)
        is_new = (id(site), region_dtypes) not in self._seen_sites
        is_scaled_twice = is_new and self._scaled_losses.is_scaled_already(losses, tracked.scale)
        self._scaled_losses.mark_losses(losses, result, tracked)
        self._forwards.record_scaling(site, losses)
        if not is_new:
            return
        self._seen_sites.add((id(site), region_dtypes))
        other_device = self._region_of_other_device(scaler, losses)
        dtypes = self.regions.dtypes_below(site, losses) if other_device is None else frozenset()
        event = self.recording.emit(
            e.Scale(
                site,
                tracked.tracked_object.key,
                dtypes=dtypes,
                twice=is_scaled_twice,
                float32=False,
                other_device=other_device,
                names=names,
            )
        )
        self._forwards.seek_forward(event, losses)
        self.recording.program.attributes.scalers.loss_dtypes.update(dtypes)
        self._mark_live(tracked)

    def _region_of_other_device(self, scaler: Any, losses: list[torch.Tensor]) -> e.AutocastEnter | None:
        """Return the event of the region around the forward if the region is not for the device of scaler and loss."""
        device = scaler._device
        site = self.regions.site_of_other_device(device)
        if site is None or not all(loss.device.type == device for loss in losses):
            return None
        names = {"context": ContextText(site, is_decorator=False), "device": device}
        return e.AutocastEnter(site, enabled=True, device=next(iter(self.regions.entered_devices)), names=names)

    def _mark_live(self, tracked: TrackedScaler) -> None:
        if tracked.tracked_object.key not in self._live_keys:
            self._live_keys.add(tracked.tracked_object.key)
            self.recording.program.attributes.scalers.live_scalers.append(tracked.tracked_object)

    @listener_method
    def record_get_scale(self, scaler: Any) -> None:
        if scaler.is_enabled():
            self.registry.track_scaler(scaler).has_read_scale = True


def _scale_names(site: Site) -> dict[str, SiteText]:
    return {
        "scaler": SiteText(site, Role.RECEIVER),
        "call": SiteText(site),
        "loss": SiteText(site, Role.ARGUMENT, "outputs"),
    }
