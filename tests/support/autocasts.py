"""PyTorch's own tables of autocast ops, and ops that the tables lack."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import unittest
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  # the name that all of torch's users know


def lists() -> ModuleType:
    """Return the module with torch's autocast tables.

    That module imports a test package (expecttest) but uses nothing of it.
    """
    name = "torch.testing._internal.autocast_test_lists"
    if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:
        stub: Any = ModuleType("expecttest")
        stub.TestCase = unittest.TestCase
        stub.assert_expected_inline = None
        sys.modules["expecttest"] = stub
        try:
            return importlib.import_module(name)
        finally:
            del sys.modules["expecttest"]
    return importlib.import_module(name)


class Entry(NamedTuple):
    """One row of torch's table: an op with arguments, the dtype for the op, and the dtype of the result."""

    op: str
    args: Any
    runs_in: torch.dtype
    gives: torch.dtype
    module: Any
    kwargs: dict[str, Any]


def lowered(value: Any, half: torch.dtype) -> Any:
    """Convert the float16 inputs of the table to another low dtype: a bfloat16 region needs bfloat16 inputs."""
    if isinstance(value, torch.Tensor):
        return value.to(half) if value.dtype is torch.float16 else value
    return type(value)(lowered(each, half) for each in value) if isinstance(value, (tuple, list)) else value


def cuda_entries(half: torch.dtype, device: str = "cpu") -> Iterator[Entry]:
    """Yield the rows of CUDA's table for a low dtype, with arguments on a device."""
    table = lists().AutocastTestLists(torch.device(device))
    functions, linalg = torch._C._nn, torch._C._linalg  # type: ignore[attr-defined]
    for name, module, runs_in in (
        ("torch_fp16", torch, half),
        ("torch_fp32", torch, torch.float32),
        ("torch_need_autocast_promote", torch, torch.float32),
        ("torch_expect_builtin_promote", torch, torch.float32),
        ("methods_expect_builtin_promote", None, torch.float32),
        ("nn_fp16", functions, half),
        ("nn_fp32", functions, torch.float32),
        ("linalg_fp16", linalg, half),
        ("methods_fp16", None, half),
        ("methods_fp32", None, torch.float32),
    ):
        for row in getattr(table, name):
            op, args, last = row[0], row[1], row[2] if len(row) == 3 else None
            if op == "einsum":
                # The row is malformed in the table; MORE below has the op.
                continue
            yield Entry(
                op,
                lowered(args, half),
                runs_in,
                last if isinstance(last, torch.dtype) else runs_in,
                module,
                last if isinstance(last, dict) else {},
            )


