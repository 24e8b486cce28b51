"""AMP218 grads-invalidated-after-unscale."""

from __future__ import annotations

from ...event_graph import Program
from ...events import GradInvalid
from ...rule import ERROR, RUNTIME, Labels, Rule, ViolationKind


def _check_invalidated(event: GradInvalid, program: Program) -> Labels:
    yield "grads:invalid", {}


RULE = Rule(
    "AMP218",
    "grads-invalidated-after-unscale",
    ERROR,
    "Gradients become NaN or infinite after unscale_(), when the scaler no longer checks them.",
    effect="the weights are NaN after this step, and so is every later loss",
    detected_by=RUNTIME,
    event_checks={GradInvalid: _check_invalidated},
    violations={
        "grads:invalid": ViolationKind(
            "Gradients of `{optimizer}` become NaN or infinite after `unscale_` has checked them, and the step "
            "applies them: keep gradients finite between unscale_ and step"
        ),
    },
    rationale="""\
The scaler looks for infinities once, in `unscale_()`, and `step()` relies on that result. Non-finite values from later
edits are applied to the parameters. Examples are a division by a zero norm, a clip of gradients made infinite by
another rank, or noise with a wrong sign under a root. From the parameters they spread to every later value.
""",
    harm="""\
A value that became NaN between `unscale_()` and `step()` left NaN in the parameters after that one step, and the loss
scale did not change. Every later loss was NaN.
""",
    bad_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
nn.init.zeros_(model[2].weight)  # a head that starts at zero, so that no gradient reaches the layers below it
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
batches = [(torch.randn(32, 16), torch.randn(32, 1)) for _ in range(4)]

for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    for p in model.parameters():
        p.grad.div_(p.grad.norm())  # AMP218
    scaler.step(optimizer)
    scaler.update()
""",
    good_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
nn.init.zeros_(model[2].weight)  # a head that starts at zero, so that no gradient reaches the layers below it
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
batches = [(torch.randn(32, 16), torch.randn(32, 1)) for _ in range(4)]

for x, y in batches:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    for p in model.parameters():
        p.grad.div_(p.grad.norm().clamp_(min=1e-6))
    scaler.step(optimizer)
    scaler.update()
""",
    fix_advice=(
        "Keep edits between unscale_ and step finite (clamp a divisor), or check the gradients again and skip the step."
    ),
    sources=(
        "torch/amp/grad_scaler.py: step() uses the found_inf that unscale_() recorded",
        "PyTorch's own test: test_params_invalidated_with_grads_invalidated_between_unscale_and_step",
        "measured: parameters and scale after a NaN between unscale_ and step",
    ),
)
