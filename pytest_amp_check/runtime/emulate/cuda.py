"""A region in which CUDA training code runs on the CPU, with CUDA's autocast dtypes and an enabled gradient scaler."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils._device

from ..warning_locations import acquire_locations, release_locations
from . import cast_policy, float32_kernels, redirects
from .storage_sides import SIDES

_MISSING = object()


def _builtin_table() -> dict[int, str]:
    """Return the table of TorchScript: the ``id`` of a Python function to the operator."""
    table: Any = torch.jit._builtins
    return table._get_builtin_table()  # type: ignore[no-any-return]


def _fill_tables_of_torch() -> None:
    """Fill the tables of torch that are built on first use and would keep replaced functions."""
    # Every optimizer imports torch._dynamo.
    from torch._dynamo import trace_rules
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

    trace_rules.get_torch_obj_rule_map()
    trace_rules.get_tensor_method()
    TorchInGraphFunctionVariable._get_handlers()
    torch.utils._device._device_constructors()


class _EmulationState:
    """Attribute replacements of this process during open regions."""

    def __init__(self) -> None:
        self.depth = 0
        self._lock = threading.RLock()
        self._libraries: list[Any] = []
        #: (owner, name, original value), restored in reverse order.
        self.replaced_attributes: list[tuple[Any, str, Any]] = []
        #: In a forked process, (owner, name, value) of these attributes at the fork: the replacements, and the patches
        #: that a recording has put around them.
        self._values_at_fork: list[tuple[Any, str, Any]] = []

    def enter(self) -> None:
        with self._lock:
            if self.depth == 0:
                try:
                    self._replace()
                except BaseException:
                    self._restore()
                    raise
            self.depth += 1

    def leave(self) -> None:
        with self._lock:
            self.depth -= 1
            if self.depth == 0:
                redirects.unmirror_autocast()
                self._restore()

    def leave_in_child(self) -> None:
        """Undo the emulation in a forked process, such as a DataLoader worker, because that process is on the host."""
        self.depth = 0
        self._values_at_fork = [(owner, name, vars(owner)[name]) for owner, name, _ in self.replaced_attributes]
        self._restore_attributes()

    def _replace(self) -> None:
        acquire_locations()
        _fill_tables_of_torch()
        # A forked process keeps the kernels of its parent.
        if not self._libraries:
            self._libraries.append(cast_policy.install_kernels())
            self._libraries.append(float32_kernels.install_kernels())
        builtins = _builtin_table()
        for owner, name, value in self._values_at_fork or list(redirects.attribute_replacements()):
            original = vars(owner).get(name, _MISSING)
            self.replaced_attributes.append((owner, name, original))
            setattr(owner, name, value)
            if id(original) in builtins:
                builtins[id(value)] = builtins[id(original)]
        self._values_at_fork = []
        if torch.is_autocast_enabled("cuda"):
            redirects.mirror_autocast()

    def _restore(self) -> None:
        release_locations()
        self._restore_attributes()
        while self._libraries:
            self._libraries.pop()._destroy()
        cast_policy.forget_casts()
        SIDES.clear()

    def _restore_attributes(self) -> None:
        builtins = _builtin_table()
        while self.replaced_attributes:
            owner, name, original = self.replaced_attributes.pop()
            if id(original) in builtins:
                builtins.pop(id(vars(owner)[name]), None)
            if original is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


class _ThreadState(threading.local):
    """The number of open regions of a thread."""

    depth = 0


_machine = _EmulationState()
_thread = _ThreadState()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_machine.leave_in_child)


def is_emulating() -> bool:
    """Return True if this process is in an ``emulate_cuda()`` region.

    There ``torch.cuda.is_available()`` proves nothing.
    """
    return _machine.depth > 0


@contextlib.contextmanager
def emulate_cuda() -> Iterator[None]:
    """Open a region in which CUDA code runs unchanged on the CPU, with the dtypes of autocast on CUDA.

    ``torch.autocast("cuda")`` casts by CUDA's op lists (float16 unless a dtype is given). ``GradScaler("cuda")`` is
    enabled. ``torch.cuda.is_available()`` is true for one device. Tensors moved to or created on "cuda" are on the CPU,
    with real values and a real backward. A real CUDA device of the machine is not used.

    A tensor that the region has seen created on the CPU, or moved there, reports the CPU. Every other tensor reports
    ``device="cuda:0"`` and ``is_cuda``. An op on a batch that was left on the CPU and weights on the device raises, as
    on CUDA. Created before the region, or in a compiled function, the batch raises nothing. As on CUDA, a move to
    "cuda" or "cpu" creates a copy unless the tensor is known to be there. Low-precision products, convolutions,
    attention and recurrent layers are computed in float32 and rounded once. ``torch.autocast("cpu")`` keeps the CPU's
    op lists for tensors on the CPU while autocast is off for "cuda". LSTM, GRU and RNN return float16, as cuDNN does
    even in bfloat16 regions. Random numbers of the device come from the CPU's generator, and the process groups of nccl
    from gloo.

    Not emulated: several devices, CUDA graphs, memory statistics (all zero), and a ``torch.Generator`` imported by
    name. Another op without a low-precision CPU kernel raises. Inside compiled functions, and for fake tensors, a
    tensor reports the CPU. Processes started in the region are on the host, as the workers of a DataLoader are with
    CUDA. ``amp-check run`` opens the region again in the processes that it records.

    Regions may be nested and entered by several threads. Leaving the last region restores everything.
    """
    default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", _MISSING)
    with contextlib.ExitStack() as leaving:
        _machine.enter()
        leaving.callback(_restore_default_device, default)
        leaving.callback(_machine.leave)
        if getattr(getattr(default, "device", None), "type", None) == "cuda":
            torch.set_default_device("cuda")
        if _thread.depth == 0:
            leaving.enter_context(redirects.RedirectMode())
        _thread.depth += 1
        try:
            yield
        finally:
            _thread.depth -= 1


def _restore_default_device(original: Any) -> None:
    # A default device that was set in the region would be the CPU after it, even if named "cuda".
    context = torch._GLOBAL_DEVICE_CONTEXT
    if getattr(context, "device_context", _MISSING) is not original:
        torch.set_default_device(getattr(original, "device", None))
        if original is _MISSING:
            del context.device_context
