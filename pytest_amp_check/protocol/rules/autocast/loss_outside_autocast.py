"""AMP104 loss-outside-autocast."""

from __future__ import annotations

from ...event_graph import Program
from ...events import Forward, Loss
from ...rule import BOTH, INFO, WARNING, Cause, Certainty, Labels, Rule, TraceContext, ViolationKind


def _check_loss_in_forward(event: Loss, program: Program) -> Labels:
    if event.in_forward and event.low_precision:
        yield event.label_outside, {}


RULE = Rule(
    "AMP104",
    "loss-outside-autocast",
    WARNING,
    "The loss is computed outside autocast from a low-precision output.",
    effect="the loss has only 3 digits, and a loss above 65504 is infinite; no error",
    effect_cases={
        "scaling=live": (
            "each time the scale grows to 65536, which float16 cannot hold, a step is skipped and the scale halves"
        ),
    },
    detected_by=BOTH,
    event_checks={Loss: _check_loss_in_forward},
    prescan_words=("autocast",),
    violations={
        "loss@outside": ViolationKind(
            "`{call}` computes the loss outside autocast, in float16, where a scaled gradient "
            "overflows: pass `{output}.float()` for `{output}`, or move this line "
            "into the region of the forward",
            trace_kinds=(Forward,),
            cause=Cause(only_reads=True),
            trace_context=TraceContext(region_around=Forward),
        ),
        "loss@outside-bf16": ViolationKind(
            "`{call}` computes the loss outside autocast, in bfloat16 with its 8 bits of precision: "
            "pass `{output}.float()` for `{output}`, or move this line into the region of the forward",
            INFO,
            effect="the loss and its gradients keep only 2 to 3 digits; nothing overflows, no error",
            trace_kinds=(Forward,),
            cause=Cause(only_reads=True),
            trace_context=TraceContext(region_around=Forward),
        ),
        "loss@outside-choice": ViolationKind(
            "`{call}` computes the loss outside autocast, in the low dtype of the region, float16 or "
            "bfloat16: pass `{output}.float()` for `{output}`, or move this line "
            "into the region of the forward",
            effect=(
                "the loss has only 2 to 3 digits; in float16, each growth of the scale to 65536 also costs a "
                "skipped step"
            ),
            trace_kinds=(Forward,),
            cause=Cause(only_reads=True),
            certainty=Certainty(is_possible=True, assumption="the run enters this autocast region"),
            trace_context=TraceContext(region_around=Forward),
        ),
    },
    rationale="""\
Inside a region autocast runs loss functions in float32. Outside, the loss of a float16 output is a float16 loss. It
rounds to 11 bits, and sums overflow at 65504. The backward starts with the loss scale as its gradient, which does not
fit in float16 once the scale reaches 65536. Losses whose float32 target has the shape of the output (`mse_loss`,
`l1_loss`, `binary_cross_entropy_with_logits`) are safe, because promotion makes them float32; `cross_entropy` is not.
""",
    harm="""\
The gradient of a float16 loss at the scale 65536 is inf, so the scale could never exceed 32768. With a growth interval
of 5, 17 of 100 steps were skipped; with the loss inside the region, 8 were. A per-sample float16 loss times 65536 was
immediately inf.
""",
    bad_example="""\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
x, y = torch.randn(64, 8), torch.randint(2, (64,))

for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        output = model(x)
    loss = nn.functional.cross_entropy(output, y)  # AMP104
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print(loss.dtype, scaler.get_scale())
""",
    good_example="""\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
x, y = torch.randn(64, 8), torch.randint(2, (64,))

for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        output = model(x)
        loss = nn.functional.cross_entropy(output, y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print(loss.dtype, scaler.get_scale())
""",
    fix_advice="Indent the loss into the autocast block, or call `.float()` on the model's output before the loss.",
    sources=(
        (
            "PyTorch documentation: torch.autocast, docs.pytorch.org/docs/stable/amp.html: autocast should wrap "
            "the forward pass and the loss"
        ),
        "measured with torch 2.4 and 2.13 on the CPU",
    ),
)
