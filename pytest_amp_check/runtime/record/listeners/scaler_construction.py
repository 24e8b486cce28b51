"""The construction of GradScalers, and disabled scalers."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from ....protocol import events as e
from ....protocol import torch_api
from ..recording import Recording, plain_argument
from ..source import SiteText
from .listener import Listener, listener_method


class ScalerConstructionListener(Listener):
    """A listener for the construction of scalers."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        #: Scalers whose construction was seen.
        self._known_scalers: weakref.WeakSet[Any] = weakref.WeakSet()
        #: True once a scaler that disabled itself was reported.
        self._reported_disabled = False
        #: True if a disabled scaler has scaled. Unscaled training beside it is then on purpose.
        self.disabled_scales = False

    @listener_method
    def record_construction(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> e.ScalerNew:
        entry = torch_api.SURFACE[name]
        arguments_by_name = dict(zip(entry.parameters, args, strict=False))
        arguments_by_name.update(kwargs)
        site = self.sites.current_site()
        return self.recording.emit(
            e.ScalerNew(
                site,
                None,
                callable=name,
                arguments={key: plain_argument(value) for key, value in arguments_by_name.items()},
                excess=max(0, len(args) - len(entry.parameters)),
                names={"call": SiteText(site), "scaler": "the scaler"},
            )
        )

    @listener_method
    def record_created(self, scaler: Any, event: e.ScalerNew) -> None:
        """Record that the constructor of a scaler has returned."""
        self._known_scalers.add(scaler)
        enabled = event.arguments.get("enabled", True)
        if enabled is True and not scaler.is_enabled() and not self._reported_disabled:
            self._reported_disabled = event.disabled_itself = True
            # The event may already be checked, so it is checked again.
            self.recording.run_checker.check_event(event)

    def record_disabled_scale(self, scaler: Any) -> None:
        """Report, once, a CUDA scaler that is disabled for lack of CUDA. It may be older than the recording."""
        self.disabled_scales = True
        if (
            self._reported_disabled
            or scaler in self._known_scalers
            or scaler._device != "cuda"
            or torch.cuda.is_available()
        ):
            return
        self._reported_disabled = True
        site = self.sites.current_site()
        names = {"call": SiteText(site), "scaler": SiteText(site, "receiver")}
        self.recording.emit(e.ScalerNew(site, None, callable="", arguments={}, disabled_itself=True, names=names))
