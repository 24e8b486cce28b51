"""Tensors without values: replacements for requested values, and optimizer steps on such tensors."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.optim import optimizer as optimizers
from torch.utils import _foreach_utils as foreach
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten


class StandIns(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that answers requests for values of fake tensors: no overflow occurred, and all checks passed.

    ``found_inf`` is 0. ``.all()`` and products of booleans (``torch.isfinite``) are True, other booleans False. Numbers
    are 1.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._zero_storages: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        self._true_storages: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

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
            self._zero_storages.add(args[1].untyped_storage())
        elif func is _aten.all.default or (func is _aten.mul.Tensor and result.dtype is torch.bool):
            self._true_storages.add(result.untyped_storage())
        return result

    def _stand_in(self, tensor: torch.Tensor) -> bool | int | float:
        storage = tensor.untyped_storage()
        if tensor.dtype is torch.bool:
            return storage in self._true_storages
        value = 0 if storage in self._zero_storages else 1
        return float(value) if tensor.is_floating_point() else value


_NEEDS_VALUES = (
    "{} needs the values of tensors, and the tensors of estimate_memory() have none: make shapes independent of values "
    "there (torch.where instead of indexing with a mask), or use measure_memory() on real tensors."
)


@contextmanager
def replace_attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextmanager
def foreach_by_default() -> Iterator[None]:
    """Make optimizers choose foreach as on CUDA, although the tensors have another class and device."""
    with ExitStack() as stack:
        stack.enter_context(
            replace_attribute(optimizers, "_get_foreach_kernels_supported_devices", lambda: ["cuda", "cpu"])
        )
        for module in (optimizers, foreach):
            # Older versions of torch have the list in the first module only.
            supported = getattr(module, "_foreach_supported_types", None)
            if supported is not None:
                stack.enter_context(replace_attribute(module, "_foreach_supported_types", [*supported, FakeTensor]))
        yield


@contextmanager
def without_values() -> Iterator[None]:
    """Create all tensors without values.

    Optimizers choose as on CUDA, and :class:`StandIns` replaces requested values.
    """
    with foreach_by_default(), FakeTensorMode(allow_non_fake_inputs=True), StandIns():
        yield
