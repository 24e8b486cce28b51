"""Patches of thread starts, submissions to pools, and traces."""

from __future__ import annotations

import concurrent.futures
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from ..active import THREAD
from ..sites import is_inner
from ..threads import ThreadWatch, watch_function
from .table import Patch

if TYPE_CHECKING:
    from ..recorder import Recorder

#: Folder of Python's thread pools.
_POOLS = os.path.dirname(os.path.abspath(concurrent.futures.__file__))


def patches() -> list[Patch]:
    return [
        # torch.jit.trace looks the function up in its own module.
        *(Patch(module, "trace_module", on_error=_notify_trace_failure) for module in (torch.jit._trace, torch.jit)),
        Patch(threading.Thread, "start", make_wrapper=_wrap_start),
        Patch(ThreadPoolExecutor, "submit", make_wrapper=_wrap_submit),
    ]


def _notify_trace_failure(recorder: Recorder, error: BaseException, *args: Any, **kwargs: Any) -> None:
    recorder.traces.record_failure(error)


def _make_watches(frame: FrameType | None) -> list[ThreadWatch]:
    """Return watches for a thread that receives work from a user's frame, directly or through a pool."""
    while frame is not None and frame.f_code.co_filename.startswith(_POOLS):
        frame = frame.f_back
    is_own = frame is not None and not is_inner(frame.f_code.co_filename)
    recorders: tuple[Recorder, ...] = THREAD.active_recorders if is_own else ()
    watches = [recorder.threads.record_work() for recorder in recorders if recorder.in_region]
    return [watch for watch in watches if watch is not None]


def _wrap_start(original: Any) -> Any:
    def start(self: Any) -> None:
        frame = sys._getframe(1)
        # A pool's threads outlive the region of the submitting code, so each submitted function is watched instead.
        watches = [] if frame.f_code.co_filename.startswith(_POOLS) else _make_watches(frame)
        if watches:
            self.run = watch_function(self.run, watches)
        original(self)

    return start


def _wrap_submit(original: Any) -> Any:
    def submit(self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        watches = _make_watches(sys._getframe(1))
        if watches:
            fn = watch_function(fn, watches)
        return original(self, fn, *args, **kwargs)

    return submit
