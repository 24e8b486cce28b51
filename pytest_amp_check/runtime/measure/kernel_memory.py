"""Memory that CUDA's kernels allocate beside the results of their op, and free or keep.

The sizes were measured op by op on an H100 with torch 2.11 and cuDNN 9, in float32 (TF32 allowed) and float16. They are
what a modern GPU with tensor cores needs; other GPUs need at most this, or little more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

_aten = torch.ops.aten

#: Argument of a loss: no reduction.
_NO_REDUCTION = 0
#: Losses that compute a tensor of all losses in the storage of their result, which keeps its size when it is reduced.
_KEPT_LOSSES = {
    _aten.mse_loss.default,
    _aten.smooth_l1_loss.default,
    _aten.soft_margin_loss.default,
    _aten.binary_cross_entropy.default,
}
#: Losses that compute a tensor of all losses, reduce it into another tensor, and free it.
_FREED_LOSSES = {_aten.mse_loss.default, _aten.smooth_l1_loss.default, _aten.huber_loss.default}
#: Backward passes of attention: bytes of the accumulated gradients, in sizes of the query.
_ATTENTION_BACKWARD = {
    "_scaled_dot_product_flash_attention_backward": 4,
    "_scaled_dot_product_flash_attention_for_cpu_backward": 4,
    "_scaled_dot_product_efficient_attention_backward": 3,
    "_scaled_dot_product_cudnn_attention_backward": 2,
}
#: Channels are a multiple of this number where a convolution of size 1 is a plain matrix product.
_ALIGNED_CHANNELS = 8
#: Multiprocessors of an H100, and threads that each of them holds.
_MULTIPROCESSORS, _THREADS = 132, 2048
#: A reduction over the first dimensions (ATen/native/cuda/Reduce.cuh): threads and columns of a block of threads, the
#: fewest rows of one, and the bytes of a partial sum.
_BLOCK_THREADS, _BLOCK_COLUMNS, _BLOCK_ROWS, _PARTIAL_BYTES = 128, 128, 64, 4


def retained_bytes(func: Any, args: Sequence[Any]) -> int:
    """Return the bytes of the storage of the op's result, if they are more than the result needs; else 0."""
    return _losses_bytes(args) if func in _KEPT_LOSSES and _reduction_of(func, args) != _NO_REDUCTION else 0


def transient_bytes(func: Any, args: Sequence[Any], result: Any) -> int:
    """Return the bytes that the kernels of an op allocate beside its result and free before the op ends."""
    count = _TRANSIENT.get(func)
    return 0 if count is None else count(func, args, result)


def _tensor_bytes(value: Any) -> int:
    return int(value.numel()) * int(value.element_size()) if isinstance(value, torch.Tensor) else 0


def _losses_bytes(args: Sequence[Any]) -> int:
    """Return the bytes of one loss per element of input and target, which are broadcast."""
    shape = torch.broadcast_shapes(args[0].shape, args[1].shape)  # type: ignore[no-untyped-call]
    size: int = math.prod(shape) * torch.result_type(args[0], args[1]).itemsize
    return size


def _reduction_of(func: Any, args: Sequence[Any]) -> Any:
    """Return the argument ``reduction`` of a loss, which torch passes to an op by position or not at all."""
    position = next(index for index, each in enumerate(func._schema.arguments) if each.name == "reduction")
    return args[position] if len(args) > position else None


def _of_loss(func: Any, args: Sequence[Any], result: Any) -> int:
    return _losses_bytes(args) if _reduction_of(func, args) != _NO_REDUCTION else 0


def _of_logits_loss(func: Any, args: Sequence[Any], result: Any) -> int:
    return _losses_bytes(args) * (1 if _reduction_of(func, args) == _NO_REDUCTION else 2)


def _of_result_size(func: Any, args: Sequence[Any], result: Any) -> int:
    return _tensor_bytes(result)


def _of_input_size(func: Any, args: Sequence[Any], result: Any) -> int:
    return _tensor_bytes(args[0])


def _of_attention_backward(func: Any, args: Sequence[Any], result: Any) -> int:
    return _ATTENTION_BACKWARD[func.overloadpacket.__name__] * _tensor_bytes(args[1])


def _of_column_sum(func: Any, args: Sequence[Any], result: Any) -> int:
    """Return the bytes of partial sums of a reduction over the first dimensions, as for the gradient of a bias."""
    values, dims = args[0], args[1]
    if not dims or not values.is_floating_point():
        return 0
    reduced = {dim % values.dim() for dim in dims} if values.dim() else set()
    if values.dim() - 1 in reduced or reduced != set(range(len(reduced))):
        return 0
    columns = math.prod(values.shape[len(reduced) :])
    rows = values.numel() // max(1, columns)
    blocks = max(1, -(-columns // _BLOCK_COLUMNS))
    most = -(-_MULTIPROCESSORS * (_THREADS // _BLOCK_THREADS) // blocks)
    splits = min(most, -(-rows // _BLOCK_ROWS))
    return _PARTIAL_BYTES * columns * _BLOCK_THREADS * splits if splits > 1 else 0


def _of_convolution(func: Any, args: Sequence[Any], result: Any) -> int:
    values, weight, stride, groups = args[0], args[1], args[3], args[8]
    if not _is_converted(values, weight, stride, groups):
        return 0
    return _tensor_bytes(values) + _tensor_bytes(weight) + _tensor_bytes(result)


def _of_convolution_backward(func: Any, args: Sequence[Any], result: Any) -> int:
    gradient, values, weight, stride, groups = args[0], args[1], args[2], args[4], args[9]
    if not _is_converted(values, weight, stride, groups):
        return 0
    return _tensor_bytes(gradient) + _tensor_bytes(values) + _tensor_bytes(weight)


def _is_converted(values: torch.Tensor, weight: torch.Tensor, stride: Sequence[int], groups: int) -> bool:
    """Return True if cuDNN converts the tensors of a convolution to channels-last, the layout of tensor cores."""
    if values.dtype not in (torch.float32, torch.float16, torch.bfloat16) or not values.is_contiguous():
        return False
    is_depthwise = groups > 1 and groups == values.shape[1]
    is_product = (
        all(size == 1 for size in (*weight.shape[2:], *stride))
        and weight.shape[0] % _ALIGNED_CHANNELS == 0
        and weight.shape[1] % _ALIGNED_CHANNELS == 0
    )
    return not is_depthwise and not is_product


_TRANSIENT: dict[Any, Callable[[Any, Sequence[Any], Any], int]] = {
    **dict.fromkeys(_FREED_LOSSES, _of_loss),
    _aten.binary_cross_entropy_with_logits.default: _of_logits_loss,
    _aten._softmax_backward_data.default: _of_result_size,
    _aten.logsumexp.default: _of_input_size,
    _aten.sum.dim_IntList: _of_column_sum,
    _aten.mean.dim: _of_column_sum,
    _aten.convolution.default: _of_convolution,
    _aten.convolution_backward.default: _of_convolution_backward,
    **{getattr(_aten, name).default: _of_attention_backward for name in _ATTENTION_BACKWARD if hasattr(_aten, name)},
}
