"""Ops without a low-precision kernel: torch really has none, and the findings in source."""

from __future__ import annotations

import pytest

from pytest_amp_check.protocol import kernels
from pytest_amp_check.static.engine import check_source

pytest.importorskip("torch")
import torch

LOW = [torch.float16, torch.bfloat16]
#: Calls of ops that take more than one square matrix.
CALLS = {
    "cholesky_solve": lambda op, a: op(a[:, :2], a),
    "solve": lambda op, a: op(a, a[:, :2]),
    "solve_ex": lambda op, a: op(a, a[:, :2]),
    "lstsq": lambda op, a: op(a, a[:, :2]),
    "triangular_solve": lambda op, a: op(a[:, :2], a),
    "solve_triangular": lambda op, a: op(a, a[:, :2], upper=True),
    "orgqr": lambda op, a: op(a, a[0]),
    "householder_product": lambda op, a: op(a, a[0]),
    "tensorinv": lambda op, a: op(a.reshape(4, 2, 2), ind=1),
    "tensorsolve": lambda op, a: op(a.reshape(2, 2, 4), a[:2, :2]),
    "pca_lowrank": lambda op, a: op(a, 2),
    "svd_lowrank": lambda op, a: op(a, 2),
    "quantile": lambda op, a: op(a, 0.5),
    "nanquantile": lambda op, a: op(a, 0.5),
    "ctc_loss": lambda op, a: op(
        a[:, None].log_softmax(-1), torch.ones(1, 2).long(), torch.tensor([4]), torch.tensor([2])
    ),
    "complex": lambda op, a: op(a, a),
    "polar": lambda op, a: op(a, a),
    "view_as_complex": lambda op, a: op(a[:, :2].contiguous()),
    "stft": lambda op, a: op(a.flatten(), 4, return_complex=True),
}


def matrix(dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(0)
    values = torch.randn(4, 4)
    return (values @ values.T + 4 * torch.eye(4)).to(dtype)


def compute(name: str, a: torch.Tensor) -> object:
    if name == "lu":
        return torch.lu(a)
    if name in kernels.TRANSFORMS:
        return getattr(torch.fft, name)(a)
    op = getattr(torch.linalg, name, None) or getattr(torch, name)
    return CALLS.get(name, lambda op, a: op(a))(op, a)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize("name", sorted(kernels.NAMES))
def test_torch_refuses_low_precision_and_computes_float32(name: str, dtype: torch.dtype) -> None:
    compute(name, matrix(torch.float32))
    if kernels.find_refusal(name, str(dtype).removeprefix("torch."), ""):
        with pytest.raises(RuntimeError):
            compute(name, matrix(dtype))
    else:
        assert (name in kernels.COMPLEX, dtype) == (True, torch.float16)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize("name", sorted(kernels.NAMES))
def test_the_cpu_s_autocast_casts_what_is_said_to_be_cast(name: str, dtype: torch.dtype) -> None:
    with torch.autocast("cpu", dtype=dtype):
        if kernels.find_refusal(name, str(dtype).removeprefix("torch."), "cpu"):
            with pytest.raises(RuntimeError):
                compute(name, matrix(dtype))
        else:
            compute(name, matrix(dtype))


PROGRAM = """\
import torch
from torch import nn

encoder = nn.Linear(8, 8)


def embed(x, y):
    with torch.autocast("DEVICE", dtype=torch.DTYPE):
        x = encoder(x)
        return SPELLED
"""


def found(spelled: str, device: str = "cuda", dtype: str = "float16") -> list[str]:
    source = PROGRAM.replace("SPELLED", spelled).replace("DEVICE", device).replace("DTYPE", dtype)
    return [finding.label for finding in check_source(source) if finding.code == "AMP510"]


@pytest.mark.parametrize(
    ("spelled", "label"),
    [
        ("torch.svd(x)", "op:refused"),
        ("torch.linalg.svd(x.T @ y)", "op:refused"),
        ("(x.T @ y).inverse()", "op:refused"),
        ("x.relu().qr()", "op:refused"),
        ("torch.linalg.solve(x, y)", "op:refused"),
        ("torch.quantile(x, 0.9)", "op:refused"),
        ("torch.pca_lowrank(y, 4)", "op:inner"),
        ("torch.fft.rfft(x, dim=1)", "op:lengths"),
        ("torch.fft.fft2(x.view(4, 4))", "op:lengths"),
        ("torch.fft.rfft(x, 192)", "op:lengths"),
        ("torch.fft.rfft(x, 256)", ""),
        ("torch.fft.rfft(x, n=size)", ""),
        ("torch.svd(y)", ""),
        ("torch.svd(x.double())", ""),
        ("torch.svd(x.exp())", ""),
        ("solver.solve(x)", ""),
        ("encoder.inverse(x)", ""),
    ],
)
def test_spellings_in_a_region_of_cuda(spelled: str, label: str) -> None:
    assert found(spelled) == ([label] if label else [])


def test_the_dtype_and_the_device_decide() -> None:
    assert found("torch.fft.rfft(x, 256)", dtype="bfloat16") == ["op:refused"]
    assert found("torch.svd(x)", "cpu", "bfloat16") == []
    assert found("torch.slogdet(x)", "cpu", "bfloat16") == ["op:refused"]
    assert found("torch.svd(x)", "cuda", "float32") == []


ATTENTION = """\
import torch
import xformers.ops as xops
from flash_attn import flash_attn_func
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.q_norm, self.k_norm = nn.LayerNorm(8), nn.LayerNorm(8)

    def forward(self, x):
        q, k, v = self.qkv(x).reshape(2, 4, 3, 8).unbind(2)
        q, k = Q, K
        return CALL


model = Attention()
with torch.autocast("cuda", dtype=torch.float16):
    model(torch.randn(2, 4, 8))
"""


@pytest.mark.parametrize(
    ("q", "k", "call", "clashes"),
    [
        ("self.q_norm(q)", "self.k_norm(k)", "xops.memory_efficient_attention(q, k, v)", True),
        ("self.q_norm(q)", "k", "flash_attn_func(q, k, v, causal=True)", True),
        ("q", "k", "xops.memory_efficient_attention(q, k, v)", False),
        ("self.q_norm(q).to(v.dtype)", "self.k_norm(k).to(v.dtype)", "xops.memory_efficient_attention(q, k, v)", False),
        ("self.q_norm(q)", "self.k_norm(k)", "nn.functional.scaled_dot_product_attention(q, k, v)", False),
    ],
)
def test_attention_of_other_packages_takes_one_dtype(q: str, k: str, call: str, clashes: bool) -> None:
    source = ATTENTION.replace("Q, K", f"{q}, {k}").replace("CALL", call)
    assert [f.label for f in check_source(source)] == (["clash:attention"] if clashes else [])
