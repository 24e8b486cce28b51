"""The construction of GradScalers, and disabled scalers."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from ....protocol import events as e
from ....protocol import torch_api
from ..recording import Recording, plain_argument
from ..sites import calling_framework
from ..source.call_texts import Role, SiteText, assigned_name, has_constant_argument, loop_around
from ..tracked import TrackedOptimizer
from .listener import Listener, listener_method


class ScalerConstructionListener(Listener):
    """A listener for the construction of scalers."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        #: Scalers whose construction was seen, to the event.
        self._construction_events: weakref.WeakKeyDictionary[Any, e.ScalerNew] = weakref.WeakKeyDictionary()
        #: Scalers that have got the state of another scaler.
        self._loaded_scalers: weakref.WeakSet[Any] = weakref.WeakSet()
        #: True once a scaler that disabled itself was reported.
        self._reported_disabled = False
        #: True if a disabled scaler has scaled.
        self.has_disabled_scales = False
        #: The construction of the first such scaler whose device exists here, or its first use.
        self._disabled_event: e.ScalerNew | None = None

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
                names={"call": SiteText(site)},
            )
        )

    @listener_method
    def record_created(self, scaler: Any, event: e.ScalerNew) -> None:
        """Record that the constructor of a scaler has returned."""
        self._construction_events[scaler] = event
        framework = calling_framework(event.site)
        if framework and scaler.is_enabled():
            key = self.registry.track_scaler(scaler).tracked_object.key
            self.recording.run_checker.frameworks[key] = framework
        enabled = event.arguments.get("enabled", True)
        if enabled is True and not scaler.is_enabled() and not self._reported_disabled:
            self._reported_disabled = event.disabled_itself = True
            # The event may already be checked, so it is checked again.
            self.recording.run_checker.check_event(event)

    def note_loaded(self, scaler: Any) -> None:
        """Note that a scaler has got the state of another one."""
        self._loaded_scalers.add(scaler)

    def note_step(self, scaler: Any, tracked: TrackedOptimizer) -> None:
        """Report a new scaler, with a fresh scale, from where the scaler of the optimizer's last step came."""
        event = self._construction_events.get(scaler)
        last_site, tracked.scaler_site = tracked.scaler_site, None if event is None else event.site
        if event is None or event.site is not last_site or event.again or tracked.scaler is None:
            return
        is_fresh = scaler not in self._loaded_scalers and has_constant_argument(event.site, "init_scale")
        if is_fresh and tracked.scaler.scaler() is not scaler:
            event.again = True
            names = {"scaler": assigned_name(event.site), "loop": loop_around(event.site)}
            event.names = {**event.names, **names}
            self.recording.run_checker.check_event(event)

    def record_disabled_scale(self, scaler: Any) -> None:
        """Report, once, a CUDA scaler that is disabled for lack of CUDA. It may be older than the recording."""
        self.has_disabled_scales = True
        event = self._construction_events.get(scaler)
        if self._disabled_event is None and _has_device(scaler):
            self._disabled_event = event or self._make_use_event(disabled_itself=False)
        if self._reported_disabled or event is not None or _has_device(scaler):
            return
        self._reported_disabled = True
        self.recording.run_checker.add_event(self._make_use_event(disabled_itself=True))

    def _make_use_event(self, *, disabled_itself: bool) -> e.ScalerNew:
        site = self.sites.current_site()
        names = {"call": SiteText(site), "scaler": SiteText(site, Role.RECEIVER)}
        return e.ScalerNew(site, None, disabled_itself=disabled_itself, names=names)

    def report_float16(self) -> None:
        """Report, once, that float16 gradients are computed under a scaler that the program has disabled.

        A scaler that has disabled itself is already reported. A scaler for a missing device says nothing about the
        training on that device.
        """
        event = self._disabled_event
        if event is not None and not self._reported_disabled and not event.off_in_float16:
            event.off_in_float16 = True
            self.recording.run_checker.check_event(event)


def _has_device(scaler: Any) -> bool:
    """Return True if this machine has the device of a scaler."""
    return scaler._device != "cuda" or torch.cuda.is_available()
