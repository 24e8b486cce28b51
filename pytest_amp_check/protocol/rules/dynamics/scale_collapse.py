"""AMP801 scale-collapse."""

from __future__ import annotations

from ...event_graph import Program
from ...events import Event, Update
from ...rule import ERROR, RUNTIME, Labels, Rule, ViolationKind

#: Default initial scale of a GradScaler.
_FIRST_SCALE = 2.0**16


#: Skips in a row that no calibrated scaler needs: the loss would have to grow by a factor of 256 in one step.
_IN_A_ROW = 8


#: Smallest number of steps for which the share of skipped steps is meaningful.
_ENOUGH = 500


#: Allowed skips per growth interval. One skip is the price of growing, so more than three are too many.
_PER_INTERVAL = 3


def _count_warm_up_steps(event: Event, program: Program) -> int:
    """Return the number of first steps that may all be skipped while the scale falls from its initial value."""
    import math

    arguments = {} if event.subject is None else program.objects[event.subject].attributes.arguments
    first = arguments.get("init_scale", _FIRST_SCALE)
    if not isinstance(first, (int, float)) or isinstance(first, bool):
        first = _FIRST_SCALE
    return math.ceil(math.log2(max(_FIRST_SCALE, first))) + 1


def _check_collapse(event: Update, program: Program) -> Labels:
    scale, steps = event.scale, event.steps
    if event.new_scale or scale is None or not steps:
        return
    in_a_row, skips, interval = event.skips_in_a_row, event.skips, event.growth_interval
    warm_up = _count_warm_up_steps(event, program)
    cause = event.cause
    found = f" ({cause[0].lower()}{cause[1:]})" if cause else ""
    grown = max(1.0, steps / interval) if interval > 0 else 1.0
    if scale < 1.0 and in_a_row:
        yield "scale:below-one", {"scale": f"{scale:g}", "skips": str(in_a_row), "cause": found}
    elif steps > warm_up and in_a_row >= _IN_A_ROW:
        yield "scale:skips-in-a-row", {"scale": f"{scale:g}", "skips": str(in_a_row), "cause": found}
    elif steps >= _ENOUGH and skips - warm_up > _PER_INTERVAL * grown:
        yield "scale:skip-rate", {"skips": str(skips), "steps": str(steps), "cause": found}


RULE = Rule(
    "AMP801",
    "scale-collapse",
    ERROR,
    "The loss scale collapses, or steps are skipped again and again.",
    effect="skipped steps train nothing; once the scale is 0, no later step is ever applied",
    detected_by=RUNTIME,
    event_checks={Update: _check_collapse},
    violations={
        "scale:below-one": ViolationKind(
            "`{scaler}` lowered its loss scale to {scale} after {skips} skipped steps in a row, so a lower scale "
            "does not help{cause}: find the NaN or infinity in loss or inputs, or uncleared gradients"
        ),
        "scale:skips-in-a-row": ViolationKind(
            "`{scaler}` has skipped {skips} steps in a row long after calibration, at a scale of {scale}{cause}: find "
            "the NaN or infinity in the loss or inputs, or gradients that are never cleared"
        ),
        "scale:skip-rate": ViolationKind(
            "`{scaler}` has skipped {skips} of {steps} steps, many more than the growth of its scale costs{cause}: "
            "look for batches with a non-finite loss, and for code that raises the scale",
            effect="skipped steps train nothing, so this part of the training time is lost",
        ),
    },
    rationale="""\
A scaler answers an overflow by skipping the step and halving the scale. It cannot tell a float16 overflow from a loss
that is NaN at any scale, or from an infinity that is never cleared from `.grad`. It therefore goes on halving. Nothing
raises, no parameter moves, and the training simply stops. The first 17 or so steps may be skipped, from 65536 down to
the scale that the loss needs. After that, one skip for each growth interval is the price of trying a larger scale. The
limits are this tool's own. They are eight skips in a row, a scale below 1, and more than three skips per growth
interval over at least 500 steps.
""",
    harm="""\
With a loss that was NaN in every iteration the scale fell below 1 after 17 iterations and was 0.0 after 166. From then
on 1 / 0 is infinite and infinity times 0 is NaN, so good batches were skipped too, forever. With one overflow and no
`zero_grad()` the infinity never left `.grad`. Every later step was skipped, and the scale fell from 65536 to 512 within
7 iterations and on towards 0.
""",
    bad_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(16, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")

for _ in range(20):
    x = torch.randn(32, 16)
    y = x.sum(dim=1, keepdim=True).log()  # the logarithm of a negative sum is NaN
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()  # AMP801
""",
    good_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(16, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")

for _ in range(20):
    x = torch.randn(32, 16)
    y = x.sum(dim=1, keepdim=True).abs().log()
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    fix_advice=(
        "Find the first NaN or infinity; `torch.autograd.set_detect_anomaly(True)` names the operation that produced "
        "it."
    ),
    sources=(
        ("PyTorch docs, torch.amp.GradScaler: the scale factor may fall below 1, which the user may want to watch for"),
        "torch/amp/grad_scaler.py: update() halves the scale and never raises",
        "measured: scales under a loss that is NaN, and after one overflow without zero_grad()",
    ),
)
