"""What a model would need on a GPU, told from tensors without values: no memory, no GPU, no time."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.nn import functional
from torch.optim import optimizer as optimizers
from torch.overrides import TorchFunctionMode
from torch.utils import _foreach_utils as foreach
from torch.utils._python_dispatch import TorchDispatchMode

from ...protocol.byte_sizes import parse_size
from ..emulate.cuda import emulate_cuda
from ..emulate.redirects import PASSES, backward_in
from .memory import Memory

#: What cuBLAS keeps for each thread that multiplies matrices (:4096:2:16:8, see pytorch#95668); 32 MiB on Hopper.
CUBLAS_WORKSPACE = 8_519_680

_aten = torch.ops.aten


class _StandIns(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Answers where code asks a tensor without values for one: no overflow was found, and what was tested is fine.

    ``found_inf`` is 0, ``.all()`` and products of truths (``torch.isfinite``) are True, other truths False, numbers 1.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._zero: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        self._true: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            result = func(*args, **(kwargs or {}))
        except DataDependentOutputException:
            if func is _aten._local_scalar_dense.default:
                return self._stand_in(args[0])
            raise ValueError(_NEEDS_VALUES.format(func)) from None
        except DynamicOutputShapeException:
            raise ValueError(_NEEDS_VALUES.format(func)) from None
        if func is _aten._amp_foreach_non_finite_check_and_unscale_.default:
            self._zero.add(args[1].untyped_storage())
        elif func is _aten.all.default or (func is _aten.mul.Tensor and result.dtype is torch.bool):
            self._true.add(result.untyped_storage())
        return result

    def _stand_in(self, tensor: torch.Tensor) -> bool | int | float:
        storage = tensor.untyped_storage()
        if tensor.dtype is torch.bool:
            return storage in self._true
        value = 0 if storage in self._zero else 1
        return float(value) if tensor.is_floating_point() else value


_NEEDS_VALUES = (
    "{} needs the values of tensors, and the tensors of estimate_memory() have none: make shapes independent of values "
    "there (torch.where instead of indexing with a mask), or use measure_memory() on real tensors."
)


class _CudaKernels(TorchFunctionMode):
    """Dropout as CUDA does it: a mask of one byte, and inside attention none at all."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in PASSES:
            return backward_in(self, func, args, kwargs)
        if func is functional.dropout:
            return self._dropout(*args, **kwargs)
        if func is functional.scaled_dot_product_attention:
            # On the CPU dropout forbids the kernel that does not hold all scores at once.
            if len(args) > 4:
                args = (*args[:4], 0.0, *args[5:])
            elif "dropout_p" in kwargs:
                kwargs = {**kwargs, "dropout_p": 0.0}
        return func(*args, **kwargs)

    @staticmethod
    def _dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        if not training or p == 0:
            return input
        dropped = torch.native_dropout(input, p, train=True)[0]
        return input.copy_(dropped) if inplace else dropped


def _staying(move: Callable[..., Any]) -> Callable[..., Any]:
    """``to`` or ``cuda`` that moves nothing: all that is made here is meant to be on the device, and counts once."""

    @functools.wraps(move)
    def stay(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = move(self, *args, **kwargs)
        same = result.dtype is self.dtype and result.stride() == self.stride() and not kwargs.get("copy")
        return self if same else result

    return stay


def _apply(self: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
    """``nn.Module._apply``, with which ``half()`` and ``to()`` work: torch's own cannot swap fake tensors."""
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
def _attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def _foreach_by_default() -> Iterator[None]:
    """Optimizers choose as on CUDA, though the tensors here are of another class and on another device."""
    with ExitStack() as stack:
        stack.enter_context(_attribute(optimizers, "_get_foreach_kernels_supported_devices", lambda: ["cuda", "cpu"]))
        for module in (optimizers, foreach):
            # Older versions of torch have a list in the first alone.
            supported = getattr(module, "_foreach_supported_types", None)
            if supported is not None:
                stack.enter_context(_attribute(module, "_foreach_supported_types", [*supported, FakeTensor]))
        yield


@contextmanager
def estimate_memory(*, cuda: bool = True, workspace: str | int = CUBLAS_WORKSPACE) -> Iterator[Memory]:
    """Tell what training would need from tensors without values, also for models that this machine could not hold.

    Everything is made inside the block, as on the machine that is meant: the model, the optimizer, the scaler, batches;
    then two steps tell the peak (optimizer state exists from the first step on)::

        with estimate_memory() as memory:
            model = GPT().cuda()
            optimizer = torch.optim.AdamW(model.parameters())
            for _ in range(2):
                train_step(model, optimizer, torch.randint(50000, (8, 1024), device="cuda"))
        assert_memory(memory, peak="80 GB")

    ``cuda``: as on CUDA, with its autocast rules and a live scaler (see ``emulate_cuda``), its allocator's blocks, its
    choice of foreach optimizers, and ``workspace`` bytes for cuBLAS in each of two threads. Otherwise as on the CPU. No
    value is computed: ``.item()`` gives 1, or no for "is there an overflow". Code whose shapes depend on values raises
    ValueError.
    """
    size = parse_size(workspace) if cuda else 0
    with ExitStack() as stack:
        if cuda:
            stack.enter_context(emulate_cuda())
            # The emulated device would be taken for that of constants, and fake tensors say "cpu" by themselves.
            stack.enter_context(_attribute(torch.Tensor, "device", torch._C.TensorBase.device))
            for name in ("to", "cuda"):
                stack.enter_context(_attribute(torch.Tensor, name, _staying(getattr(torch.Tensor, name))))
            stack.enter_context(_foreach_by_default())
        stack.enter_context(_attribute(nn.Module, "_apply", _apply))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(_StandIns())
        if cuda:
            stack.enter_context(_CudaKernels())
        memory = Memory(device="cpu", as_cuda=cuda, fake=True, workspace=size)
        memory.start()
        stack.callback(memory.stop)
        yield memory
