"""AMP802 not-finite."""

from __future__ import annotations

from ...event_graph import Program
from ...events import NotFinite
from ...rule import ERROR, RUNTIME, Labels, Precedence, Rule, ViolationKind


def _check_not_finite(event: NotFinite, program: Program) -> Labels:
    yield f"not-finite:{event.how}", {"buffers": event.buffers}


RULE = Rule(
    "AMP802",
    "not-finite",
    ERROR,
    "A loss, a gradient, a parameter or a statistic becomes NaN or infinite.",
    effect="without a GradScaler the weights become NaN for good; with one, this step is skipped",
    effect_cases={
        "scaling=live": (
            "the scaler skips this step and halves its scale; if it happens again and again, nothing is trained"
        ),
    },
    detected_by=RUNTIME,
    event_checks={NotFinite: _check_not_finite},
    violations={
        "not-finite:overflow": ViolationKind(
            "`{op}` in {where} produces the first non-finite value in step {step} ({values}), because "
            "{reason}{buffers}: compute it in float32, or make its operands smaller"
        ),
        "not-finite:domain": ViolationKind(
            "`{op}` in {where} produces the first non-finite value in step {step} ({values}), because it is "
            "{reason}{buffers}: bound its operand, or add an epsilon that the dtype can represent"
        ),
        "not-finite:alignment": ViolationKind(
            "`{op}` in {where} is infinite in step {step}, because a target is longer than its input can "
            "produce{buffers}: pass `zero_infinity=True`, or leave out such samples"
        ),
        "not-finite:no-alignment": ViolationKind(
            "`{call}` is infinite for every sample of the first {count} batches (long targets), and `zero_infinity` "
            "hides it: shorten the inputs less, or leave out such samples",
            effect="these samples train nothing, and the loss does not show it",
        ),
        "not-finite:mask": ViolationKind(
            "`{op}` in {where} produces NaN in step {step} ({values}), because {reason}{buffers}: leave at least one "
            "entry of each row unmasked, or fill with the smallest finite number of the dtype"
        ),
        "not-finite:infinity": ViolationKind(
            "`{op}` in {where} fills in or multiplies by an infinity, which makes the loss infinite in step "
            "{step}{buffers}: leave those entries out of the loss, or use a finite number"
        ),
        "not-finite:product": ViolationKind(
            "`{op}` in {where} multiplies zero by an infinity in step {step}, which is NaN{buffers}: fill by "
            "`masked_fill` or `torch.where` in place of the product"
        ),
        "not-finite:input": ViolationKind(
            "The input of {where} contains non-finite values in step {step} ({what}){buffers}: check this batch and "
            "its preprocessing",
            precedence=Precedence(consequence_of="AMP214"),
        ),
        "not-finite:parameter": ViolationKind(
            "`{name}` of {where} is the first non-finite value of step {step}, and non-finite since step {since} "
            "({reason}): find the code that wrote to it",
            effect="every loss since then is NaN; no later step repairs it",
            precedence=Precedence(consequence_of="AMP2"),
        ),
        "not-finite:state": ViolationKind(
            "The optimizer's step {since} makes `{name}` of {where} non-finite, because {reason}: keep parameters and "
            "optimizer state in float32, and check the loaded state",
            effect="every loss since then is NaN; no later step repairs it",
            precedence=Precedence(consequence_of="AMP2"),
        ),
        "not-finite:rate": ViolationKind(
            "`{op}` in {where} produces the first non-finite value in step {step}, because {reason} after step "
            "{since}: lower the learning rate, warm it up, or clip the gradients",
            precedence=Precedence(consequence_of="AMP2"),
        ),
        "not-finite:grown": ViolationKind(
            "`{op}` in {where} produces the first non-finite value in step {step}, from weights up to {greatest}, "
            "because {reason}: keep parameters and optimizer state in float32, and check the loaded state",
            precedence=Precedence(consequence_of="AMP2"),
        ),
        "not-finite:underflow": ViolationKind(
            "`{op}` in {where} produces the first non-finite value in step {step} ({values}), because it is "
            "{reason}{buffers}: compute both in float32"
        ),
        "not-finite:statistic": ViolationKind(
            "`{name}` of {where} becomes NaN or infinite in step {step}, and evaluation will use it ({reason}): keep "
            "the inputs of this module finite, and its batches larger than one",
            effect="evaluation gives NaN, although training looks healthy",
        ),
        "not-finite:buffer": ViolationKind(
            "`{name}` of {where} becomes NaN or infinite in step {step}, and later steps will use it ({reason}): "
            "compute its update in float32, in a region with `enabled=False`",
            effect="every later step that reads it is NaN",
        ),
        "not-finite:gradient": ViolationKind(
            "The gradient of `{op}` in {where} is the first non-finite value of step {step} ({values}), because "
            "{reason}: compute it in float32, or bound its operands"
        ),
        "not-finite:hidden": ViolationKind(
            "`{op}` overflows float16 in step {step}, and a division by its infinity (line {line}) hides it as zero: "
            "compute it in float32, or make its operands smaller",
            effect="the result is silently 0 where it should not be, and its inputs get no gradient",
        ),
        "not-finite:derivative": ViolationKind(
            "`{call}` returns NaN or infinity in step {step}, and the scaler, which checks only `.grad`, applies the "
            "step: differentiate the unscaled loss, or skip such a step yourself",
            effect="the weights become NaN, and the scaler does not notice",
        ),
        "not-finite:unexplained": ViolationKind(
            "The {what} of step {step} is not finite; the cause is unknown ({reason}){buffers}: find the first NaN or "
            "infinity before it"
        ),
    },
    rationale="""\
torch does not raise when a number stops being finite. Some ops later the loss and the gradients of every parameter are
NaN. Without a scaler, the optimizer then writes NaN into all parameters: every later step is lost, and nothing shows
the first bad step. A scaler skips such steps, and halves its scale for nothing. The recorder checks the loss and the
gradients of each step. It replays the first bad step with every op watched, and reports the first bad op with its
operands. Overflows that the loss scale causes are only counted, because the scaler skips them. So are numbers that are
too large already, or beyond float32, in a step before the scaler's first step. Other causes of a NaN or infinite loss,
such as a batch with such values, are reported even if a scaler skips the step. An infinity that a program fills in, as
masks do, is correct unless it reaches the loss. A loss that is multiplied by an infinity, as in tests of skipped steps,
is reported only if the scaler skips every one of several steps. The location is in the program, also if a framework or
an installed package runs the op.
""",
    harm="""\
A division by zero in one step of eight made the loss NaN. All parameters after that step, and the loss of each later
step, were NaN.
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
    fix_advice=(
        "Read the op, its operands and its line in the message, and keep the operands or the result of that op in "
        "range."
    ),
    sources=(
        "PyTorch docs, torch.amp: gradients that are not finite are skipped by a GradScaler, and by nothing else",
        "torch/amp/grad_scaler.py: unscale_() looks at gradients alone, not at the loss, statistics or parameters",
        "measured: losses and parameters after one division by zero",
    ),
)
