"""AMP505 eps-underflow."""

from __future__ import annotations

from ...event_graph import Program
from ...events import Epsilon
from ...rule import INFO, STATIC, WARNING, Labels, Rule, ViolationKind
from ...torch_api import FLOAT16_MAX, FLOAT16_ZERO


def _check_epsilon(event: Epsilon, program: Program) -> Labels:
    value = event.value
    doubt = event.guessed or event.dtype != "float16"
    values = {"value": f"{value:g}"}
    if event.how == "to-one":
        doubt = event.guessed or event.dtype == "half"
        dtype = "low-precision" if event.dtype == "half" else event.dtype
        values = {"value": f"{value:.10g}", "dtype": dtype}
        yield "epsilon:to-one", {**values, "severity": INFO} if doubt else values
    elif value <= FLOAT16_ZERO:
        yield f"epsilon:{event.how}", {**values, "severity": INFO} if doubt else values
    elif event.divides and value < 1 / FLOAT16_MAX and not doubt:
        yield "epsilon:small", values


RULE = Rule(
    "AMP505",
    "eps-underflow",
    WARNING,
    "An epsilon below the range of float16 protects nothing.",
    effect="at a zero the result is infinite or NaN: a GradScaler skips the step, without one the weights become NaN",
    effect_cases={
        "scaling=live": (
            "at a zero the result is infinite or NaN, and the step is skipped: nothing of this batch is trained"
        ),
    },
    detected_by=STATIC,
    event_checks={Epsilon: _check_epsilon},
    prescan_words=("autocast", "low-precision math"),
    violations={
        "epsilon:added": ViolationKind(
            "`{sum}` adds {value} to a float16 tensor, where it is 0: cast the tensor with `.float()` first, or use"
            " an epsilon of 1e-6 to 1e-4"
        ),
        "epsilon:clamped": ViolationKind(
            "`{sum}` keeps a float16 tensor above {value}, which is 0 in float16: cast the tensor with `.float()` "
            "first, or use a bound of 1e-6 to 1e-4"
        ),
        "epsilon:normalized": ViolationKind(
            "`{sum}` divides by a float16 norm of at least {value}, which is 0 in float16, so a zero vector becomes "
            "NaN: pass `eps=1e-4`, or normalize `.float()`"
        ),
        "epsilon:to-one": ViolationKind(
            "`{sum}` keeps a {dtype} tensor below {value}, which rounds to 1, so one minus it can be 0: cast the "
            "tensor with `.float()` first",
            effect=(
                "confident predictions give infinities: a GradScaler skips the step, without one the weights become NaN"
            ),
        ),
        "epsilon:small": ViolationKind(
            "`{sum}` keeps a float16 divisor above {value} only, so dividing ordinary numbers by it overflows: cast "
            "it with `.float()` first, or use an epsilon of 1e-4",
            INFO,
            effect=(
                "quotients above 65504 are infinite: a GradScaler skips the step, without one the weights become NaN"
            ),
        ),
    },
    rationale="""\
The smallest float16 number is 6e-8, and numbers up to 3e-8 round to zero. An epsilon or lower bound of 1e-8 or 1e-12 on
a float16 tensor is therefore zero. The division, logarithm or root behind it is no longer protected from zero. CUDA
runs the logarithm itself in float32, but this does not help, because the sum is computed before. In contrast, bfloat16
has the range of float32 and keeps such numbers. Close to one, both dtypes round up: `1 - 1e-4` is 1 in float16, and
0.9985 is 1 in bfloat16. A probability with such an upper bound still reaches 1, and `log(1 - p)` or `acos` is infinite
or has an infinite gradient.
""",
    harm="""\
In float16, 1e-8 is 0: `0 / (0 + 1e-8)` was NaN, `log(0 + 1e-12)` and `log` of `clamp(min=1e-8)` -inf, and
`rsqrt(0 + 1e-10)` infinite, where float32 gave 0, -27.6, -18.4 and 1e5. With an epsilon of 1e-7, 1e-6 or 1e-5 in the
divisor, 512 / epsilon was infinite. `sigmoid(20)` clamped to `1 - 1e-4` was 1, and the logarithm of one minus it -inf.
""",
    bad_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 4)
x = torch.zeros(2, 8)

with torch.autocast("cpu", dtype=torch.float16):
    y = model(x) - model(x)
    direction = y / (y.abs() + 1e-8)  # AMP505
    level = y.abs().clamp(min=1e-12).log()  # AMP505
print("finite:", direction.isfinite().all().item(), level.isfinite().all().item())
""",
    good_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 4)
x = torch.zeros(2, 8)

with torch.autocast("cpu", dtype=torch.float16):
    y = (model(x) - model(x)).float()
    direction = y / (y.abs() + 1e-8)
    level = y.abs().clamp(min=1e-12).log()
print("finite:", direction.isfinite().all().item(), level.isfinite().all().item())
""",
    fix_advice="Compute the expression on `.float()`, or use an epsilon that float16 has, 1e-6 to 1e-4.",
    sources=(
        "PyTorch documentation: torch.finfo, docs.pytorch.org/docs/stable/type_info.html",
        "measured with torch 2.13 on the CPU",
    ),
)
