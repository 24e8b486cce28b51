"""How GradScalers are made, and which of them are switched off."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from ....protocol import events as e
from ....protocol import surface
from ....protocol.events import Event
from ..recording import Recording, plain
from ..source import SourceText
from .listener import Listener, listens


class ScalerConstruction(Listener):
    """Listens to scalers that are made."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        #: Scalers whose construction was seen.
        self._made: weakref.WeakSet[Any] = weakref.WeakSet()
        #: Whether it was said that a scaler has switched itself off.
        self._reported_disabled = False
        #: Whether a scaler that is switched off has scaled: what trains unscaled beside it does so on purpose.
        self.disabled_scales = False

    @listens
    def constructed(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Event:
        entry = surface.SURFACE[name]
        bound = dict(zip(entry.parameters, args, strict=False))
        bound.update(kwargs)
        site = self.sites.here()
        return self.recording.emit(
            e.SCALER_NEW,
            site,
            None,
            callable=name,
            arguments={key: plain(value) for key, value in bound.items()},
            excess=max(0, len(args) - len(entry.parameters)),
            names={"call": SourceText(site), "scaler": "the scaler"},
        )

    @listens
    def made(self, scaler: Any, event: Event) -> None:
        """Its constructor has returned."""
        self._made.add(scaler)
        asked = event.facts["arguments"].get("enabled", True)
        if asked is True and not scaler.is_enabled() and not self._reported_disabled:
            self._reported_disabled = event.facts["disabled_itself"] = True
            # It may be judged already.
            self.recording.chain.judge(event)

    def scales_disabled(self, scaler: Any) -> None:
        """Tell, once, of a scaler for CUDA that is off where there is no CUDA; it may have been made before this."""
        self.disabled_scales = True
        if self._reported_disabled or scaler in self._made or scaler._device != "cuda" or torch.cuda.is_available():
            return
        self._reported_disabled = True
        site = self.sites.here()
        names = {"call": SourceText(site), "scaler": SourceText(site, "receiver")}
        self.recording.emit(e.SCALER_NEW, site, None, callable="", arguments={}, disabled_itself=True, names=names)
