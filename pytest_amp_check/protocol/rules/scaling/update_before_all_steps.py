"""AMP207 update-before-all-steps."""

from __future__ import annotations

from ...event_graph import Program
from ...events import Backward, Event, ScalerStep, Update
from ...fix import SAFE
from ...rule import ERROR, INFO, Cause, Certainty, Edit, Labels, Precedence, Rule, TraceContext, ViolationKind


def _sets_scale(event: Event | None) -> bool:
    return isinstance(event, Update) and event.new_scale


def _check_each_update(event: Update, program: Program) -> Labels:
    if event.for_each:
        yield "update@each", {}


_AFTER_LAST_STEP = TraceContext(
    edits=(Edit("this step comes later: write `{scaler}.update()` after it, unless one follows", (ScalerStep,)),)
)

RULE = Rule(
    "AMP207",
    "update-before-all-steps",
    ERROR,
    "scaler.update() runs while an optimizer still holds gradients of the old scale, or without any step before it.",
    effect="after each overflow or growth of the scale, one update is 2 times too large or too small; no error",
    applicability=SAFE,
    event_checks={Update: _check_each_update},
    prescan_words=("scaler",),
    violations={
        "update@pending-framework": ViolationKind(
            "{framework} updates its one loss scale in each step, but `{optimizer}` still holds gradients of the old "
            "scale: {advice}",
            trace_kinds=(Backward,),
        ),
        "update@pending": ViolationKind(
            "`{scaler}.update()` changes the scale before the step of `{optimizer}`, which then divides by the wrong "
            "scale: leave it out here, and write it once, after the last step of the iteration",
            cause=Cause(Update, label_overrides=((_sets_scale, "update@new-scale"),)),
            trace_kinds=(Backward,),
            trace_context=_AFTER_LAST_STEP,
            exemption="another-scaler",
        ),
        "update@each": ViolationKind(
            "`{scaler}.update()` runs for each optimizer of `{iterable}`, so the next ones divide by a changed scale: "
            "move this statement to after the loop",
            certainty=Certainty(is_possible=True, assumption="`{iterable}` holds several optimizers"),
        ),
        "update@new-scale": ViolationKind(
            "`{scaler}.update()` sets a new scale while `{optimizer}` may hold gradients of the old scale, inside a "
            "window: set the scale after a step, before the next backward",
            INFO,
            effect="this window's update is too large or too small by the ratio of the two scales; no error",
            trace_kinds=(Backward,),
        ),
        "update@aged": ViolationKind(
            "`{scaler}.update()` changes the scale before `{optimizer}` is stepped, which may still hold gradients of "
            "the old scale: leave it out here, and write it once, after the last step of the iteration",
            cause=Cause(Update),
            trace_kinds=(Backward,),
            trace_context=_AFTER_LAST_STEP,
            exemption="another-scaler",
            certainty=Certainty(
                is_possible=True, assumption="`{optimizer}` still holds gradients of an earlier backward"
            ),
        ),
        "update@left-out": ViolationKind(
            "`{scaler}.update()` also runs where `{scaler}.step({optimizer})` is skipped, and raises without a "
            "recorded inf check: put it under the condition of the step, or call `unscale_` on those paths",
            effect="the first iteration without a step raises AssertionError and ends the run",
            trace_kinds=(Backward,),
        ),
        "update@nothing-framework": ViolationKind(
            "`{call}` runs after {framework} has stepped and updated its scale, so torch raises: {advice}",
            effect="torch raises AssertionError (No inf checks were recorded), which ends the run",
            precedence=Precedence(needs_every_path=True),
        ),
        "update@nothing": ViolationKind(
            "`{scaler}.update()` runs without a step or unscale_ since the last update, so torch raises: move it to "
            "after `{scaler}.step({optimizer})`, or leave it out if one follows there",
            effect="torch raises AssertionError (No inf checks were recorded), which ends the run",
            precedence=Precedence(needs_every_path=True),
        ),
    },
    rationale="""\
Gradients carry the scale of their backward, and `step()` divides by the current scale. An `update()` between the steps
of two optimizers may double or halve the scale. The second step then divides by the wrong number. The update also makes
the scaler forget the first optimizer's overflow. An update in a loop over optimizers does the same. One `update()`
after all steps is correct, and so is a complete cycle of backward, step and update for each optimizer in turn.
""",
    harm="""\
The second optimizer's update was exactly 2.0 times too large if the first had overflowed, and 0.5 times if the scale
had grown. In all other iterations it was correct, so the mistake is hard to find. An `update()` with no step before it
raises AssertionError `No inf checks were recorded prior to update.`
""",
    bad_example="""\
import torch
from torch import nn

torch.manual_seed(0)
actor, critic = nn.Linear(16, 4), nn.Linear(16, 1)
actor_optimizer = torch.optim.AdamW(actor.parameters(), lr=1e-3)
critic_optimizer = torch.optim.AdamW(critic.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
batches = [(torch.randn(32, 16), torch.randn(32, 4), torch.randn(32, 1)) for _ in range(8)]

for x, action, value in batches:
    actor_optimizer.zero_grad()
    critic_optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        actor_loss = nn.functional.mse_loss(actor(x), action)
        critic_loss = nn.functional.mse_loss(critic(x), value)
    scaler.scale(actor_loss).backward()
    scaler.scale(critic_loss).backward()
    scaler.step(actor_optimizer)
    scaler.update()  # AMP207
    scaler.step(critic_optimizer)
    scaler.update()
""",
    good_example="""\
import torch
from torch import nn

torch.manual_seed(0)
actor, critic = nn.Linear(16, 4), nn.Linear(16, 1)
actor_optimizer = torch.optim.AdamW(actor.parameters(), lr=1e-3)
critic_optimizer = torch.optim.AdamW(critic.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
batches = [(torch.randn(32, 16), torch.randn(32, 4), torch.randn(32, 1)) for _ in range(8)]

for x, action, value in batches:
    actor_optimizer.zero_grad()
    critic_optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        actor_loss = nn.functional.mse_loss(actor(x), action)
        critic_loss = nn.functional.mse_loss(critic(x), value)
    scaler.scale(actor_loss).backward()
    scaler.scale(critic_loss).backward()
    scaler.step(actor_optimizer)
    scaler.step(critic_optimizer)
    scaler.update()
""",
    fix_advice="Step every optimizer that holds scaled gradients, then call `scaler.update()` once.",
    sources=(
        (
            "PyTorch docs, Automatic Mixed Precision examples: Working with multiple models, losses, and "
            "optimizers (update once, at the end)"
        ),
        "PyTorch docs, torch.amp.GradScaler.update",
        "measured: update ratios 2.0, 0.5 and 1.0 of the second optimizer; complete cycles differ by 0.0",
    ),
)
