"""AMP215 zero-grad-misplaced."""

from __future__ import annotations

from ...events import Backward, ScalerStep, Step, ZeroGrad
from ...rule import ERROR, WARNING, Cause, Certainty, Edit, Precedence, Rule, TraceContext, ViolationKind

RULE = Rule(
    "AMP215",
    "zero-grad-misplaced",
    ERROR,
    "Gradients are cleared before the step that needs them, or never.",
    effect="each step also applies the gradients of all earlier steps, so updates are wrong, and grow; no error",
    effect_cases={
        "step=scaler": (
            "each step also applies all earlier gradients; after one overflow every later step is skipped; no error"
        ),
    },
    prescan_words=("scaler",),
    violations={
        "step@discarded": ViolationKind(
            "Gradients of `{optimizer}` are cleared between backward and `{scaler}.step({optimizer})`: "
            "move this statement to after the step",
            effect=(
                "no gradient is left: torch raises AssertionError at the step; after `set_to_none=False` "
                "nothing is trained"
            ),
            cause=Cause(ZeroGrad),
            trace_kinds=(Backward,),
            precedence=Precedence(needs_every_path=True),
            trace_context=TraceContext(edits=(Edit("move it here, after this step", (ScalerStep,)),)),
        ),
        "plain-step@discarded": ViolationKind(
            "Gradients of `{optimizer}` are cleared between backward and its step: move this statement to after the "
            "step",
            effect="no gradient is left for the step, so nothing is trained; no error",
            cause=Cause(ZeroGrad),
            trace_kinds=(Backward,),
            precedence=Precedence(needs_every_path=True),
            any_precision=True,
            trace_context=TraceContext(edits=(Edit("move it here, after this step", (Step,)),)),
        ),
        "backward@stale": ViolationKind(
            "Gradients of `{optimizer}` are not cleared between a step and the next backward: write "
            "`{optimizer}.zero_grad()` after the step, so in every iteration",
            WARNING,
            in_next_iteration=True,
            exemption="cleared-elsewhere",
            any_precision=True,
            trace_context=TraceContext(
                begins_with=(Step, ScalerStep),
                edits=(
                    Edit("write `{optimizer}.zero_grad()` after this step", (Step, ScalerStep), is_always_shown=True),
                ),
            ),
        ),
        "backward@stale-again": ViolationKind(
            "Gradients of `{optimizer}` are not cleared in the analyzed code, although every call of this function "
            "steps it: write `{optimizer}.zero_grad()` in the line before this one, unless the caller clears",
            WARNING,
            trace_kinds=(ScalerStep,),
            in_next_iteration=True,
            certainty=Certainty(
                is_possible=True, missing_method="zero_grad", assumption="the caller does not clear the gradients"
            ),
            exemption="cleared-elsewhere",
            any_precision=True,
        ),
        "backward@leftover": ViolationKind(
            "The step of `{optimizer}` also applies gradients that an earlier loss, of another optimizer, left in its "
            "parameters: write `{optimizer}.zero_grad()` in the line before this one",
            WARNING,
            effect="the step also applies gradients of the other loss, so one training disturbs the other; no error",
            trace_kinds=(Backward, Step, ScalerStep),
            certainty=Certainty(is_possible=True, assumption="both losses reach the same parameters"),
            exemption="cleared-elsewhere",
            any_precision=True,
        ),
    },
    rationale="""\
`zero_grad()` between backward and `scaler.step()` leaves nothing to apply. With the default `set_to_none=True` torch
raises (`No inf checks were recorded for this optimizer.`). With `set_to_none=False`, or if other parameters still have
gradients, nothing raises. A step without a scaler never raises, and trains nothing. Without any `zero_grad()` AMP hides
the usual symptom. After a step the old gradients are unscaled and the new ones are 65536 times as large. The step sizes
look right until an overflow stays in `.grad`.
Without a scaler, as in bfloat16, every step applies the gradients of all earlier batches once more.
The loss of a generator passes through the discriminator and leaves gradients there. If the discriminator's gradients
are cleared only after its own step, this step applies both losses, and the discriminator also learns to be fooled.
""",
    harm="""\
With `set_to_none=False` between backward and step the update was exactly 0, without an error (AdamW still decayed its
weights). With the default torch raises AssertionError. With no `zero_grad()` at all, three steps measured 4.459e-3,
4.436e-3 and 4.415e-3 (correct: 4.459, 4.436, 4.414); with the scaler disabled, the same code grew to 13.29e-3. After a
single overflow the infinity never left `.grad`. Every later step was skipped, and the scale fell from 65536 to 512 in
seven iterations and on towards 0.
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
    optimizer.zero_grad(set_to_none=False)  # AMP215
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
    scaler.step(optimizer)
    scaler.update()
""",
    fix_advice="Call `optimizer.zero_grad()` once in every iteration, before backward or after the step.",
    sources=(
        "torch/amp/grad_scaler.py: step() raises when no gradient was checked",
        "nerfstudio-project/nerfstudio#1919: an optimizer whose gradients are all None",
        "measured: update sizes with zero_grad between backward and step, and without any",
    ),
)
