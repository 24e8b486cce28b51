"""Process groups of the emulated device: gloo in the place of nccl, which needs a GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch


def _host_backend(backend: Any) -> Any:
    """Return the backend that serves a request, such as "gloo" for "nccl" or "cpu:gloo,cuda:nccl"."""
    return "gloo" if isinstance(backend, str) and "nccl" in backend.lower() else backend


def _wrap(create: Callable[..., Any], backend_index: int) -> Callable[..., Any]:
    """Replace the backend of a function that creates a process group, and drop the device that nccl is bound to."""

    @functools.wraps(create)
    def create_on_host(*args: Any, **kwargs: Any) -> Any:
        if len(args) > backend_index:
            args = (*args[:backend_index], _host_backend(args[backend_index]), *args[backend_index + 1 :])
        if "backend" in kwargs:
            kwargs["backend"] = _host_backend(kwargs["backend"])
        kwargs.pop("device_id", None)
        return create(*args, **kwargs)

    return create_on_host


def replacements() -> Iterator[tuple[Any, str, Any]]:
    """Yield every attribute that is replaced in the region: (owner, name, replacement)."""
    if not torch.distributed.is_available():
        return
    distributed: Any = torch.distributed
    for name, backend_index in (("init_process_group", 0), ("new_group", 2)):
        replacement = _wrap(getattr(distributed, name), backend_index)
        for owner in (distributed, distributed.distributed_c10d):
            yield owner, name, replacement
    for owner in (distributed, distributed.distributed_c10d):
        yield owner, "is_nccl_available", lambda: True
