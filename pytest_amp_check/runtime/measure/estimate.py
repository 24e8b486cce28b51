"""Memory estimates for a GPU with fake tensors: without its memory, without a GPU, and in little time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    FakeTensorMode,
)
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ...protocol.byte_sizes import parse_size
from ..emulate.cuda import emulate_cuda
from ..emulate.one_device import without_device_checks
from ..emulate.redirects import run_backward_in, runs_backward
from .memory import Memory
from .stand_ins import StandIns, foreach_by_default, replace_attribute

#: Bytes of cuBLAS's workspace for each thread that multiplies matrices (:4096:2:16:8, see pytorch#95668); 32 MiB on
#: Hopper.
CUBLAS_WORKSPACE = 8_519_680

_aten = torch.ops.aten


class _CudaKernels(TorchFunctionMode):
    """A function mode with the memory of CUDA's dropout: a mask of one byte per element, but none inside attention."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if runs_backward(func):
            return run_backward_in(self, func, args, kwargs)
        if func is functional.dropout:
            return self._dropout(*args, **kwargs)
        if func is functional.scaled_dot_product_attention:
            return _attend_without_dropout(*args, **kwargs)
        if func is functional.multi_head_attention_forward:
            # It calls both by their names, and inside a function that a mode has seen, the mode sees no more.
            with (
                replace_attribute(functional, "dropout", self._dropout),
                replace_attribute(functional, "scaled_dot_product_attention", _attend_without_dropout),
            ):
                return func(*args, **kwargs)
        return func(*args, **kwargs)

    @staticmethod
    def _dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        if not training or p == 0:
            return input
        dropped = torch.native_dropout(input, p, train=True)[0]
        return input.copy_(dropped) if inplace else dropped


_attend: Any = functional.scaled_dot_product_attention


def _attend_without_dropout(*args: Any, **kwargs: Any) -> Any:
    """Compute attention without dropout. On the CPU, dropout disables the kernel that avoids storing all scores."""
    if len(args) > 4:
        args = (*args[:4], 0.0, *args[5:])
    elif "dropout_p" in kwargs:
        kwargs = {**kwargs, "dropout_p": 0.0}
    return _attend(*args, **kwargs)


def _without_move(move: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``to`` or ``cuda`` so that it moves nothing.

    All tensors stand for tensors of the device, so a move must not count twice.
    """

    @functools.wraps(move)
    def stay_in_place(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = move(self, *args, **kwargs)
        same = result.dtype is self.dtype and result.stride() == self.stride() and not kwargs.get("copy")
        return self if same else result

    return stay_in_place


def _apply(self: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
    """Replace ``nn.Module._apply``, which ``half()`` and ``to()`` use. torch's own version cannot swap fake tensors."""
    if recurse:
        for child in self.children():
            child._apply(fn)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for parameter in self._parameters.values():
            if parameter is not None:
                parameter.data = fn(parameter)
                if parameter.grad is not None:
                    parameter.grad.data = fn(parameter.grad)
    self._buffers.update({name: fn(buffer) for name, buffer in self._buffers.items() if buffer is not None})
    return self


@contextmanager
def estimate_memory(*, cuda: bool = True, workspace: str | int = CUBLAS_WORKSPACE) -> Iterator[Memory]:
    """Estimate the memory of training with fake tensors, also for models that are too large for this machine.

    Create everything inside the block, as on the target machine: the model, the optimizer, the scaler and the batches.
    Run two steps to get the peak, because the optimizer state exists from the first step on::

        with estimate_memory() as memory:
            model = GPT().cuda()
            optimizer = torch.optim.AdamW(model.parameters())
            for _ in range(2):
                train_step(model, optimizer, torch.randint(50000, (8, 1024), device="cuda"))
        assert_memory(memory, peak="80 GB")

    ``cuda``: estimate for CUDA, with its autocast rules and an enabled scaler (see ``emulate_cuda``), its allocator's
    blocks, its default of foreach optimizers, and ``workspace`` bytes for cuBLAS in each of two threads. Otherwise
    estimate for the CPU. No value is computed: ``.item()`` returns 1, and 0 for the overflow check. Code whose shapes
    depend on values raises ValueError.
    """
    size = parse_size(workspace) if cuda else 0
    with ExitStack() as stack:
        if cuda:
            stack.enter_context(emulate_cuda())
            stack.enter_context(without_device_checks())
            # torch would take the emulated device as the device of constants. Fake tensors report "cpu" without the
            # patch.
            stack.enter_context(replace_attribute(torch.Tensor, "device", torch._C.TensorBase.device))
            for name in ("to", "cuda"):
                stack.enter_context(replace_attribute(torch.Tensor, name, _without_move(getattr(torch.Tensor, name))))
            stack.enter_context(foreach_by_default())
        stack.enter_context(replace_attribute(nn.Module, "_apply", _apply))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(StandIns())
        if cuda:
            stack.enter_context(_CudaKernels())
        memory = Memory(device="cpu", as_cuda=cuda, fake=True, workspace=size)
        memory.start()
        stack.callback(memory.stop)
        yield memory
