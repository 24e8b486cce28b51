"""Tests of tensors for non-finite values, which read as few numbers as possible."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ..deferred_values import read_item
from ..graph import dense_values

#: Largest number of elements of a gradient for a check of all elements.
LARGE = 1 << 14


def is_on_cpu(tensor: torch.Tensor) -> bool:
    """Return True if a tensor can be read without waiting for a device."""
    return tensor.layout is torch.strided and tensor.untyped_storage().device.type == "cpu"


def is_on_gpu(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.untyped_storage().device.type == "cuda"


def is_finite(tensor: torch.Tensor) -> bool:
    return bool(torch.isfinite(dense_values(tensor.detach())).all())


def has_nonfinite(gradients: Sequence[torch.Tensor | None]) -> bool:
    """Return True if gradients are non-finite, according to the first row and column of large gradients.

    A non-finite value in a layer's output makes a row of its weight's gradient non-finite, and a non-finite value in a
    layer's input makes a column non-finite: 0 times NaN is NaN.
    """
    return any_nonfinite(sample_gradients(gradients))


def sample_gradients(gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
    """Return small gradients as they are, and the first row and column of large ones."""
    sampled: list[torch.Tensor] = []
    for gradient in gradients:
        if gradient is None:
            continue
        if gradient.dim() < 2 or gradient.numel() <= LARGE or gradient.layout is not torch.strided:
            sampled.append(gradient)
        else:
            sampled += [gradient[0], gradient.flatten(1)[:, 0] if gradient.is_contiguous() else gradient[..., 0]]
    return sampled


def any_nonfinite(tensors: Sequence[torch.Tensor | None]) -> bool:
    """Return True if any tensor holds a non-finite value."""
    floating = [tensor for tensor in tensors if tensor is not None and tensor.is_floating_point()]
    if not floating:
        return False
    with _without_dispatch_modes():
        if all(tensor.layout is torch.strided for tensor in floating):
            norms = torch._foreach_norm([tensor.detach() if tensor.requires_grad else tensor for tensor in floating])
            if math.isfinite(float(torch.stack([norm.float() for norm in norms]).sum())):
                return False
        # The norm may overflow although all numbers are finite, so the elements are checked, too.
        return not all(is_finite(tensor) for tensor in floating)


def sum_roots(roots: Sequence[torch.Tensor]) -> float:
    """Return the sum of a backward pass's roots. The sum is finite only if all roots are."""
    if len(roots) == 1 and type(roots[0]) is torch.Tensor and roots[0].numel() == 1:
        # The usual loss. One op instead of ten, each of which finds cold caches in a training step.
        return read_item(roots[0])
    with _without_dispatch_modes():
        numbers: list[float] = torch.stack([root.detach().sum(dtype=torch.float64) for root in roots]).tolist()
    return sum(numbers)


def _without_dispatch_modes() -> AbstractContextManager[None]:
    """Return a region whose ops no dispatch mode of the program sees."""
    return _disable_current_modes() if torch._C._len_torch_dispatch_stack() else nullcontext()
