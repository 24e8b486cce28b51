"""AMP510 op-without-low-precision-kernel."""

from __future__ import annotations

from ...events import LOW_OP, Event, Program
from ...rule import STATIC, WARNING, Fault, Labels, Rule


def _refused(event: Event, program: Program) -> Labels:
    # What a model that cannot be read gives may be float32.
    if not event.facts["guessed"]:
        dtype = event.facts["dtype"]
        yield f"op:{event.facts['how']}", {"dtype": "low-precision" if dtype == "half" else dtype}


RULE = Rule(
    "AMP510",
    "op-without-low-precision-kernel",
    WARNING,
    "An op that has no kernel for float16 or bfloat16 is given a low-precision tensor.",
    readers=STATIC,
    on={LOW_OP: _refused},
    words=("autocast",),
    faults={
        "op:refused": Fault(
            "`{call}` is given a {dtype} tensor, has no kernel for it and raises: cast it with `.float()` first"
        ),
        "op:inner": Fault(
            "`{call}` multiplies matrices, which autocast does in {dtype}, and has no kernel for the decomposition"
            " of what that gives: compute it on `.float()` where autocast is off"
        ),
        "op:lengths": Fault(
            "`{call}` transforms a {dtype} tensor, which cuFFT does only where every length is a power of two: cast"
            " it with `.float()` first"
        ),
    },
    why="""\
LAPACK, cuSOLVER and MAGMA compute in float32 and float64 alone: a singular value, QR, LU, Cholesky or eigenvalue
decomposition, an inverse, a determinant or a quantile of a low-precision tensor raises. CUDA's autocast has none of
them on its list of float32 ops, so what a linear layer or a matmul gives reaches them as it is; the CPU's list has
most, so that a test on a CPU passes. cuFFT transforms float16 where every length is a power of two, and no bfloat16.
`pca_lowrank` and `svd_lowrank` multiply first, in low precision in a region, whatever they are given.
""",
    harm="""\
`svd`: `NotImplementedError: "linalg_svd_cpu" not implemented for 'Half'`; `inv`, `slogdet` and `logdet`: `Low
precision dtypes not supported. Got Half`; `quantile() input tensor must be either float or double dtype`. As people
reported it of `fft.rfft` of length 192 on CUDA: `RuntimeError: cuFFT only supports dimensions whose sizes are powers of
two when computing in half precision`.
""",
    bad="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 4)
x = torch.randn(64, 8)


def spread():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features = model(x)
        covariance = features.T @ features / len(x)
        return torch.logdet(covariance)  # AMP510


try:
    print("log-determinant:", spread().item())
except RuntimeError as error:
    print(error)
""",
    good="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 4)
x = torch.randn(64, 8)


def spread():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features = model(x)
        covariance = features.T @ features / len(x)
        return torch.logdet(covariance.float())


try:
    print("log-determinant:", spread().item())
except RuntimeError as error:
    print(error)
""",
    fix="Cast the tensor with `.float()` before the op; around what multiplies by itself, switch autocast off, too.",
    sources=(
        "PyTorch documentation: torch.fft, docs.pytorch.org/docs/stable/fft.html: powers of two for torch.half on CUDA",
        "PyTorch source: ATen/autocast_mode.h, the lists of CUDA and of the CPU",
        "bytedance/LatentSync issue 241, thuml/Time-Series-Library issue 761",
        "measured with torch 2.13 on the CPU",
    ),
)
