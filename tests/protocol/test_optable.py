"""The table of autocast's policies equals the policies of the installed torch."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_amp_check.protocol import optable

pytest.importorskip("torch")

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the table was written from torch 2.13")
def test_the_committed_table_is_what_the_script_writes() -> None:
    made = runpy.run_path(str(ROOT / "benchmarks" / "optable.py"))
    assert made["render"]() == (ROOT / "pytest_amp_check" / "protocol" / "optable.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("device", ["cuda", "xpu", "mps", "cpu"])
def test_what_is_registered_has_a_policy(device: str) -> None:
    made = runpy.run_path(str(ROOT / "benchmarks" / "optable.py"))
    registered = made["registered"](f"Autocast{device.upper()}")
    assert len(registered) > 80
    assert registered - optable.OPS[device].keys() == set()


#: Op -> the function that runs it on one matrix.
RUNS: dict[str, Callable[..., torch.Tensor]] = {
    "mm": lambda x: torch.mm(x, x),
    "linear": lambda x: functional.linear(x, x),
    "matmul": lambda x: x @ x,
    "exp": torch.exp,
    "log": torch.log,
    "pow": lambda x: x**2,
    "reciprocal": lambda x: 1 / x,
    "rsqrt": torch.rsqrt,
    "softmax": lambda x: x.softmax(-1),
    "sum": torch.sum,
    "cumsum": lambda x: x.cumsum(0),
    "linalg_vector_norm": torch.linalg.vector_norm,
    "layer_norm": lambda x: functional.layer_norm(x, (4,)),
    "logsumexp": lambda x: x.logsumexp(-1),
    "mse_loss": lambda x: functional.mse_loss(x, x),
    "cosine_similarity": lambda x: functional.cosine_similarity(x, x),
    "reflection_pad1d": lambda x: functional.pad(x, (1, 1), mode="reflect"),
    "sigmoid": torch.sigmoid,
    "sqrt": torch.sqrt,
    "mean": torch.mean,
    "var": torch.var,
    "mul": lambda x: x * x,
    "sin": torch.sin,
}


@pytest.mark.parametrize("device", ["cuda", "xpu", "mps", "cpu"])
@pytest.mark.parametrize("op", RUNS)
def test_an_op_runs_as_the_table_says(op: str, device: str) -> None:
    """Fake tensors run the real autocast kernels of the device."""

    def output(dtype: torch.dtype) -> torch.dtype:
        with FakeTensorMode(), torch.no_grad():
            x = torch.empty(4, 4, device=device, dtype=dtype)
            return RUNS[op](x).dtype

    if device == "xpu" and torch.__version__ < "2.12" and not torch.xpu.is_available():
        pytest.skip("before torch 2.12, builds without support for XPU have no fake tensors on it")
    before = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    torch.set_autocast_enabled(device, True)
    torch.set_autocast_dtype(device, torch.float16)
    try:
        outputs = output(torch.float16), output(torch.float32)
    finally:
        torch.set_autocast_enabled(device, before[0])
        torch.set_autocast_dtype(device, before[1])
        torch.clear_autocast_cache()
    low, full = torch.float16, torch.float32
    expected = {"low": (low, low), "": (low, full)}
    assert outputs == expected.get(optable.find_policy(device, op), (full, full))


@pytest.mark.parametrize(("op", "policy"), [("linear", "low"), ("mse_loss", "fp32"), ("sigmoid", ""), ("softmax", "?")])
def test_of_an_unknown_device_only_what_all_share_is_known(op: str, policy: str) -> None:
    assert optable.find_policy("", op) == policy
