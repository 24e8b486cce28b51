"""What every listener is: called while the program runs, in a way that cannot reach it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from torch.utils._python_dispatch import _disable_current_modes

from ..recording import Recording

Method = TypeVar("Method", bound=Callable[..., Any])


class Listener:
    """Makes events of one kind of calls."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.registry = recording.registry
        self.regions = recording.regions
        self.sites = recording.sites


def listens(method: Method) -> Method:
    """A method that patches and hooks call. Its own errors end the recording, and the program that is recorded goes on.

    What a listener does with torch itself is recorded by none: one listener calls another by methods without this.
    """
    return _guarded(method, asks_tensors=True)


def listens_to_calls(method: Method) -> Method:
    """The same for a method that asks no tensor for anything, so that the mode that sees ops may stay where it is."""
    return _guarded(method, asks_tensors=False)


def _guarded(method: Method, *, asks_tensors: bool) -> Method:
    @functools.wraps(method)
    def guarded(self: Listener, *args: Any, **kwargs: Any) -> Any:
        recording = self.recording
        if recording.failure is not None or recording.busy:
            return None
        recording.busy = True
        ops = recording.loose_ops
        aside = ops if asks_tensors and ops is not None and ops.is_on and ops.steps_aside() else None
        try:
            if recording.registry.dead and not recording.backwards:
                recording.registry.bury()
            if recording.undispatched:
                # What a listener computes is no part of what dispatch modes watch.
                with _disable_current_modes():
                    return method(self, *args, **kwargs)
            return method(self, *args, **kwargs) if kwargs else method(self, *args)
        except Exception as error:  # noqa: BLE001 - whatever it is, the training goes on; it is reported at the end
            recording.failure = error
            return None
        finally:
            recording.busy = False
            if aside is not None:
                aside.comes_back()

    return guarded  # type: ignore[return-value]
