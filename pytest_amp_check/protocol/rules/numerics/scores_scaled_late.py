"""AMP511 scores-scaled-late."""

from __future__ import annotations

from ...event_graph import Program
from ...events import LateScale
from ...rule import INFO, STATIC, Labels, Rule, ViolationKind


def _check_scaled_late(event: LateScale, program: Program) -> Labels:
    if not event.guessed:
        yield "scores:scaled-late", {}


RULE = Rule(
    "AMP511",
    "scores-scaled-late",
    INFO,
    "The scores of an attention are scaled after the float16 product that may overflow.",
    effect=(
        "large queries and keys give infinite scores: a GradScaler skips the step, without one the weights become NaN"
    ),
    detected_by=STATIC,
    on_by_default=False,
    event_checks={LateScale: _check_scaled_late},
    prescan_words=("autocast",),
    violations={
        "scores:scaled-late": ViolationKind(
            "`{call}` scales attention scores only after they may have overflowed in float16: scale one factor before "
            "the product, or use `scaled_dot_product_attention`"
        ),
    },
    rationale="""\
Autocast multiplies queries by keys in float16, which ends at 65504. A score is a sum over the width of a head: with 64
terms it overflows if queries and keys are about 32. The scale would make the score eight times smaller, but it comes
too late: the infinity stays, and the softmax of two infinities is NaN. Scaling the queries first costs less, because
there are fewer queries than scores. bfloat16 has the range of float32. The rule is off unless it is selected: in most
trainings queries and keys stay small.
""",
    harm="""\
Queries and keys were 40 throughout, with heads of width 64. The scores (102400 before the scale, 12800 after it) were
infinite and their softmax NaN. With the queries scaled first they were 12800, and the softmax was uniform.
""",
    bad_example="""\
import torch
from torch import nn

torch.manual_seed(0)
width = 64
qkv = nn.Linear(width, 3 * width)
x = 200 * torch.randn(1, 4, width)

with torch.autocast("cpu", dtype=torch.float16):
    q, k, v = qkv(x).chunk(3, dim=-1)
    scores = (q @ k.transpose(-2, -1)) * width**-0.5  # AMP511
    attended = scores.softmax(-1) @ v
print("finite:", attended.isfinite().all().item())
""",
    good_example="""\
import torch
from torch import nn

torch.manual_seed(0)
width = 64
qkv = nn.Linear(width, 3 * width)
x = 200 * torch.randn(1, 4, width)

with torch.autocast("cpu", dtype=torch.float16):
    q, k, v = qkv(x).chunk(3, dim=-1)
    scores = (q * width**-0.5) @ k.transpose(-2, -1)
    attended = scores.softmax(-1) @ v
print("finite:", attended.isfinite().all().item())
""",
    fix_advice="Multiply the queries by the scale before the product, or use"
    " `torch.nn.functional.scaled_dot_product_attention`.",
    sources=(
        "ultralytics/ultralytics pull request 24990",
        "PyTorch documentation: Autocast Op Reference, docs.pytorch.org/docs/stable/amp.html#autocast-op-reference",
        "measured with torch 2.13 on the CPU",
    ),
)
