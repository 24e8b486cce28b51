"""AMP201 clip-before-unscale."""

from __future__ import annotations

from ...event_graph import Program
from ...events import Backward, Clip, Event, ScalerStep, Unscale
from ...fix import SAFE
from ...rule import ERROR, WARNING, Cause, Certainty, Edit, Labels, Rule, TraceContext, ViolationKind


def _check_clip(event: Clip, program: Program) -> Labels:
    if event.copies:
        yield "clip@copies", {"level": str(event.copies)}
    if event.beside:
        yield "clip:beside", {"scaler": event.beside}


def _is_by_hand(event: Event | None) -> bool:
    return isinstance(event, Clip) and event.by_hand


RULE = Rule(
    "AMP201",
    "clip-before-unscale",
    ERROR,
    "Gradients are clipped while they are still multiplied by the loss scale.",
    effect=(
        "gradients are clipped to the limit divided by the scale (65536 by default), so updates are too small; no error"
    ),
    effect_cases={
        "optimizer_class=sgd": (
            "gradients are clipped to the limit divided by the scale (65536 by default): SGD hardly moves; no error"
        ),
        "optimizer_class=adam": (
            "the limit is divided by the scale (65536 by default): updates of Adam, as measured, shrink 2 to 4 times"
        ),
    },
    applicability=SAFE,
    event_checks={Clip: _check_clip},
    prescan_words=("scaler", "LightningModule on_after_backward(", "training_step( clip_grad_ Trainer)"),
    violations={
        "clip@scaled": ViolationKind(
            "`{call}` clips gradients that are still multiplied by the loss scale: "
            "write `{scaler}.unscale_({optimizer})` in the line before it",
            cause=Cause(
                Clip,
                every=True,
                label_overrides=((_is_by_hand, "clip@scaled-by-hand"),),
                label_in_window="clip@scaled-in-window",
            ),
            trace_kinds=(Backward,),
            exemption="unscaled-where-live",
            sparing_kinds=(Unscale,),
        ),
        "clip@scaled-in-window": ViolationKind(
            "`{call}` clips in every micro-batch, where gradients are still multiplied by the loss "
            "scale: move the clip to before `{scaler}.step({optimizer})`, and call "
            "`{scaler}.unscale_({optimizer})` before the clip",
            trace_context=TraceContext(edits=(Edit("move the clip here, before this step{unscaling}", (ScalerStep,)),)),
        ),
        "clip@scaled-callback": ViolationKind(
            "`{call}` clips gradients that are still multiplied by the loss scale, unless a callback unscales them: "
            "write `{scaler}.unscale_({optimizer})` in the line before it",
            cause=Cause(Clip, every=True),
            trace_kinds=(Backward,),
            certainty=Certainty(
                is_possible=True, missing_method="unscale_", assumption="no callback unscales the gradients"
            ),
            exemption="unscaled-where-live",
            sparing_kinds=(Unscale,),
        ),
        "clip@scaled-by-hand": ViolationKind(
            "`{call}` clips gradients by a norm that is still multiplied by the loss scale: call "
            "`{scaler}.unscale_({optimizer})` before the norm is computed",
            trace_kinds=(Backward,),
        ),
        "clip@stepped": ViolationKind(
            "`{call}` clips gradients after `{scaler}.step({optimizer})` has used them, so the clip has no effect: "
            "move it to between `{scaler}.unscale_({optimizer})` and the step",
            effect="gradients are never clipped: a single large one can ruin the weights; no error",
            trace_kinds=(ScalerStep,),
            trace_context=TraceContext(edits=(Edit("move the clip here, before this step{unscaling}", (ScalerStep,)),)),
        ),
        "clip:beside": ViolationKind(
            "`{call}` clips gradients that `{scaler}` keeps multiplied by the loss scale, and no method of its class "
            "unscales them: write `{scaler}.unscale_({optimizer})` in the line before it",
            certainty=Certainty(
                missing_method="unscale_",
                assumption="no other code calls `{scaler}.unscale_()` (search for it: with it, nothing is wrong)",
            ),
        ),
        "clip@scaled-framework": ViolationKind(
            "`{call}` clips gradients that {framework} keeps multiplied by the loss scale: {advice}"
        ),
        "clip:plain-only": ViolationKind(
            "`{clip}` clips gradients only where no scaler is used, so mixed precision trains without "
            "the clip: write `{scaler}.unscale_({optimizer})` and a copy of the clip before this line",
            WARNING,
            effect="with mixed precision gradients are never clipped: a single large one can ruin the weights",
            certainty=Certainty(is_possible=True, assumption="the run uses the scaler"),
            trace_context=TraceContext(edits=(Edit("copy this clip", (Clip,)),)),
        ),
        "clip@copies": ViolationKind(
            "`{call}` has no effect, because opt_level {level} of apex steps float32 copies of these "
            "parameters: pass `amp.master_params({optimizer})` to it in their place",
            effect="gradients are never clipped: a single large one can ruin the weights; no error",
        ),
    },
    rationale="""\
After `scaler.scale(loss).backward()` every gradient is multiplied by the loss scale, 65536 at the start. A clip at that
point compares the scaled norm with `max_norm`, so it always clips. `scaler.step()` then divides the clipped gradients
by the scale: the real threshold is `max_norm / scale`, and it moves whenever the scale moves. Clipping by value also
hides overflows. Infinite gradients become finite before the scaler looks for them, so the step is not skipped and the
scale never backs off.
""",
    harm="""\
With `max_norm=0.1` the gradient norm after the step was 1.526e-6 instead of 0.1, and the reported norm was 4241.6
instead of 0.0647. SGD's update became 43,000 times too small (91,000 times with `max_norm=0.01`). Adam and AdamW
normalise gradients and move only 1.8 to 4.4 times too little, so a loss curve does not show it. With `clip_grad_value_`
SGD's update was 107,000 times too small. With infinite gradients in every iteration the scale stayed at 65536 forever;
a correct loop backs off to 4096 within four iterations.
""",
    bad_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
batches = [(torch.randn(32, 16), torch.randn(32, 1)) for _ in range(8)]

for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.1)  # AMP201
    scaler.step(optimizer)
    scaler.update()
""",
    good_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
batches = [(torch.randn(32, 16), torch.randn(32, 1)) for _ in range(8)]

for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.1)
    scaler.step(optimizer)
    scaler.update()
""",
    fix_advice="Call `scaler.unscale_(optimizer)` between backward and the clip; `scaler.step()` does not unscale "
    "again.",
    sources=(
        "PyTorch docs, Automatic Mixed Precision examples: Gradient clipping",
        "in public code: pytorch/examples#1196, milesial/Pytorch-UNet#468, Lightning-AI/pytorch-lightning#9330",
        "measured: gradient norms and update sizes of the same model with and without unscale_",
    ),
)
