"""No-op casts to float32. With low-precision weights these casts would create copies.

No op shows such a cast, so the Python functions are patched while memory is measured, for the measuring thread only.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

#: (owner, function, True if the function always casts to float32) of every function that casts on request.
_CASTS: tuple[tuple[Any, str, bool], ...] = (
    (torch.Tensor, "float", True),
    (torch.Tensor, "to", False),
    (torch.Tensor, "type", False),
    (functional, "softmax", False),
    (functional, "log_softmax", False),
)
_LOCK = threading.Lock()
#: Thread to its callbacks.
_watching: dict[int, list[Callable[[torch.Tensor], None]]] = {}
#: (owner, function name, original function, True if the owner defines the function itself and does not inherit it).
_before: list[tuple[Any, str, Any, bool]] = []


def watch_casts(callback: Callable[[torch.Tensor], None]) -> Callable[[], None]:
    """Call ``callback`` with the tensor of each no-op cast in this thread. Return a function that ends the watch."""
    thread = threading.get_ident()
    with _LOCK:
        if not _watching:
            _install_patches()
        _watching.setdefault(thread, []).append(callback)

    def stop_watching() -> None:
        with _LOCK:
            watchers = _watching.get(thread, [])
            if callback in watchers:
                watchers.remove(callback)
                if not watchers:
                    del _watching[thread]
                if not _watching:
                    _remove_patches()

    return stop_watching


def _install_patches() -> None:
    for owner, name, always in _CASTS:
        original = getattr(owner, name)
        _before.append((owner, name, original, name in vars(owner)))
        setattr(owner, name, _wrap_cast(original, always=always))


def _remove_patches() -> None:
    for owner, name, original, is_own in reversed(_before):
        if is_own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)
    _before.clear()


def _wrap_cast(original: Callable[..., Any], *, always: bool) -> Callable[..., Any]:
    @functools.wraps(original)
    def watched_cast(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        watchers = _watching.get(threading.get_ident())
        if (
            watchers
            and isinstance(tensor, torch.Tensor)
            and tensor.dtype is torch.float32
            and (always or any(each is torch.float32 for each in (*args, *kwargs.values())))
        ):
            for callback in watchers:
                callback(tensor)
        return original(tensor, *args, **kwargs)

    return watched_cast
