"""Threads that receive work while autocast is enabled. Threads do not inherit autocast."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ...protocol.sites import Site

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

#: Modules whose op autocast casts on every device.
_CAST = (torch.nn.Linear, torch.nn.modules.conv._ConvNd)


class ThreadWatch:
    """A thread that received work in a region.

    ``ran_with_autocast`` and ``ran_without_autocast`` are True if modules ran in the thread with or without autocast.
    ``depth`` is the number of open regions, and ``site`` the location where the work was submitted.
    """

    __slots__ = ("_hooks", "_is_over", "depth", "device", "ran_with_autocast", "ran_without_autocast", "site")

    def __init__(self, site: Site, depth: int, device: str) -> None:
        self.site = site
        self.depth = depth
        self.device = device
        self.ran_with_autocast = False
        self.ran_without_autocast = False
        self._hooks: list[RemovableHandle] = []
        self._is_over = False

    def start(self) -> RemovableHandle:
        """Check the modules that run in the current thread. Return the hook that does so."""

        def check_modules(module: torch.nn.Module, args: Any) -> None:
            if self in _THREAD.watches and not torch.compiler.is_compiling():
                self._check_module(module)

        # The hook runs in every thread, but only checks modules of this thread.
        hook = torch.nn.modules.module.register_module_forward_pre_hook(check_modules)
        self._hooks.append(hook)
        if self._is_over:
            hook.remove()
        return hook

    def stop(self) -> None:
        """Remove the hooks: the thread may outlive the region and the recording."""
        self._is_over = True
        for hook in self._hooks:
            hook.remove()

    def _check_module(self, module: torch.nn.Module) -> None:
        """Record that a module runs in the thread."""
        if (
            isinstance(module, _CAST)
            and module.weight.dtype == torch.float32
            and not torch.is_autocast_enabled(self.device)
        ):
            self.ran_without_autocast = True


class _ThreadState(threading.local):
    #: The watches of this thread, one for each recording.
    watches: Sequence[ThreadWatch] = ()


_THREAD = _ThreadState()


def note_autocast() -> None:
    """Record that this thread enters autocast by itself."""
    for watch in _THREAD.watches:
        watch.ran_with_autocast = True


def watch_function(function: Callable[..., Any], watches: Sequence[ThreadWatch]) -> Callable[..., Any]:
    """Wrap a function so that the watches are active in the thread that runs it."""

    @functools.wraps(function)
    def watched_run(*args: Any, **kwargs: Any) -> Any:
        outer_watches, _THREAD.watches = _THREAD.watches, watches
        hooks = [watch.start() for watch in watches]
        try:
            return function(*args, **kwargs)
        finally:
            for hook in hooks:
                hook.remove()
            _THREAD.watches = outer_watches

    return watched_run
