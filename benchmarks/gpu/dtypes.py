"""Result dtypes of autocast on CUDA for each op, compared with the emulation: forward and backward."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from gpu.places import on
from gpu.results import Row

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "support"))

from autocasts import COMPOSED, MORE, Entry, cuda_entries

HALVES = (torch.float16, torch.bfloat16)
#: Ops that only cuDNN has, so that no other device can call them.
OF_CUDNN = {"cudnn_convolution", "cudnn_convolution_transpose"}
#: Modules, their input shape, and their output dtype, with None for the low dtype. cuDNN's recurrent kernels run in
#: float16 in bfloat16 regions, too (aten/src/ATen/cudnn/AutocastRNN.cpp).
MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], torch.dtype | None]] = {
    "LSTM": (lambda: nn.LSTM(4, 8), (3, 2, 4), torch.float16),
    "GRU": (lambda: nn.GRU(4, 8), (3, 2, 4), torch.float16),
    "RNN": (lambda: nn.RNN(4, 8), (3, 2, 4), torch.float16),
    "bidirectional LSTM": (lambda: nn.LSTM(4, 8, bidirectional=True), (3, 2, 4), torch.float16),
    "LSTMCell": (lambda: nn.LSTMCell(4, 8), (2, 4), None),
    "GRUCell": (lambda: nn.GRUCell(4, 8), (2, 4), None),
    "TransformerEncoderLayer": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True),
        (2, 3, 8),
        torch.float32,
    ),
    "BatchNorm2d": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)), (2, 2, 8, 8), None),
    "GroupNorm": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4)), (2, 2, 8, 8), torch.float32),
    "InstanceNorm2d": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4)), (2, 2, 8, 8), None),
    "LayerNorm": (lambda: nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8)), (2, 4), torch.float32),
    "Conv3d": (lambda: nn.Conv3d(2, 4, 3), (1, 2, 4, 4, 4), None),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(2, 4, 3), (1, 2, 4, 4), None),
    "Upsample": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.Upsample(scale_factor=2)), (1, 2, 6, 6), torch.float32),
    "PReLU": (lambda: nn.Sequential(nn.Linear(4, 8), nn.PReLU()), (2, 4), None),
    "Softmax": (lambda: nn.Sequential(nn.Linear(4, 8), nn.Softmax(1)), (2, 4), torch.float32),
}

Made = Callable[[], Any]
#: Names of the dtypes, or of the raised exception.
Dtypes = list[str]


def dtypes_of(value: Any) -> Dtypes:
    if isinstance(value, Tensor):
        return [_name(value.dtype)]
    return [name for each in value for name in dtypes_of(each)] if isinstance(value, (tuple, list)) else []


def asking(value: Any) -> Any:
    """Return a copy of arguments whose floating-point tensors require gradients."""
    if isinstance(value, Tensor):
        return value.detach().clone().requires_grad_() if value.is_floating_point() else value
    return type(value)(asking(each) for each in value) if isinstance(value, (tuple, list)) else value


def leaves(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value] if value.requires_grad else []
    return [leaf for each in value for leaf in leaves(each)] if isinstance(value, (tuple, list)) else []


def forward(call: Made) -> Dtypes:
    try:
        return dtypes_of(call())
    except Exception as error:  # noqa: BLE001 - what is raised is a result
        return [type(error).__name__]


def backward(call: Made, inputs: list[Tensor]) -> Dtypes:
    """Return the gradient dtypes of inputs after a backward outside of autocast; empty if no output has gradients."""
    try:
        outputs = [each for each in _tensors(call()) if each.requires_grad]
        if not outputs:
            return []
        torch.autograd.backward([each.float().sum() for each in outputs])
    except Exception as error:  # noqa: BLE001 - what is raised is a result
        return [type(error).__name__]
    return ["none" if each.grad is None else _name(each.grad.dtype) for each in inputs]


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [each for inner in value for each in _tensors(inner)] if isinstance(value, (tuple, list)) else []


def _call(entry: Entry, args: Any) -> Any:
    if entry.module is not None and hasattr(entry.module, entry.op):
        return getattr(entry.module, entry.op)(*args, **entry.kwargs)
    return getattr(args[0], entry.op)(*args[1:], **entry.kwargs)


Region = Callable[[], AbstractContextManager[Any]]
Seen = dict[tuple[str, str], Dtypes]


def seen(half: torch.dtype, device: str, region: Region, *, gradients: bool) -> Seen:
    """Return result dtypes by kind and op: "forward", "backward", and "inputs" of the backward.

    ``region`` enables autocast. Without ``gradients``, modules are skipped, because their parameters require
    gradients.
    """
    found: Seen = {}

    def look(name: str, call: Made, inputs: list[Tensor] | None = None) -> None:
        def inside() -> Any:
            with region():
                return call()

        if inputs:
            gradients = backward(inside, inputs)
            if gradients:
                found["backward", name] = gradients
                found["inputs", name] = dtypes_of(inputs)
        else:
            found["forward", name] = forward(inside)

    names: Counter[str] = Counter()
    for entry in cuda_entries(half, device):
        names[entry.op] += 1
        name = f"{entry.op} {names[entry.op]}" if names[entry.op] > 1 else entry.op
        look(name, partial(_call, entry, entry.args))
        found["table", name] = [_name(entry.gives)] * len(found["forward", name])
        args = asking(entry.args)
        if gradients and leaves(args):
            look(name, partial(_call, entry, args), leaves(args))
    for given in (half, torch.float32):
        for name, compute in MORE.items():
            look(f"{name} of {_name(given)}", partial(compute, partial(_random, device, given)))
    for name, (build, shape, gives) in MODULES.items() if gradients else ():
        module = build().to(device)
        call = partial(module, torch.randn(shape, device=device))
        look(f"nn.{name}", call)
        found["table", f"nn.{name}"] = [_name(gives or half)] * len(found["forward", f"nn.{name}"])
        look(f"nn.{name}", call, list(module.parameters()))
    return found


def _random(device: str, dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(shape, device=device).to(dtype)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def reference(half: torch.dtype, *, dry: bool) -> Seen:
    """Return CUDA's dtypes. A dry run uses its autocast kernels on tensors without values, forward only."""
    if not dry:
        return seen(half, "cuda", partial(torch.autocast, "cuda", half), gradients=True)
    before = torch.get_autocast_dtype("cuda")
    with FakeTensorMode(), torch.no_grad():
        # An autocast object would disable itself without CUDA.
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", half)
        try:
            return seen(half, "cuda", nullcontext, gradients=False)
        finally:
            torch.set_autocast_enabled("cuda", False)
            torch.set_autocast_dtype("cuda", before)
            torch.clear_autocast_cache()


