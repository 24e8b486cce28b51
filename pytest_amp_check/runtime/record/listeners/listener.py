"""The base of all listeners. Listeners run inside the program and must not affect it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ..recording import Recording

Method = TypeVar("Method", bound=Callable[..., Any])


class Listener:
    """A recorder of events for one kind of calls."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.registry = recording.registry
        self.regions = recording.regions
        self.sites = recording.sites


def listener_method(method: Method) -> Method:
    """Guard a method that patches and hooks call. Its own errors end the recording, and the program continues.

    A listener's own use of torch is not recorded, so listeners call each other through methods without this guard.
    """
    return _guard_method(method, asks_tensors=True)


def call_listener_method(method: Method) -> Method:
    """Guard a method that reads no tensor, so the op mode may stay on the stack; see :func:`listener_method`."""
    return _guard_method(method, asks_tensors=False)


def _guard_method(method: Method, *, asks_tensors: bool) -> Method:
    @functools.wraps(method)
    def guarded_method(self: Listener, *args: Any, **kwargs: Any) -> Any:
        recording = self.recording
        if recording.failure is not None or recording.is_busy:
            return None
        recording.is_busy = True
        ops = recording.loose_ops
        paused_ops = ops if asks_tensors and ops is not None and ops.is_on and ops.try_pause() else None
        try:
            if recording.registry.dead_objects and not recording.backward_depth:
                recording.registry.forget_dead()
            if recording.has_dispatch_watcher or torch._C._len_torch_dispatch_stack():
                # Dispatch modes, of another recording as well, must not see the computations of a listener.
                with _disable_current_modes():
                    return method(self, *args, **kwargs)
            return method(self, *args, **kwargs) if kwargs else method(self, *args)
        except Exception as error:  # noqa: BLE001 - whatever it is, the training goes on; it is reported at the end
            recording.failure = error
            return None
        finally:
            recording.is_busy = False
            if paused_ops is not None:
                paused_ops.resume()

    return guarded_method  # type: ignore[return-value]
