"""The side, CUDA or CPU, on which a tensor of the emulation would be."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing import reductions

_weak: Any = reductions.StorageWeakRef
#: A region in which no function mode of the program or of a recording sees what is asked of a tensor.
without_overrides: Any = torch._C.DisableTorchFunction


class StorageSides:
    """The known side, "cuda" or "cpu", of tensors, by storage.

    On CUDA a move creates a new tensor, but a move to the current device does not. A write to one of two tensors must
    be visible, or not visible, in the other as on CUDA.
    """

    def __init__(self) -> None:
        #: True if the default tensor type of the program is one of the emulated device.
        self.is_default_cuda = False
        # A weak reference prevents the address of a storage from being reused.
        self._side_by_storage: dict[int, tuple[Any, str]] = {}
        self._purge_size = 1024
        self._any_on_cuda = False

    def set_side(self, tensor: torch.Tensor, side: str) -> None:
        self._any_on_cuda = self._any_on_cuda or side == "cuda"
        # Sparse tensors have no storage.
        with contextlib.suppress(NotImplementedError, RuntimeError), without_overrides():
            storage = tensor.untyped_storage()
            if len(self._side_by_storage) >= self._purge_size:
                self._side_by_storage = {
                    key: entry for key, entry in self._side_by_storage.items() if not entry[0].expired()
                }
                self._purge_size = max(1024, 2 * len(self._side_by_storage))
            self._side_by_storage[storage._cdata] = (_weak(storage), side)

    def is_on(self, tensor: torch.Tensor, side: str) -> bool:
        """Return True if a tensor is on this side. The result of an op on other tensors is on the emulated device."""
        known = self.known_side(tensor)
        if known is not None:
            return known == side
        return side == "cuda" and tensor.grad_fn is not None

    def runs_on_cuda(self, operands: Iterable[object]) -> bool:
        """Return True if an op with these operands runs on the emulated device, as far as that is known.

        Integers are passed over, because a program may create them on the device that a CPU tensor reports here. Of
        results of ops the device is assumed to be CUDA as soon as a tensor has been moved there, and of other tensors
        without a known side the CPU.
        """
        on_cpu = False
        with without_overrides():
            for each in operands:
                if not isinstance(each, torch.Tensor) or not each.is_floating_point():
                    continue
                known = self.known_side(each)
                if known == "cuda":
                    return True
                on_cpu = on_cpu or known == "cpu" or each.is_leaf
        return self._any_on_cuda and not on_cpu

    def may_run_on_cuda(self, operands: Iterable[torch.Tensor]) -> bool:
        """Return True unless nothing was moved to the emulated device, or an operand is known to be on the CPU."""
        return self._any_on_cuda and all(self.known_side(each) != "cpu" for each in operands)

    def known_side(self, tensor: torch.Tensor) -> str | None:
        """Return "cuda" or "cpu", or None for a tensor of which neither is known."""
        try:
            with without_overrides():
                entry = self._side_by_storage.get(tensor.untyped_storage()._cdata)
        except (NotImplementedError, RuntimeError):
            return None
        return None if entry is None else entry[1]

    def copy_if_moved(self, source: torch.Tensor, result: torch.Tensor, side: str) -> torch.Tensor:
        """Return ``result``, or a copy of it if a move would create a new tensor."""
        if result is source:
            # Fake tensors have no values to share, and modules cannot replace their fake tensors by copies.
            if isinstance(source, FakeTensor) or self.is_on(source, side):
                return source
            result = source.clone()
        self.set_side(result, side)
        return result

    def clear(self) -> None:
        self._side_by_storage.clear()
        self._any_on_cuda = self.is_default_cuda = False


SIDES = StorageSides()