def rows(*, dry: bool) -> Iterator[Row]:
    for half in HALVES:
        with warnings.catch_warnings():
            # The table also contains deprecated ops.
            warnings.simplefilter("ignore")
            real = reference(half, dry=dry)
            with on("emulated"):
                emulated = seen(half, "cpu", partial(torch.autocast, "cuda", half), gradients=True)
        for (kind, name), results in emulated.items():
            if kind in ("inputs", "table"):
                continue
            expected = _expected(emulated, real, kind, name) if dry else real.get((kind, name), [])
            agrees = results == (["NotImplementedError"] if name in OF_CUDNN else expected)
            shown = f"CUDA {', '.join(expected)}; emulated {', '.join(results)}"
            yield {"kind": kind, "what": f"{name}, {_name(half)}", "agrees": agrees, "dtypes": shown}


def _expected(emulated: Seen, real: Seen, kind: str, name: str) -> Dtypes:
    """Return the expected dtypes of the emulation in a dry run.

    For ops of PyTorch's table, the table's column is expected, for other ops the kernels without values, except for
    composed ops, and for gradients the promise of autograd: the dtype of their tensor.
    """
    composed = COMPOSED.get(name.partition(" of ")[0])
    if composed is not None:
        return [_name(composed)]
    if kind == "backward":
        return emulated["inputs", name]
    return emulated["table", name] if ("table", name) in emulated else real[kind, name]
