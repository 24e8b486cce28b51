"""Ops whose tensors must be on one device: a batch that was left on the CPU raises as on a GPU.

Only tensors of known sides count, so an op with others runs. Zero-dimensional tensors may be on the CPU, as in torch.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.nn import functional

from .storage_sides import SIDES, without_overrides

_torch: Any = torch

_LAYERS = (
    *(getattr(_torch, f"conv{transposed}{n}d") for transposed in ("", "_transpose") for n in (1, 2, 3)),
    *(functional.linear, functional.bilinear, functional.embedding, functional.prelu),
    *(functional.batch_norm, functional.group_norm, functional.instance_norm, functional.layer_norm),
    *(functional.scaled_dot_product_attention, functional.multi_head_attention_forward),
    *(_torch.matmul, _torch.mm, _torch.bmm, _torch.addmm, _torch.baddbmm, _torch.einsum, _torch.cat, _torch.stack),
)
_LOSSES = (
    *(functional.cross_entropy, functional.nll_loss, functional.binary_cross_entropy, functional.kl_div),
    *(functional.binary_cross_entropy_with_logits, functional.mse_loss, functional.l1_loss, functional.huber_loss),
    functional.smooth_l1_loss,
)
_METHODS = "matmul mm bmm addmm baddbmm __matmul__ __rmatmul__".split()
#: Tensor methods, most of them also functions, with two operands.
_OPERATORS = (
    "add add_ sub sub_ mul mul_ div div_ __add__ __radd__ __iadd__ __sub__ __rsub__ __isub__ __mul__ __rmul__ __imul__ "
    "__truediv__ __rtruediv__ __itruediv__".split()
)
#: Recurrent layers take the lengths of a packed sequence, which are integers on the CPU.
_RECURRENT = frozenset(getattr(_torch, name) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"))
_ON_ONE_DEVICE: frozenset[Any] = frozenset(
    (
        *_LAYERS,
        *_LOSSES,
        *_RECURRENT,
        *(
            getattr(owner, name)
            for name in (*_METHODS, *_OPERATORS)
            for owner in (_torch, _torch.Tensor, torch._C.TensorBase)
            if hasattr(owner, name)
        ),
    )
)


class _ThreadState(threading.local):
    """True while ops of a thread run whose tensors have lost their sides."""

    is_off = False


_thread = _ThreadState()


@contextlib.contextmanager
def without_device_checks() -> Iterator[None]:
    """Open a region for recorded calls and fake tensors, whose moves between the devices are no moves any more."""
    was_off, _thread.is_off = _thread.is_off, True
    try:
        yield
    finally:
        _thread.is_off = was_off


def check_devices(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise torch's ``RuntimeError`` if an op takes tensors of both devices."""
    if function not in _ON_ONE_DEVICE or _thread.is_off:
        return
    on_cuda, on_cpu = False, None
    for tensor in _iter_tensors((*args, *kwargs.values())):
        side = SIDES.known_side(tensor)
        if side == "cuda":
            on_cuda = True
        elif side == "cpu":
            with without_overrides():
                if tensor.dim() and (tensor.is_floating_point() or function not in _RECURRENT):
                    on_cpu = tensor
    if on_cuda and on_cpu is not None:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! (a tensor "
            f"of shape {tuple(on_cpu.shape)} was not moved to the device of emulate_cuda(), when calling "
            f"{function.__name__})"
        )


def note_result(result: Any, args: tuple[Any, ...]) -> None:
    """Note the side of an op's results: CUDA if a tensor argument is known to be there, the CPU if all are there."""
    if _thread.is_off:
        return
    results = [each for each in result if isinstance(each, torch.Tensor)] if isinstance(result, tuple) else [result]
    if not results or not isinstance(results[0], torch.Tensor) or SIDES.known_side(results[0]) is not None:
        return
    side = None
    for tensor in _iter_tensors(args):
        known = SIDES.known_side(tensor)
        if known == "cuda":
            side = known
            break
        if known is None:
            return
        side = known
    if side is not None:
        for each in results:
            SIDES.set_side(each, side)


def _iter_tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            for each in value:
                if isinstance(each, torch.Tensor):
                    yield each
