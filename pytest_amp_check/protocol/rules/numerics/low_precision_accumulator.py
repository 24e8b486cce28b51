"""AMP508 low-precision-accumulator."""

from __future__ import annotations

from ...event_graph import Program
from ...events import Event, LowReduction, LowSum
from ...rule import BOTH, INFO, WARNING, Certainty, Labels, Rule, ViolationKind


def _check_low_sum(event: Event, program: Program) -> Labels:
    if not isinstance(event, LowSum):
        return
    dtype = event.dtype
    values = {"dtype": "low precision" if dtype == "half" else dtype}
    limit = "2048" if dtype == "float16" else "256"
    if event.count:
        yield "sum:count", {**values, "limit": limit}
        return
    if event.scattered:
        yield "sum:scattered", values
        return
    if event.moment:
        yield "sum:moment", values
        return
    if event.stands:
        yield "sum:still", values
        return
    if event.average:
        yield ("sum:buffer" if event.buffer else "sum:average"), values
        return
    yield "sum:low", {**values, "severity": INFO} if event.guessed else values


def _check_low_reduction(event: Event, program: Program) -> Labels:
    if isinstance(event, LowReduction):
        yield f"reduction:{event.how}", {"dtype": event.dtype}


RULE = Rule(
    "AMP508",
    "low-precision-accumulator",
    WARNING,
    "A running sum, or a sum over ranks, is kept in float16 or bfloat16.",
    effect="the sum stops growing after 256 (bfloat16) or 2048 (float16) equal values, so it is too small; no error",
    effect_cases={
        "dtype=float16": "the sum stops growing after 2048 equal values, so the reported number is too small; no error",
        "dtype=bfloat16": "the sum stops growing after 256 equal values, so the reported number is too small; no error",
    },
    detected_by=BOTH,
    event_checks={LowSum: _check_low_sum, LowReduction: _check_low_reduction},
    prescan_words=(
        "autocast",
        "low-precision math",
        "low average",
        "float16 MixedPrecision param_dtype",
        "float16 MixedPrecision reduce_",
    ),
    violations={
        "sum:low": ViolationKind(
            "`{sum}` sums over the iterations in {dtype}, which soon stops growing: add `.float()` of the tensor, or "
            "`.item()` of a number"
        ),
        "sum:average": ViolationKind(
            "`{sum}` keeps a moving average in {dtype}, where small updates round to nothing: call `.float()` "
            "where the average is created, and cast a copy where low precision is needed",
            effect="the average hardly changes: with a decay of 0.9999, 0.03 in bfloat16 instead of 0.87; no error",
        ),
        "sum:buffer": ViolationKind(
            "`{sum}` changes by small updates, which {dtype} loses once the whole model is cast: write "
            "`{sum} = {sum}.float()` after that cast, or cast the parameters alone",
            effect="the buffer hardly changes: with a decay of 0.9999, 0.03 in bfloat16 instead of 0.87; no error",
        ),
        "sum:count": ViolationKind(
            "`{sum}` counts in {dtype}, where 1 added to {limit} changes nothing: count in integers or in float32",
            effect="the count stops there, so what is computed from it is wrong; no error",
        ),
        "sum:moment": ViolationKind(
            "`{sum}` keeps a second moment of gradients in {dtype}, where a decay of 0.999 rounds: create it in "
            "float32",
            effect="steps have a wrong size, because the moment stays where it was or loses small squares; no error",
            effect_cases={
                "dtype=bfloat16": "the moment grows twice too large and never falls, so steps stay small; no error",
                "dtype=float16": "squares of gradients below 2e-4 become 0, so steps are divided by epsilon; no error",
            },
        ),
        "sum:scattered": ViolationKind(
            "`{sum}` adds up elements in {dtype}, one rounding for each: create the sum in float32, and add `.float()` "
            "values",
            INFO,
            effect="sums of many elements are inexact, and stop growing in the end; no error",
            effect_cases={
                "dtype=bfloat16": "sums of 100 elements are 0.6 % off, and equal elements add up to 256 times one; no "
                "error",
                "dtype=float16": "sums of 100 elements are 0.09 % off, and equal elements add up to 2048 times one; no "
                "error",
            },
        ),
        "sum:still": ViolationKind(
            "`{sum}` no longer changes, because the added values are too small for {dtype}: create it in float32, and "
            "add `.float()` values",
            effect="what is computed from the sum is too small; no error",
        ),
        "reduction:given": ViolationKind(
            "`{call}` sums gradients over the ranks in {dtype}, one rounding for each rank: pass "
            "`reduce_dtype=torch.float32`, which doubles the bytes that each step sends",
            INFO,
            effect="averaged gradients are inexact, more so with more ranks; no error",
            effect_cases={
                "dtype=bfloat16": "averaged gradients are inexact: 0.4 % off with 8 ranks, 2 % with 384; no error",
                "dtype=float16": "averaged gradients are inexact: 0.04 % off with 8 ranks, 0.2 % with 384; no error",
            },
            certainty=Certainty(assumption="a model is sharded with it over several ranks"),
        ),
        "reduction:default": ViolationKind(
            "`{call}` sums gradients over the ranks in {dtype}, because `reduce_dtype` defaults to "
            "`param_dtype`: pass `reduce_dtype=torch.float32`, which doubles the bytes that each step "
            "sends",
            INFO,
            effect="averaged gradients are inexact, more so with more ranks; no error",
            effect_cases={
                "dtype=bfloat16": "averaged gradients are inexact: 0.4 % off with 8 ranks, 2 % with 384; no error",
                "dtype=float16": "averaged gradients are inexact: 0.04 % off with 8 ranks, 0.2 % with 384; no error",
            },
            certainty=Certainty(assumption="a model is sharded with it over several ranks"),
        ),
        "reduction:window": ViolationKind(
            "`{call}` sums the gradients of all micro-batches of a window in {dtype}: write `{instead}`",
            INFO,
            effect="small gradients are lost beside a large sum, more so in long windows; no error",
        ),
        "reduction:setting": ViolationKind(
            "`{call}` sums gradients over the ranks in {dtype}, one rounding for each rank: write `{instead}`, which "
            "doubles the bytes that each step sends",
            INFO,
            effect="averaged gradients are inexact, more so with more ranks; no error",
            effect_cases={
                "dtype=bfloat16": "averaged gradients are inexact: 0.4 % off with 8 ranks, 2 % with 384; no error",
                "dtype=float16": "gradients below 6e-8 become 0, and a sum above 65504 becomes infinite; no error",
            },
            certainty=Certainty(assumption="a model is sharded with it over several ranks"),
        ),
    },
    rationale="""\
A sum stops growing when the added value is smaller than half the gap to the next number. This is one part in 2048 in
float16, and one in 256 in bfloat16. A sum over the batches of an epoch, started at a Python zero, takes the dtype of
the added values. Low-precision values from autocast keep the sum in low precision. A moving average behaves the same. A
low-precision tensor keeps its dtype when float32 values are added in place. `index_add`, `scatter_add` and the pooling
of graph packages create the sum in the dtype of the elements, and add one element after the other. A copy of the
weights that is cast and then averaged over the steps hardly moves.

FSDP sums gradients over the ranks in `reduce_dtype`, which is `param_dtype` unless it is given. In low precision, every
rank adds another rounding. It is a note: with few ranks little is lost, and communication costs half.
""",
    harm="""\
Ten thousand times 1 added up to 2048 in float16 and to 256 in bfloat16, also by `index_add_`. Sums of 100 elements
around -0.5 by `index_add_` were 0.6 % off in the median in bfloat16 and 3 % at most (float16: 0.09 and 0.4 %). A moving
average with a decay of 0.9999 of a constant 1 was 0.25 and 0.031 after 20,000 steps; the correct value is 0.865.
Gradients of 8, 64 and 384 ranks that were summed one after the other in bfloat16 were 0.4, 0.9 and 2.0 % off.
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
        "PyTorch documentation: FSDP2, docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
        "measured with torch 2.13 on the CPU",
    ),
)
