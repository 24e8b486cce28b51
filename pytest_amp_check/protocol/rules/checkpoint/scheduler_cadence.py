"""AMP403 scheduler-cadence."""

from __future__ import annotations

from ...events import BACKWARD, SCALER_STEP, SCHEDULER_STEP, STEP_FOLLOWED, Event, Program
from ...rule import INFO, WARNING, Labels, Rule, ViolationKind


def _check_cadence(event: Event, program: Program) -> Labels:
    if event.attributes.get("idle"):
        yield "scheduler:micro-batch", {}
    elif event.attributes.get("skipped"):
        yield "scheduler:skipped", {}


def _check_step_followed(event: Event, program: Program) -> Labels:
    if event.attributes.get("skipped"):
        yield f"{event.attributes['how']}:skipped", {}


RULE = Rule(
    "AMP403",
    "scheduler-cadence",
    INFO,
    "The learning rate moves on although the optimizer did not step.",
    on_by_default=False,
    event_checks={SCHEDULER_STEP: _check_cadence, STEP_FOLLOWED: _check_step_followed},
    prescan_words=("scaler",),
    violations={
        "scheduler:skipped": ViolationKind(
            "The learning rate of `{optimizer}` moves on even where its step is skipped: "
            "step the scheduler only where `{scaler}.get_scale()` did not fall in `{scaler}.update()`",
            trace_kinds=(SCALER_STEP,),
            in_next_iteration=True,
            yields_to=("scheduler:micro-batch",),
            is_proven=True,
        ),
        "followed:skipped": ViolationKind(
            "`{call}` goes on as if `{optimizer}` had stepped, though its step was skipped: "
            "call it only where `{scaler}.get_scale()` did not fall in `{scaler}.update()`",
            is_proven=True,
        ),
        "average:skipped": ViolationKind(
            "`{call}` counts the weights once more even where the step of `{optimizer}` is skipped: "
            "call it only where `{scaler}.get_scale()` did not fall in `{scaler}.update()`",
            trace_kinds=(SCALER_STEP,),
            in_next_iteration=True,
        ),
        "averaged:skipped": ViolationKind(
            "`{call}` averages weights over processes and counts a step, though that of `{optimizer}` was skipped "
            "here, and may not have been elsewhere: let all processes skip it or none, by the greatest `found_inf` of "
            "all",
            is_proven=True,
        ),
        "left-out:skipped": ViolationKind(
            "`{call}` was skipped, and left out that `{optimizer}` averages weights over processes: those that do not "
            "skip wait for this one, or average with another step of it; let all processes skip it or none, by the "
            "greatest `found_inf` of all",
            WARNING,
            is_proven=True,
        ),
        "scheduler:micro-batch": ViolationKind(
            "`{call}` moves the learning rate on in every micro-batch, though the optimizer steps once in a window of "
            "several: step the scheduler where the optimizer steps",
            WARNING,
            trace_kinds=(BACKWARD,),
            in_next_iteration=True,
        ),
    },
    rationale="""\
A schedule that counts optimizer steps (warm-up, one-cycle, cosine over all steps) is stepped beside
`scaler.step(optimizer)`, which may have skipped. Every skipped step then costs a part of the schedule, most of all a
warm-up, where the first overflows fall. Inside an accumulation window the schedule runs as many times too fast as the
window has micro-batches. torch warns only if the very first step is skipped, and never with a fused optimizer. The
return value of `scaler.step()` does not tell: compare the scale before and after `update()`.

What else goes with a step goes on as well: an average of the weights, torch's own or one that the program makes by
hand, counts them once more, and the hooks of a fused
optimizer, whose `step` runs even when it is skipped, are called. Local SGD has processes step on gradients of their
own and averages their weights now and then, so that each process skips by itself: an averager that is called beside
`scaler.step` averages weights of different numbers of steps, and `PostLocalSGDOptimizer`, which averages in its own
step, leaves it out on the process that skips, while the others wait. A run in which a step was skipped shows these,
and a schedule that has moved on, without the rule being selected.
""",
    harm="""\
With 1 and 3 skipped steps the schedule had moved 10 times where the optimizer had stepped 9 and 7 times. Stepped in
every micro-batch of windows of 4, a linear schedule had reached a learning rate of 0 after 25 optimizer steps, where
0.75 of it was meant to be left.
""",
    bad_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(16, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=8)
batches = [(torch.randn(32, 16), size * torch.randn(32, 1)) for size in (100, 100, 1, 1, 1, 1, 1, 1)]

for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()  # AMP403
""",
    good_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(16, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=8)
batches = [(torch.randn(32, 16), size * torch.randn(32, 1)) for size in (100, 100, 1, 1, 1, 1, 1, 1)]

for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scale = scaler.get_scale()
    scaler.update()
    if scaler.get_scale() >= scale:
        scheduler.step()
""",
    fix_advice="Step the scheduler under the condition of the optimizer's step, and not after a step that was skipped.",
    sources=(
        "PyTorch docs, torch.optim: How to adjust learning rate",
        "pytorch/pytorch#67590 and Lightning-AI/pytorch-lightning#18828: schedulers and skipped steps",
        "measured: learning rates after skipped steps, and in windows of 4 micro-batches",
    ),
)
