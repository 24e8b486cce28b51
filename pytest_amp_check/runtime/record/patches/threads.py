"""Patches of what starts threads, gives work to pools, and traces."""

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
from ..threads import Watch, watched
from .table import Patch

if TYPE_CHECKING:
    from ..recorder import Recorder

#: Where pools of threads are.
_POOLS = os.path.dirname(os.path.abspath(concurrent.futures.__file__))


def patches() -> list[Patch]:
    return [
        # torch.jit.trace looks it up in its own module.
        *(Patch(module, "trace_module", failed=_trace_failed) for module in (torch.jit._trace, torch.jit)),
        Patch(threading.Thread, "start", around=_start),
        Patch(ThreadPoolExecutor, "submit", around=_submit),
    ]


def _trace_failed(recorder: Recorder, error: BaseException, *args: Any, **kwargs: Any) -> None:
    recorder.traces.failed(error)


def _watches(frame: FrameType | None) -> list[Watch]:
    """What watches a thread that is given work by a frame, if that is a user's, or a pool's for one."""
    recorders: list[Recorder] = [recorder for recorder in THREAD.active if recorder.in_region]
    if not recorders:
        return []
    while frame is not None and frame.f_code.co_filename.startswith(_POOLS):
        frame = frame.f_back
    if frame is None or is_inner(frame.f_code.co_filename):
        return []
    asked = [recorder.threads.asked() for recorder in recorders]
    return [watch for watch in asked if watch is not None]


def _start(original: Any) -> Any:
    def start(self: Any) -> None:
        frame = sys._getframe(1)
        # A pool's threads go on when the region of the one who asks is left; what they are given is watched.
        watching = [] if frame.f_code.co_filename.startswith(_POOLS) else _watches(frame)
        if watching:
            self.run = watched(self.run, watching)
        original(self)

    return start


def _submit(original: Any) -> Any:
    def submit(self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        watching = _watches(sys._getframe(1))
        if watching:
            fn = watched(fn, watching)
        return original(self, fn, *args, **kwargs)

    return submit
