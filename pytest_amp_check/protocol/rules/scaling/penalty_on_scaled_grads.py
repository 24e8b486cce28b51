"""AMP214 penalty-on-scaled-grads."""

from __future__ import annotations

from ...event_graph import Program
from ...events import Penalty
from ...rule import ERROR, Labels, Rule, ViolationKind


def _check_penalty(event: Penalty, program: Program) -> Labels:
    yield "penalty@outdated" if event.outdated else "penalty@scaled", {}


RULE = Rule(
    "AMP214",
    "penalty-on-scaled-grads",
    ERROR,
    "Gradients of a scaled loss enter a new loss without being divided by the scale.",
    effect=(
        "the penalty is multiplied by the scale (65536 by default), or by its square, and swamps the loss; no error"
    ),
    event_checks={Penalty: _check_penalty},
    prescan_words=("scaler",),
    violations={
        "penalty@scaled": ViolationKind(
            "Gradients of a scaled loss enter a new loss while they are still multiplied by the loss scale: "
            "multiply them by `1.0 / {scaler}.get_scale()` first"
        ),
        "penalty@outdated": ViolationKind(
            "`{call}` divides by a loss scale from before the loop, but `{scaler}.update()` changes the scale in the "
            "loop: call `{scaler}.get_scale()` in the same iteration as the gradients",
            effect="the penalty is wrong by the factor by which the scale has changed since; no error",
        ),
    },
    rationale="""\
A gradient penalty computes gradients with `torch.autograd.grad` and adds their norm to the loss. Scaling the loss keeps
those gradients from underflowing, but the penalty must be computed from true gradients. `unscale_()` and `step()` work
on `.grad` and never see these gradients, so the program itself must divide them.
""",
    harm="""\
The penalty's norm was 65536.0 times too large at the first scale (1024.0 times at a scale of 1024). A squared norm is
wrong by the square, 2^32. The penalty also changes whenever the scale does.
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
    grads = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)  # AMP214
    with torch.autocast("cpu", dtype=torch.float16):
        penalty = sum(g.pow(2).sum() for g in grads).sqrt()
        loss = loss + 0.1 * penalty
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
scaler = torch.amp.GradScaler("cpu")
batches = [(torch.randn(32, 16), torch.randn(32, 1)) for _ in range(8)]

for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaled = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)
    inv_scale = 1.0 / scaler.get_scale()
    grads = [g * inv_scale for g in scaled]
    with torch.autocast("cpu", dtype=torch.float16):
        penalty = sum(g.pow(2).sum() for g in grads).sqrt()
        loss = loss + 0.1 * penalty
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    fix_advice="Multiply the results of `torch.autograd.grad` by `1.0 / scaler.get_scale()` before they enter the "
    "loss.",
    sources=(
        "PyTorch docs, Automatic Mixed Precision examples: Gradient penalty",
        "measured: the penalty's norm at scales 65536 and 1024",
    ),
)
