"""AMP802 not-finite."""

from __future__ import annotations

from ...events import NOT_FINITE, Event, Program
from ...rule import ERROR, RUNTIME, Labels, Rule, ViolationKind


def _check_not_finite(event: Event, program: Program) -> Labels:
    yield f"not-finite:{event.attributes['how']}", {}


RULE = Rule(
    "AMP802",
    "not-finite",
    ERROR,
    "A loss, a gradient, a parameter or a statistic becomes NaN or infinite.",
    detected_by=RUNTIME,
    event_checks={NOT_FINITE: _check_not_finite},
    violations={
        "not-finite:overflow": ViolationKind(
            "In step {step}, `{op}` in {where} is the first to give what is not finite, from finite operands "
            "({values}), because {reason}: compute it in float32, or make its operands smaller before it"
        ),
        "not-finite:domain": ViolationKind(
            "In step {step}, `{op}` in {where} is the first to give what is not finite, from finite operands "
            "({values}), because it is {reason}: keep its operand away from there, by a bound or an epsilon that its "
            "dtype can hold"
        ),
        "not-finite:mask": ViolationKind(
            "In step {step}, `{op}` in {where} gives NaN ({values}), because {reason}: leave at least one entry of "
            "each row unmasked, or fill with the least finite number of the dtype"
        ),
        "not-finite:input": ViolationKind(
            "In step {step}, the input of {where} is not finite already ({what}): look at this batch and at how it "
            "is prepared",
            consequence_of="AMP214",
        ),
        "not-finite:parameter": ViolationKind(
            "In step {step}, `{name}` of {where} is not finite, since step {since}, before anything else is "
            "({reason}): look at what has written to it",
            consequence_of="AMP2",
        ),
        "not-finite:state": ViolationKind(
            "The optimizer's step {since} spoils `{name}` of {where}, because {reason}: keep parameters and the "
            "optimizer's state in float32, and look at what was loaded into that",
            consequence_of="AMP2",
        ),
        "not-finite:rate": ViolationKind(
            "In step {step}, `{op}` in {where} is the first to give what is not finite, because {reason} after step "
            "{since}: lower the learning rate, warm it up, or clip the gradients",
            consequence_of="AMP2",
        ),
        "not-finite:statistic": ViolationKind(
            "In step {step}, `{name}` of {where} becomes NaN or infinite, and evaluation will use it ({reason}): keep "
            "the inputs of this module finite, and its batches larger than one"
        ),
        "not-finite:gradient": ViolationKind(
            "In step {step} the loss is finite, and the gradient of `{op}` in {where} is the first that is not "
            "({values}), because {reason}: compute it in float32, or keep its operands away from there by a bound or "
            "an epsilon"
        ),
        "not-finite:unexplained": ViolationKind(
            "In step {step} the {what} is not finite, and where that comes from is not known ({reason}): find the "
            "first NaN or infinity before it"
        ),
    },
    rationale="""\
Nothing is raised where a number stops being finite. The loss is NaN some ops later, the gradients of every parameter
with it, and an optimizer without a scaler then writes NaN into all of them, so that each step after it is lost and no
trace is left of the one that began it. A scaler skips such steps, and halves its scale for nothing. The recorder looks
at the loss and at the gradients of each step, plays the first bad one again with every op watched, and tells which op
came first, of what operands. An overflow that the loss scale causes is skipped by the scaler and is no mistake; nor is
one of numbers that are too large already, nor one that float32 does not have, in a step before the scaler's first one:
they are counted. Whatever else makes the loss itself NaN or infinite, as a batch does that holds such values, is told
of also where a scaler skips the step. An infinity that a program fills in, as masks do, is right.
""",
    harm="""\
A division by zero in one step of eight made the loss NaN, and with it all parameters after that step: the loss of each
step after it was NaN.
""",
    bad_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(16, 4, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
batches = [torch.randn(8, 16) for _ in range(4)]
batches[2][0] = 0.0  # a row of padding

for x in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(x).float()
    unit = out / out.square().sum(dim=1, keepdim=True).sqrt()  # AMP802
    loss = (unit[:, 0] - 1.0).square().mean()
    loss.backward()
    optimizer.step()
""",
    good_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(16, 4, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
batches = [torch.randn(8, 16) for _ in range(4)]
batches[2][0] = 0.0  # a row of padding

for x in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(x).float()
    unit = nn.functional.normalize(out, dim=1, eps=1e-6)
    loss = (unit[:, 0] - 1.0).square().mean()
    loss.backward()
    optimizer.step()
""",
    fix_advice="Read the op, its operands and its line in the message, and keep that op's operands or its result "
    "in range.",
    sources=(
        "PyTorch docs, torch.amp: gradients that are not finite are skipped by a GradScaler, and by nothing else",
        "torch/amp/grad_scaler.py: unscale_() looks at gradients alone, not at the loss, statistics or parameters",
        "measured: losses and parameters after one division by zero",
    ),
)
