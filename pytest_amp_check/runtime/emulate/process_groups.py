"""Process groups of the emulated device: gloo in the place of nccl, and a device for each rank."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch

if torch.distributed.is_available():
    import torch.distributed.utils

    _default_move_inputs: Any = torch.distributed.utils._recursive_to


def local_rank() -> int:
    """Return the index of the device that this process uses as one of several ranks, or 0.

    A launcher sets ``LOCAL_RANK``. The ranks of one machine that start themselves use the device of their rank.
    """
    launched = os.environ.get("LOCAL_RANK", "")
    if launched.isdigit():
        return int(launched)
    distributed = torch.distributed
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0


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
        group = create(*args, **kwargs)
        _keep_until_exit(torch.distributed.group.WORLD if group is None else group)
        return group

    return create_on_host


def _keep_until_exit(group: Any) -> None:
    """Keep a process group until the process ends, although the program drops it.

    The destructor of a gloo group waits for the group's threads and holds the GIL. A thread that still frees a
    collective waits for the GIL, because each collective keeps the modes under which it was called, and modes are
    objects of Python. Both wait for ever.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def _move_inputs(inputs: Any, device: Any, use_side_stream: bool) -> Any:
    """Move the inputs of a replica without the stream for copies, which a CPU tensor cannot be recorded on."""
    return _default_move_inputs(inputs, device, False)


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
    yield distributed.utils, "_recursive_to", _move_inputs
