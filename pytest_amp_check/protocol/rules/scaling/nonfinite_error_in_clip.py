"""AMP213 nonfinite-error-in-clip."""

from __future__ import annotations

from ...events import UNSCALE
from ...fix import UNSAFE
from ...rule import WARNING, Fault, Rule

RULE = Rule(
    "AMP213",
    "nonfinite-error-in-clip",
    WARNING,
    "error_if_nonfinite=True turns the overflows that a scaler skips into crashes.",
    applicability=UNSAFE,
    words=("scaler",),
    faults={
        "clip-nonfinite": Fault(
            "`error_if_nonfinite=True` lets `{call}` raise on every overflow that `{scaler}` would only skip: "
            "drop the argument and leave infinities to `{scaler}.step({optimizer})`",
            witness=(UNSCALE,),
        ),
    },
    why="""\
Overflow is how a dynamic scale finds its value: it happens in the first iterations and again each time the scale has
grown. The scaler records it in `unscale_()`, skips the step and halves the scale. With `error_if_nonfinite=True` the
clip that follows raises before the scaler can do so.
""",
    harm="""\
The first overflow, usually within the first few iterations, ends the run with RuntimeError `The total norm of order 2.0
for gradients from `parameters` is non-finite, so it cannot be clipped.` The same loop without the argument skips one
step and goes on.
""",
    bad="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
batches = [(torch.randn(32, 16), 100 * torch.randn(32, 1)) for _ in range(8)]

for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)  # AMP213
    scaler.step(optimizer)
    scaler.update()
""",
    good="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
batches = [(torch.randn(32, 16), 100 * torch.randn(32, 1)) for _ in range(8)]

for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
""",
    fix="Drop `error_if_nonfinite=True`; `scaler.step()` skips the step, and `scaler.update()` lowers the scale.",
    sources=(
        "torch/nn/utils/clip_grad.py: clip_grad_norm_ raises on a non-finite norm",
        "measured: a crash on the first overflow after unscale_",
    ),
)
