"""AMP403 scheduler-cadence."""

from __future__ import annotations

from ...event_graph import Program
from ...events import Backward, FollowingEvent, ScalerStep, SchedulerStep, Step, StepFollowed
from ...rule import INFO, WARNING, Certainty, Edit, Labels, Precedence, Rule, TraceContext, ViolationKind


def _check_cadence(event: FollowingEvent, program: Program) -> Labels:
    if isinstance(event, SchedulerStep) and event.idle:
        yield "scheduler:micro-batch", {}
    elif event.skipped:
        yield "scheduler:skipped", {}


def _check_step_followed(event: FollowingEvent, program: Program) -> Labels:
    if isinstance(event, StepFollowed) and event.skipped:
        yield f"{event.how}:skipped", {}


RULE = Rule(
    "AMP403",
    "scheduler-cadence",
    INFO,
    "The learning rate moves on although the optimizer did not step.",
    effect="each skipped step costs a part of the schedule, most of all in the warm-up; no error",
    on_by_default=False,
    event_checks={SchedulerStep: _check_cadence, StepFollowed: _check_step_followed},
    prescan_words=("scaler",),
    violations={
        "scheduler:skipped": ViolationKind(
            "The learning rate of `{optimizer}` moves on even if its step is skipped: step the scheduler only if "
            "`{scaler}.get_scale()` did not fall in `{scaler}.update()`",
            trace_kinds=(ScalerStep,),
            in_next_iteration=True,
            precedence=Precedence(yields_to=("scheduler:micro-batch",)),
            certainty=Certainty(is_proven=True),
        ),
        "followed:skipped": ViolationKind(
            "`{call}` runs although the step of `{optimizer}` was skipped: call it only if `{scaler}.get_scale()` did "
            "not fall in `{scaler}.update()`",
            effect="the call acts as if the weights had changed; its counts drift from the real steps; no error",
            certainty=Certainty(is_proven=True),
        ),
        "average:skipped": ViolationKind(
            "`{call}` adds the same weights to the average again if the step of `{optimizer}` is skipped: call it "
            "only if `{scaler}.get_scale()` did not fall in `{scaler}.update()`",
            effect="the average counts old weights once more after each skipped step: a small error",
            trace_kinds=(ScalerStep,),
            in_next_iteration=True,
        ),
        "averaged:skipped": ViolationKind(
            "`{call}` averages weights over processes, but this process skipped the step of `{optimizer}`, and others "
            "may not have: reduce `found_inf` with max over all processes, so that all skip together",
            effect="weights of different numbers of steps are averaged; no error",
            certainty=Certainty(is_proven=True),
        ),
        "left-out:skipped": ViolationKind(
            "`{call}` was skipped, so this process missed the weight average of `{optimizer}`, for which other "
            "processes wait: reduce `found_inf` with max over all processes, so that all skip together",
            WARNING,
            effect="the other processes wait for this one: the run hangs",
            certainty=Certainty(is_proven=True),
        ),
        "scheduler:micro-batch": ViolationKind(
            "`{call}` moves the learning rate in every micro-batch, although the optimizer steps once per window: "
            "move this statement to after the step of the optimizer",
            WARNING,
            effect="the schedule runs k times too fast for k micro-batches: its end comes after a k-th of the steps",
            trace_kinds=(Backward,),
            in_next_iteration=True,
            trace_context=TraceContext(edits=(Edit("move it here, after this step", (ScalerStep, Step)),)),
        ),
    },
    rationale="""\
A schedule that counts optimizer steps (warm-up, one-cycle, cosine over all steps) is stepped beside
`scaler.step(optimizer)`, which may have skipped. Every skipped step then costs a part of the schedule. Warm-up suffers
most, because the first overflows happen there. Inside an accumulation window the schedule runs too fast, by the number
of micro-batches in the window. torch warns only if the very first step is skipped, and never with a fused optimizer.
The return value of `scaler.step()` does not tell: compare the scale before and after `update()`.
Other actions that follow a step go on as well. An equal average of the weights (`AveragedModel`) counts them once more.
An exponential average and a momentum encoder are not reported: they move towards the weights as they are. The hooks of
a fused optimizer run, because its `step` runs even when it is skipped. In local SGD, processes step on their own
gradients and average their weights now and then, so each process skips alone. An averager that is called beside
`scaler.step` then averages weights of different numbers of steps. `PostLocalSGDOptimizer` averages in its own step: the
process that skips leaves the average out, and the others wait. A run with a skipped step reports these cases, and a
schedule that has moved on, even if the rule is not selected.
""",
    harm="""\
With 1 and 3 skipped steps the schedule had moved 10 times, and the optimizer had stepped 9 and 7 times. A linear
schedule was stepped in every micro-batch of windows of 4. After 25 optimizer steps it had reached a learning rate of 0,
instead of 0.75 of the initial rate.
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
    fix_advice="Step the scheduler under the condition of the optimizer's step, and not after a skipped step.",
    sources=(
        "PyTorch docs, torch.optim: How to adjust learning rate",
        "pytorch/pytorch#67590 and Lightning-AI/pytorch-lightning#18828: schedulers and skipped steps",
        "measured: learning rates after skipped steps, and in windows of 4 micro-batches",
    ),
)
