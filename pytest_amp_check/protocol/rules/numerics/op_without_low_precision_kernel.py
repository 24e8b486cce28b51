"""AMP510 op-without-low-precision-kernel."""

from __future__ import annotations

from ...event_graph import Program
from ...events import LowOp
from ...rule import INFO, STATIC, WARNING, Labels, Rule, ViolationKind


def _check_refused_op(event: LowOp, program: Program) -> Labels:
    # The output of an unanalyzed model may be float32.
    if not event.guessed:
        dtype = event.dtype
        severity = INFO if event.is_unknown else WARNING
        yield f"op:{event.how}", {"dtype": "low-precision" if dtype == "half" else dtype, "severity": severity}


RULE = Rule(
    "AMP510",
    "op-without-low-precision-kernel",
    WARNING,
    "An op that has no kernel for float16 or bfloat16 is given a low-precision tensor.",
    effect="torch raises on the first low-precision batch and ends the run; float32 tests pass",
    detected_by=STATIC,
    event_checks={LowOp: _check_refused_op},
    prescan_words=("autocast", "low-precision math"),
    violations={
        "op:refused": ViolationKind(
            "`{call}` is given a {dtype} tensor, has no kernel for it and raises: cast the tensor with `.float()` first"
        ),
        "op:inner": ViolationKind(
            "`{call}` multiplies matrices in {dtype} under autocast, and its decomposition has no kernel for the "
            "product: compute it on `.float()` outside autocast"
        ),
        "op:lengths": ViolationKind(
            "`{call}` transforms a {dtype} tensor, which cuFFT supports only for lengths that are powers of two: cast "
            "it with `.float()` first",
            effect="on CUDA other lengths raise and end the run; bfloat16 always raises; tests on a CPU pass",
        ),
    },
    rationale="""\
LAPACK, cuSOLVER and MAGMA support only float32 and float64. On a low-precision tensor these ops raise: a singular
value, QR, LU, Cholesky or eigenvalue decomposition, an inverse, a determinant or a quantile. CUDA's autocast has none
of them on its list of float32 ops, so a low-precision result of a linear layer or matmul reaches them unchanged. The
CPU's list has most of them, so a test on a CPU passes. cuFFT transforms float16 only if every length is a power of two,
and never bfloat16. `pca_lowrank` and `svd_lowrank` first multiply in low precision inside a region, for any dtype of
the inputs. There are complex numbers of float16, but none of bfloat16, so `view_as_complex`, `polar` and `complex`
refuse it. `ctc_loss` has kernels for float32 and float64 only.
""",
    harm="""\
`svd`: `NotImplementedError: "linalg_svd_cpu" not implemented for 'Half'`; `inv`, `slogdet` and `logdet`: `Low precision
dtypes not supported. Got Half`; `quantile() input tensor must be either float or double dtype`. Reported by users for
`fft.rfft` of length 192 on CUDA: `RuntimeError: cuFFT only supports dimensions whose sizes are powers of two when
computing in half precision`. `view_as_complex` of bfloat16: `RuntimeError: view_as_complex is only supported for half,
float and double tensors`.
""",
    bad_example="""\
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
    good_example="""\
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
    fix_advice=(
        "Cast the tensor with `.float()` before the op; also disable autocast around ops that multiply internally."
    ),
    sources=(
        "PyTorch documentation: torch.fft, docs.pytorch.org/docs/stable/fft.html: powers of two for torch.half on CUDA",
        "PyTorch source: ATen/autocast_mode.h, the lists of CUDA and of the CPU",
        "bytedance/LatentSync issue 241, thuml/Time-Series-Library issue 761",
        "measured with torch 2.13 on the CPU",
    ),
)
