"""AMP508 low-precision-accumulator."""

from __future__ import annotations

from ...event_graph import Program
from ...events import LowSum
from ...rule import BOTH, INFO, WARNING, Labels, Rule, ViolationKind


def _check_low_sum(event: LowSum, program: Program) -> Labels:
    dtype = event.dtype
    values = {"dtype": "low precision" if dtype == "half" else dtype}
    if event.count:
        yield "sum:count", {**values, "limit": "2048" if dtype == "float16" else "256"}
        return
    if event.stands:
        yield "sum:still", values
        return
    if event.average:
        yield "sum:average", values
        return
    yield "sum:low", {**values, "severity": INFO} if event.guessed else values


RULE = Rule(
    "AMP508",
    "low-precision-accumulator",
    WARNING,
    "A running sum is kept in float16 or bfloat16.",
    detected_by=BOTH,
    event_checks={LowSum: _check_low_sum},
    prescan_words=("autocast", "low average"),
    violations={
        "sum:low": ViolationKind(
            "`{sum}` sums over the iterations in {dtype}, which soon stops growing: keep the sum in float32, or"
            " add the tensor's `.item()`"
        ),
        "sum:average": ViolationKind(
            "`{sum}` keeps a moving average in {dtype}, where small updates round to nothing: keep the average in "
            "float32, and cast a copy where low precision is needed"
        ),
        "sum:count": ViolationKind(
            "`{sum}` counts in {dtype}, where 1 added to {limit} changes nothing: count in integers or in float32"
        ),
        "sum:still": ViolationKind(
            "`{sum}` no longer changes, because the added values are too small for {dtype}: keep it in float32, and "
            "add float32 values"
        ),
    },
    rationale="""\
A sum stops growing when the added value is smaller than half the gap to the next number. This is one part in 2048 in
float16, and one in 256 in bfloat16. A sum over the batches of an epoch, started at a Python zero, takes the dtype of
the added values. Low-precision values from autocast keep the sum in low precision. A moving average behaves the same. A
low-precision tensor keeps its dtype when float32 values are added in place. A copy of the weights that is cast and then
averaged over the steps hardly moves.
""",
    harm="""\
Ten thousand times 1 added up to 2048 in float16 and to 256 in bfloat16. A moving average with a decay of 0.9999 of a
constant 1 was 0.25 and 0.031 after 20,000 steps; the correct value is 0.865.
""",
    bad_example="""\
import torch
from torch import nn

model = nn.Linear(8, 1)
nn.init.constant_(model.weight, 0.125)
nn.init.zeros_(model.bias)
batches = [torch.ones(4, 8) for _ in range(1000)]

total = 0.0
for x in batches:
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        score = model(x).mean()
    total += score  # AMP508
print("sum of 1000 ones:", float(total))
""",
    good_example="""\
import torch
from torch import nn

model = nn.Linear(8, 1)
nn.init.constant_(model.weight, 0.125)
nn.init.zeros_(model.bias)
batches = [torch.ones(4, 8) for _ in range(1000)]

total = 0.0
for x in batches:
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        score = model(x).mean()
    total += score.float()
print("sum of 1000 ones:", float(total))
""",
    fix_advice="Add `.float()` of the tensor or its `.item()`, or start from a float32 tensor.",
    sources=(
        "PyTorch documentation: torch.finfo, docs.pytorch.org/docs/stable/type_info.html",
        "measured with torch 2.13 on the CPU",
    ),
)
