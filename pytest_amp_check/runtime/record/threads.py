"""Threads that are given work while autocast is on: they do not inherit it."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...protocol.events import Site

#: Modules whose op autocast casts on every device.
_CAST = (torch.nn.Linear, torch.nn.modules.conv._ConvNd)


class ThreadWatch:
    """A thread that was given work in a region: ``on`` and ``off`` say whether modules ran there with autocast.

    ``depth`` is how many regions were open, ``site`` where the work was given.
    """

    __slots__ = ("depth", "device", "ran_with_autocast", "ran_without_autocast", "site")

    def __init__(self, site: Site, depth: int, device: str) -> None:
        self.site = site
        self.depth = depth
        self.device = device
        self.ran_with_autocast = False
        self.ran_without_autocast = False

    def check_module(self, module: torch.nn.Module, args: Any) -> None:
        """A module runs in the thread."""
        if isinstance(module, _CAST) and module.weight.dtype == torch.float32:
            if torch.is_autocast_enabled(self.device):
                self.ran_with_autocast = True
            else:
                self.ran_without_autocast = True


class _ThreadState(threading.local):
    #: What watches this thread for the regions in which it was given work.
    watches: Sequence[ThreadWatch] = ()


_THREAD = _ThreadState()


def note_autocast() -> None:
    """Note that this thread enters autocast by itself."""
    for watch in _THREAD.watches:
        watch.ran_with_autocast = True


def watch_function(function: Callable[..., Any], watches: Sequence[ThreadWatch]) -> Callable[..., Any]:
    """The function, watched in the thread that runs it."""

    def check_modules(module: torch.nn.Module, args: Any) -> None:
        if _THREAD.watches is watches and not torch.compiler.is_compiling():
            for watch in watches:
                watch.check_module(module, args)

    @functools.wraps(function)
    def watched_run(*args: Any, **kwargs: Any) -> Any:
        outer_watches, _THREAD.watches = _THREAD.watches, watches
        # The hook is called in every thread, and looks in this one alone.
        hook = torch.nn.modules.module.register_module_forward_pre_hook(check_modules)
        try:
            return function(*args, **kwargs)
        finally:
            hook.remove()
            _THREAD.watches = outer_watches

    return watched_run
