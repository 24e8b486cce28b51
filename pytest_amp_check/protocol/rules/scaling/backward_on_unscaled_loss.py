"""AMP203 backward-on-unscaled-loss."""

from __future__ import annotations

from ...event_graph import Program
from ...events import Backward, Event, GradientIgnored
from ...fix import SAFE
from ...rule import ERROR, WARNING, Cause, Certainty, Edit, Labels, Rule, TraceContext, ViolationKind


def _check_event(event: Event, program: Program) -> Labels:
    if isinstance(event, GradientIgnored):
        yield "function:ignores-gradient", {}
    elif isinstance(event, Backward) and event.beside:
        yield "backward:beside", {"scaler": event.beside}


def _may_be_scaled_by_caller(event: Event | None) -> bool:
    return isinstance(event, Backward) and event.scaling.may_be_scaled_by_caller


RULE = Rule(
    "AMP203",
    "backward-on-unscaled-loss",
    ERROR,
    "A loss runs backward unscaled although its gradients are stepped by a scaler.",
    effect="the step divides these gradients by the scale (65536 by default), so updates are too small; no error",
    effect_cases={
        "optimizer_class=sgd": (
            "the step divides these gradients by the scale (65536 by default): SGD hardly moves; no error"
        ),
        "optimizer_class=adam": (
            "the step divides these gradients by the scale (65536 by default): Adam's updates halve; no error"
        ),
    },
    applicability=SAFE,
    event_checks={Backward: _check_event, GradientIgnored: _check_event},
    prescan_words=("scaler", "custom_bwd", "optim_wrapper .backward(", "training_step( .backward( Trainer)"),
    violations={
        "step@raw": ViolationKind(
            "`{loss}` is not scaled, but `{scaler}.step({optimizer})` divides its gradients by the loss scale: write "
            "`{scaler}.scale({loss}).backward()`",
            cause=Cause(Backward, unscaled_only=True, label_overrides=((_may_be_scaled_by_caller, "step@raw-given"),)),
            trace_kinds=(Backward,),
            trace_context=TraceContext(edits=(Edit("write it here, in place of this call", (Backward,)),)),
        ),
        "step@raw-given": ViolationKind(
            "`{loss}` is not scaled, but `{scaler}.step({optimizer})` divides its gradients by the loss scale: write "
            "`{scaler}.scale({loss}).backward()`, unless the caller passes a scaled loss",
            certainty=Certainty(missing_method="scale", assumption="the caller passes an unscaled loss"),
        ),
        "backward:beside": ViolationKind(
            "`{loss}` runs backward unscaled, but `{scaler}` divides its gradients by the scale, and no method of its "
            "class scales it: write `{scaler}.scale({loss}).backward()`",
            certainty=Certainty(missing_method="scale", assumption="the caller passes an unscaled loss"),
        ),
        "function:ignores-gradient": ViolationKind(
            "`{function}` returns gradients in backward without the received `{gradient}`, which holds the loss scale: "
            "multiply them by `{gradient}`",
            WARNING,
            certainty=Certainty(is_possible=True, assumption="a GradScaler scales the loss behind `{function}`"),
        ),
        "step@raw-framework": ViolationKind(
            "`{loss}` is not scaled, but {framework} divides its gradients by the loss scale: {advice}"
        ),
    },
    rationale="""\
`scaler.step()` divides every gradient of its optimizer by the loss scale. It cannot know that a gradient was never
multiplied by the scale. torch notices only when `scale()` was never called at all (`Attempted step but _scale is
None`). As soon as one loss of the program is scaled, an unscaled loss passes silently, and its small gradients have no
protection from underflow. An autograd.Function whose backward returns a gradient of its own, and ignores the received
one, leaves the scale behind as well: `scale(loss)` reaches the gradients only through what backward receives.
""",
    harm="""\
SGD's update became 65536 times too small (measured ratio 1.58e-5), Adam's half as large (0.498). Nothing raises once
the scaler has scaled any other loss.
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
    critic_loss.backward()  # AMP203
    scaler.step(actor_optimizer)
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
    fix_advice="Run every loss with `scaler.scale(loss).backward()` if the scaler steps its parameters.",
    sources=(
        (
            "PyTorch docs, Automatic Mixed Precision examples: Working with multiple models, losses, and "
            "optimizers (each loss is scaled)"
        ),
        "torch/amp/grad_scaler.py: step() unscales whatever it finds",
        "measured: update ratio 1.58e-5 with SGD, 0.498 with Adam",
    ),
)
