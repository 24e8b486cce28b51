"""AMP208 scaler-recreated-in-loop."""

from __future__ import annotations

from ...event_graph import Program
from ...events import ScalerNew
from ...fix import SAFE
from ...rule import BOTH, ERROR, Cause, Certainty, Edit, Labels, Precedence, Rule, TraceContext, ViolationKind


def _check_repetition(event: ScalerNew, program: Program) -> Labels:
    if event.again:
        yield "new@used", {}


RULE = Rule(
    "AMP208",
    "scaler-recreated-in-loop",
    ERROR,
    "A GradScaler is constructed inside the training loop that uses it.",
    effect="the scale starts anew each time, so steps are skipped until it fits, if it ever does; no error",
    detected_by=BOTH,
    event_checks={ScalerNew: _check_repetition},
    applicability=SAFE,
    prescan_words=("scaler",),
    violations={
        "new@used": ViolationKind(
            "`{scaler}` is constructed again in every iteration of `{loop}`, so the scale it has found "
            "is lost: move this statement to before `{loop}`",
            effect=(
                "the scale starts anew in each iteration: if the loss needs a smaller one, no step is ever applied"
            ),
            effect_cases={
                "steps=many": (
                    "the scale starts anew in each iteration of this loop, which skips steps until it fits; no error"
                )
            },
            cause=Cause(ScalerNew),
            in_next_iteration=True,
            trace_context=TraceContext(
                edits=(Edit("move the construction here, before this loop{passing}", search="loop"),)
            ),
        ),
        "new:per-step": ViolationKind(
            "`{scaler}` is constructed in every call of `{function}`, once for each step, so the scale "
            "that it has found is lost: construct it once before the training, and make "
            "it a parameter of `{function}`",
            effect=(
                "the scale starts anew in each step: if the loss needs a smaller one, no step is ever applied; no error"
            ),
            certainty=Certainty(is_possible=True, assumption="`{function}` is called for each step of a training"),
            precedence=Precedence(needs_repeated_call=True),
        ),
        "new:per-epoch": ViolationKind(
            "`{scaler}` is constructed in every call of `{function}`, once for each epoch, so the scale "
            "that it has found is lost: construct it once before the training, and make "
            "it a parameter of `{function}`",
            effect="the scale starts anew in each epoch, which skips steps until it fits again; no error",
            certainty=Certainty(is_possible=True, assumption="`{function}` is called for several epochs"),
            precedence=Precedence(needs_repeated_call=True),
        ),
    },
    rationale="""\
The scale is learned: it starts at 65536, halves on every overflow and grows after 2000 clean steps. A new scaler starts
over. If the loss needs a smaller scale, every iteration overflows at the first value, the step is skipped, and the
lowered scale is lost with the scaler. Construct the scaler once per run, before the loop over epochs.
""",
    harm="""\
Constructed in every iteration: 0 of 30 steps were applied and the scale stayed at 32768, without an error. Constructed
once: 24 of 30 steps were applied, and the scale settled at 1024.
""",
    bad_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
batches = [(torch.randn(32, 16), 100 * torch.randn(32, 1)) for _ in range(8)]

for x, y in batches:
    scaler = torch.amp.GradScaler("cpu")  # AMP208
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    good_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
batches = [(torch.randn(32, 16), 100 * torch.randn(32, 1)) for _ in range(8)]

scaler = torch.amp.GradScaler("cpu")
for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    fix_advice="Construct the GradScaler once, before the loop.",
    sources=(
        (
            "PyTorch docs, Automatic Mixed Precision examples: Typical mixed precision training (the scaler is "
            "created once at the beginning of training)"
        ),
        "measured: steps taken and scale over 30 iterations",
    ),
)