#: Ops that the table lacks, or has in only one form.
MORE: dict[str, Callable[[Callable[..., torch.Tensor]], Any]] = {
    "interpolate nearest": lambda t: F.interpolate(t(1, 1, 4, 4), scale_factor=2),
    "interpolate bilinear": lambda t: F.interpolate(t(1, 1, 4, 4), scale_factor=2, mode="bilinear"),
    "interpolate bicubic aa": lambda t: F.interpolate(t(1, 1, 4, 4), size=2, mode="bicubic", antialias=True),
    "interpolate trilinear": lambda t: F.interpolate(t(1, 1, 4, 4, 4), scale_factor=2, mode="trilinear"),
    "interpolate linear": lambda t: F.interpolate(t(1, 1, 4), scale_factor=2, mode="linear"),
    "interpolate nearest-exact": lambda t: F.interpolate(t(1, 1, 4, 4), scale_factor=2, mode="nearest-exact"),
    "attention": lambda t: F.scaled_dot_product_attention(t(1, 2, 4, 8), t(1, 2, 4, 8), t(1, 2, 4, 8)),
    "huber": lambda t: F.huber_loss(t(4), t(4)),
    "cross entropy": lambda t: F.cross_entropy(t(4, 4), t(4, 4).softmax(1)),
    "nll": lambda t: F.nll_loss(t(4, 4), torch.zeros(4, dtype=torch.long, device=t(1).device)),
    "bce with logits": lambda t: F.binary_cross_entropy_with_logits(t(4), t(4)),
    "vector norm": lambda t: torch.linalg.vector_norm(t(4)),
    "vector norm float64": lambda t: torch.linalg.vector_norm(t(4).float(), dtype=torch.float64),
    "matrix norm": lambda t: torch.linalg.matrix_norm(t(4, 4)),
    "norm": lambda t: torch.norm(t(4, 4)),
    "norm dim": lambda t: t(4, 4).norm(2, 0),
    "norm keepdim": lambda t: t(4, 4).norm(p=1, dim=1, keepdim=True),
    "normalize": lambda t: F.normalize(t(4, 4)),
    "softmax": lambda t: t(4).softmax(0),
    "softmax float64": lambda t: t(4).float().softmax(0, dtype=torch.float64),
    "softmax half": lambda t: t(4).softmax(0, torch.float16),
    "softmax integers": lambda t: t(4).long().sum(),
    "sum half": lambda t: t(4).sum(dtype=torch.float16),
    "sum dim": lambda t: t(4, 4).sum(1, keepdim=True),
    "prod dim": lambda t: t(4, 4).prod(1),
    "cumsum": lambda t: t(4).cumsum(0),
    "mean": lambda t: t(4).mean(),
    "var": lambda t: t(4).var(),
    "std": lambda t: t(4).std(),
    "square": lambda t: t(4).square(),
    "1 / x": lambda t: 1 / t(4),
    "2 ** x": lambda t: 2 ** t(4),
    "x * x": lambda t: t(4) * t(4),
    "sqrt": lambda t: t(4).abs().sqrt(),
    "sigmoid": lambda t: t(4).sigmoid(),
    "tanh": lambda t: t(4).tanh(),
    "gelu": lambda t: F.gelu(t(4)),
    "silu": lambda t: F.silu(t(4)),
    "max": lambda t: t(4).max(),
    "dropout": lambda t: F.dropout(t(4)),
    "reflect pad": lambda t: F.pad(t(1, 1, 4), (1, 1), "reflect"),
    "replicate pad": lambda t: F.pad(t(1, 1, 4), (1, 1), "replicate"),
    "pool 2d": lambda t: F.avg_pool2d(t(1, 1, 4, 4), 2),
    "pool 3d": lambda t: F.avg_pool3d(t(1, 1, 4, 4, 4), 2),
    "max pool 3d": lambda t: F.max_pool3d(t(1, 1, 4, 4, 4), 2),
    "outer": lambda t: torch.outer(t(4), t(4)),
    "embedding": lambda t: F.embedding(torch.zeros(2, dtype=torch.long, device=t(1).device), t(4, 4)),
    "einsum": lambda t: torch.einsum("i,j->ij", t(4), t(4)),
    "baddbmm": lambda t: torch.baddbmm(t(2, 4, 4), t(2, 4, 4), t(2, 4, 4)),
    "conv same": lambda t: F.conv2d(t(1, 1, 4, 4), t(1, 1, 3, 3), padding="same"),
    "batch norm": lambda t: F.batch_norm(t(4, 4), None, None, training=True),
    "layer norm": lambda t: F.layer_norm(t(4, 4), (4,)),
    "group norm": lambda t: F.group_norm(t(1, 4, 4), 2),
    "trace": lambda t: torch.trace(t(4, 4)),
    "polar": lambda t: torch.polar(t(4).float(), t(4).float()),
    "cat mixed": lambda t: torch.cat([t(4), t(4).float()]),
    "stack mixed": lambda t: torch.stack([t(4).float(), t(4)]),
    "where mixed": lambda t: torch.where(t(4) > 0, t(4), t(4).float()),
    "addcmul mixed": lambda t: torch.addcmul(t(4), t(4).float(), t(4)),
    "index put mixed": lambda t: t(4).float().index_put((torch.zeros(1, dtype=torch.long, device=t(1).device),), t(1)),
    "exp in place": lambda t: t(4).exp_(),
    "double": lambda t: t(4).double().exp(),
    "double matmul": lambda t: t(4, 4).double() @ t(4, 4).double(),
}
#: Ops of MORE that CUDA composes of an op that autocast casts, and their dtype on an H200. Kernels without values
#: compose them of nothing.
COMPOSED = {"trace": torch.float32}
