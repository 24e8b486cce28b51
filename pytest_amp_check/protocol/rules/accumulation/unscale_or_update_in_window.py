"""AMP303 unscale-or-update-in-window."""

from __future__ import annotations

from ...events import Backward, ScalerStep, Unscale
from ...fix import SAFE
from ...rule import ERROR, Cause, Certainty, Edit, Rule, TraceContext, ViolationKind

_UNSCALED_EARLY = (
    "`{scaler}.unscale_({optimizer})` runs before the accumulation window is complete: move it to directly before "
    "`{scaler}.step({optimizer})`"
)
_BEFORE_STEP = Edit("move it here, before this step{with_clip}", (ScalerStep,))


RULE = Rule(
    "AMP303",
    "unscale-or-update-in-window",
    ERROR,
    "unscale_() or update() runs before the accumulation window is complete.",
    effect="scaled gradients count as unscaled, so the step is up to 65536 times too large; no error",
    effect_cases={
        "repeats=always": "torch raises RuntimeError at the unscale_ of the second micro-batch, which ends the run",
        "repeats=updated": (
            "earlier micro-batches are divided again and again, so only the last one of a window counts; no error"
        ),
    },
    applicability=SAFE,
    prescan_words=(".step( backward(",),
    violations={
        "unscale@window": ViolationKind(
            _UNSCALED_EARLY,
            cause=Cause(Unscale),
            trace_kinds=(Unscale, Backward),
            in_next_iteration=True,
            trace_context=TraceContext(shows_window_end=True, edits=(_BEFORE_STEP,)),
        ),
        "unscale@window-framework": ViolationKind(
            "`{call}` unscales before the window is complete, so {framework} takes later scaled gradients for "
            "unscaled ones: {advice}",
            effect="scaled gradients count as unscaled, so the step is up to 65536 times too large; no error",
            certainty=Certainty(is_possible=True),
        ),
        # The same message if no known condition delays the step.
        "step@early": ViolationKind(
            _UNSCALED_EARLY,
            cause=Cause(Unscale),
            trace_kinds=(Unscale, Backward),
            trace_context=TraceContext(edits=(_BEFORE_STEP,)),
        ),
        "update@window": ViolationKind(
            "`{scaler}.update()` runs before the accumulation window is complete: move it to after "
            "`{scaler}.step({optimizer})`",
            effect=(
                "torch raises AssertionError (No inf checks were recorded) at the first micro-batch, which ends the run"
            ),
            trace_kinds=(Backward,),
            exemption="serves-another",
            trace_context=TraceContext(
                shows_window_end=True, edits=(Edit("move it here, after this step", (ScalerStep,)),)
            ),
        ),
    },
    rationale="""\
All micro-batches of a window must be scaled by the same number and unscaled once, together. After `unscale_()` in the
middle, the next backward adds gradients that are 65536 times larger. `update()` in the middle may change the scale from
one micro-batch to the next. Both belong under the condition of the step.
""",
    harm="""\
`unscale_()` after the first of four micro-batches made the update 51,000 times too large, without an error.
`unscale_()` in every micro-batch raises RuntimeError `unscale_() has already been called on this optimizer since the
last update().` With `update()` beside it nothing raises, and the micro-batches counted with weights of about 0, 0,
1.5e-5 and 1. An `update()` alone in every micro-batch raises AssertionError `No inf checks were recorded prior to
update.`
""",
    bad_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu")
batches = [(torch.randn(8, 16), torch.randn(8, 1)) for _ in range(16)]
k = 4

for i, (x, y) in enumerate(batches):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss / k).backward()
    scaler.unscale_(optimizer)  # AMP303
    if (i + 1) % k == 0:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
    good_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu")
batches = [(torch.randn(8, 16), torch.randn(8, 1)) for _ in range(16)]
k = 4

for i, (x, y) in enumerate(batches):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss / k).backward()
    if (i + 1) % k == 0:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
    fix_advice="Move `unscale_()` and `update()` under the condition that guards `scaler.step()`.",
    sources=(
        (
            "PyTorch docs, Automatic Mixed Precision examples: Gradient accumulation (the scale is updated once "
            "per effective batch)"
        ),
        "measured: update ratios and micro-batch weights with unscale_ and update inside the window",
    ),
)
