"""AMP206 missing-scaler-update."""

from __future__ import annotations

from ...events import ScalerStep
from ...fix import SAFE
from ...rule import ERROR, Cause, Certainty, Precedence, Rule, ViolationKind

RULE = Rule(
    "AMP206",
    "missing-scaler-update",
    ERROR,
    "scaler.step() is not followed by scaler.update().",
    effect="torch raises RuntimeError at the second step, which ends the run",
    applicability=SAFE,
    prescan_words=("scaler",),
    violations={
        "step@stepped": ViolationKind(
            "`{scaler}.step({optimizer})` is reached again without a `{scaler}.update()` in between: "
            "write `{scaler}.update()` after it, once per iteration, after the last step",
            cause=Cause(ScalerStep),
            in_next_iteration=True,
        ),
        "end@stepped": ViolationKind(
            "`{scaler}.step({optimizer})` is never followed by `{scaler}.update()` in the checked code: "
            "write `{scaler}.update()` after it, once per iteration, after the last step",
            effect="the scale never adapts, and a second step of this scaler raises RuntimeError",
            cause=Cause(ScalerStep),
            precedence=Precedence(yields_to=("step@stepped", "unscale@step-pending")),
            certainty=Certainty(
                missing_method="update",
                assumption="no other code calls `{scaler}.update()` (search for it: with it, nothing is wrong)",
            ),
        ),
        "unscale@step-pending": ViolationKind(
            "`{scaler}.step({optimizer})` is not followed by `{scaler}.update()` before gradients are unscaled again: "
            "write `{scaler}.update()` after it, once per iteration, after the last step",
            effect="torch raises RuntimeError at the next unscale_, which ends the run",
            cause=Cause(ScalerStep),
            in_next_iteration=True,
            precedence=Precedence(yields_to=("step@stepped",)),
        ),
    },
    rationale="""\
`update()` closes an iteration. It halves the scale after an overflow, lets it grow after enough clean steps, and makes
the scaler ready for the next `step()`. Without it the scale never adapts. torch raises `step() has already been called
since the last update().`, but only in the second iteration of the same scaler. A smoke test of one step therefore
passes, and code that steps each scaler once never raises.
""",
    harm="""\
The second iteration raises RuntimeError (`unscale_() is being called after step().` if the loop also unscales). If a
scaler steps only once, nothing raises and the scale does not change: an overflow is skipped and repeats.
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
    scaler.step(optimizer)  # AMP206
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
    fix_advice="Call `scaler.update()` once per iteration, after the last `scaler.step()`.",
    sources=(
        "PyTorch docs, torch.amp.GradScaler.update",
        "torch/amp/grad_scaler.py: step() raises when its optimizer is already in the stage STEPPED",
    ),
)
