"""AMP213 nonfinite-error-in-clip."""

from __future__ import annotations

from ...events import ANOMALY, BACKWARD, UNSCALE, Program
from ...fix import UNSAFE
from ...rule import INFO, WARNING, Fault, Rule, Verdicts


def _detected(program: Program) -> Verdicts:
    """Anomaly detection that is always on in a program with a live scaler."""
    if program.facts.get("live_scalers"):
        for event in program.events():
            if event.kind == ANOMALY and not event.guards:
                yield "anomaly-nonfinite", event, {}, ()


RULE = Rule(
    "AMP213",
    "nonfinite-error-in-clip",
    WARNING,
    "A check of the gradients turns the overflows that a scaler skips into crashes.",
    applicability=UNSAFE,
    words=("scaler",),
    whole={ANOMALY: _detected},
    faults={
        "clip-nonfinite": Fault(
            "`error_if_nonfinite=True` lets `{call}` raise on every overflow that `{scaler}` would only skip: "
            "drop the argument and leave infinities to `{scaler}.step({optimizer})`",
            witness=(UNSCALE,),
        ),
        "check-nonfinite": Fault(
            "This check raises on every overflow that a GradScaler would only skip: leave gradients that are not finite"
            " to its `step()`, and count the steps in which `get_scale()` falls",
            witness=(BACKWARD, UNSCALE),
        ),
        "anomaly-nonfinite": Fault(
            "`{call}` raises where an overflow makes a gradient NaN, which a GradScaler would only skip: use it to find"
            " a NaN that stays, in float32, or with `check_nan=False`, and not in a training",
            INFO,
        ),
    },
    why="""\
Overflow is how a dynamic scale finds its value: it happens in the first iterations and again each time the scale has
grown. The scaler records it in `unscale_()`, skips the step and halves the scale. With `error_if_nonfinite=True` the
clip that follows raises before the scaler can do so. A check of one's own that raises, or an assertion, does the same,
with scaled gradients too, and so does `torch.autograd.set_detect_anomaly(True)` where an overflow becomes NaN on its
way back.
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
    fix="Drop `error_if_nonfinite=True`, or the check: `scaler.step()` skips the step, and `scaler.update()` lowers the"
    " scale.",
    sources=(
        "torch/nn/utils/clip_grad.py: clip_grad_norm_ raises on a non-finite norm",
        "measured: a crash on the first overflow after unscale_",
    ),
)
