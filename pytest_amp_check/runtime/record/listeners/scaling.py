"""What GradScalers scale, and who asks for their scale."""

from __future__ import annotations

from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler

from ....protocol import events as e
from ....protocol.events import Site
from ..graph import tensors
from ..loose_ops import LooseOps
from ..recording import Recording
from ..scaled_losses import ScaledLosses
from ..source import SourceText
from ..tracked import TrackedScaler
from .finite import Finite
from .forwards import Forwards
from .listener import Listener, listens
from .scaler_construction import ScalerConstruction


class Scaling(Listener):
    """Listens to ``scaler.scale`` and ``scaler.get_scale``."""

    def __init__(
        self,
        recording: Recording,
        scaled: ScaledLosses,
        forwards: Forwards,
        construction: ScalerConstruction,
        finite: Finite,
    ) -> None:
        super().__init__(recording)
        self._scaled = scaled
        self._forwards = forwards
        self._construction = construction
        self._finite = finite
        #: The mode that sees ops, while it is aside since the scaler makes of one loss what is known.
        self._aside: LooseOps | None = None
        #: Places that scaled, with the dtypes of the regions before.
        self._places: set[tuple[int, frozenset[str]]] = set()
        #: Keys of the scalers that have scaled.
        self._live: set[int] = set()

    def begins(self, scaler: Any, outputs: Any) -> None:
        """A scaler is about to scale. To have each of its ops told of costs more than all that is recorded of it."""
        ops = self.recording.loose_ops
        if (
            ops is not None
            and ops.is_on
            and not self.recording.busy
            and type(outputs) is torch.Tensor
            and type(scaler).scale is GradScaler.scale
            and ops.steps_aside()
        ):
            self._aside = ops

    def ended(self) -> None:
        """It has scaled, or failed."""
        ops, self._aside = self._aside, None
        if ops is not None:
            ops.comes_back()

    @listens
    def scaled(self, scaler: Any, outputs: Any, result: Any) -> None:
        if not scaler.is_enabled():
            self._construction.scales_disabled(scaler)
            return
        if self._aside is not None:
            self._finite.scaled(outputs, scaler._scale, result)
        tracked = self.registry.scaler(scaler)
        site = self.sites.here()
        names = self.recording.read(site, _scaling)
        tracked.name = names["scaler"]
        since = frozenset(self.regions.dtypes)
        losses = tensors(outputs)
        new = (id(site), since) not in self._places
        twice = new and self._scaled.scaled_already(losses, tracked.scale)
        self._scaled.mark(losses, result, tracked)
        self._forwards.scaled_again(site, losses)
        if not new:
            return
        self._places.add((id(site), since))
        dtypes = self.regions.dtypes_below(site, losses)
        event = self.recording.emit(
            e.SCALE, site, tracked.thing.key, dtypes=dtypes, twice=twice, float32=False, names=names
        )
        self._forwards.seek(event, losses)
        self.recording.program.facts["scaler_dtypes"].update(dtypes)
        self._goes_live(tracked)

    def _goes_live(self, tracked: TrackedScaler) -> None:
        if tracked.thing.key not in self._live:
            self._live.add(tracked.thing.key)
            self.recording.program.facts["live_scalers"].append(tracked.thing)

    @listens
    def scale_asked(self, scaler: Any) -> None:
        if scaler.is_enabled():
            self.registry.scaler(scaler).scale_read = True


def _scaling(site: Site) -> dict[str, SourceText]:
    return {
        "scaler": SourceText(site, "receiver"),
        "call": SourceText(site),
        "loss": SourceText(site, "argument", "outputs"),
    }
