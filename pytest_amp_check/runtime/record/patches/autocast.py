"""Patches of autocast: contexts that are created, entered and left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.amp import autocast_mode

from ....protocol import torch_api
from ..active import THREAD
from ..threads import note_autocast
from .table import Before, Patch

if TYPE_CHECKING:
    from ..recorder import Recorder


def patches() -> list[Patch]:
    base = autocast_mode.autocast
    classes = {"torch.autocast": base}
    for kind in ("cuda", "cpu"):
        classes[f"torch.{kind}.amp.autocast"] = getattr(torch, kind).amp.autocast_mode.autocast
    return [
        *(Patch(cls, "__init__", on_call=_notify_construction(name, cls)) for name, cls in classes.items()),
        Patch(base, "__enter__", make_wrapper=_wrap_enter),
        Patch(base, "__exit__", on_call=_notify_exit, may_be_compiled=True),
        Patch(torch, "clear_autocast_cache", on_return=_notify_cache_clear, only_user_calls=True),
    ]


def _notify_construction(name: str, cls: type) -> Before:
    position = torch_api.SURFACE[name].parameters.index("enabled")

    def notify_construction(recorder: Recorder, region: Any, *args: Any, **kwargs: Any) -> None:
        # A subclass calls the constructor of its base, so only the outer constructor is the user's call.
        if type(region) is cls:
            recorder.autocast.record_construction(name, args, kwargs)
            if kwargs.get("enabled", args[position] if len(args) > position else True) is False:
                recorder.autocast.record_disabled()

    return notify_construction


def _wrap_enter(original: Any) -> Any:
    """Wrap the entry of a region. Threads without a recording are checked for autocast, too."""

    def enter_region(region: Any) -> Any:
        result = original(region)
        # Dynamo enters the region while it traces, and nothing runs inside.
        if not torch.compiler.is_compiling():
            recorders: tuple[Recorder, ...] = THREAD.active_recorders
            for recorder in recorders:
                recorder.autocast.record_enter(region)
                recorder.overflows.start(region)
            note_autocast()
        return result

    return enter_region


def _notify_exit(recorder: Recorder, region: Any, kind: object = None, error: object = None, *args: object) -> None:
    if len(recorder.recording.regions.open_regions) == 1:
        recorder.overflows.stop()
    recorder.autocast.record_exit(region, error)


def _notify_cache_clear(recorder: Recorder, result: object) -> None:
    recorder.autocast.record_cache_clear()
