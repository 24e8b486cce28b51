"""AMP217 scaler-disabled."""

from __future__ import annotations

from ...event_graph import Program
from ...events import ScalerNew
from ...rule import INFO, RUNTIME, Labels, Rule, ViolationKind


def _check_disabled_itself(event: ScalerNew, program: Program) -> Labels:
    if event.disabled_itself:
        yield "scaler:disabled-itself", {}


RULE = Rule(
    "AMP217",
    "scaler-disabled",
    INFO,
    "The scaler switched itself off because its device is missing, so the run did not exercise gradient scaling.",
    effect="this run passes with any order of the calls, so a mistake in them shows only on a GPU",
    detected_by=RUNTIME,
    event_checks={ScalerNew: _check_disabled_itself},
    violations={
        "scaler:disabled-itself": ViolationKind(
            "`{call}` switched itself off because this machine has no such device, so this run does not exercise "
            "gradient scaling: run it under `emulate_cuda()` or with `--amp-device emulate`, or construct "
            '`GradScaler("cpu")`'
        ),
    },
    rationale="""\
`GradScaler("cuda")` on a machine without CUDA warns once and becomes a scaler that does nothing. `scale()` returns its
argument, `step()` calls the optimizer's own step, and `update()` is empty. A test of the training step then passes for
any order of the calls. `emulate_cuda()` (in pytest `--amp-device emulate`) runs the same code on the CPU with a live
scaler and CUDA's dtypes; `GradScaler("cpu")` is live anywhere.
""",
    harm="""\
A loop scaled its loss and then called `optimizer.step()` without the scaler. Under a scaler that had switched itself
off, the update was correct, `get_scale()` returned 1.0 and `state_dict()` was empty. Under a live scaler the first
update of the same loop was 65536 times as large.
""",
    bad_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda")  # AMP217
batches = [(torch.randn(32, 16), torch.randn(32, 1)) for _ in range(8)]

for x, y in batches:
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
    fix_advice='Run it under `emulate_cuda()` or with `--amp-device emulate`, or construct `GradScaler("cpu")` on '
    "a CPU.",
    sources=(
        "torch/amp/grad_scaler.py: enabled, but CUDA is not available",
        "measured: what a disabled scaler returns, and update sizes with it and without it",
    ),
)
