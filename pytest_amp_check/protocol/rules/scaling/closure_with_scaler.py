"""AMP211 closure-with-scaler."""

from __future__ import annotations

from ...event_graph import Program
from ...events import ScalerStep
from ...rule import ERROR, Labels, Rule, ViolationKind


def _check_closure(event: ScalerStep, program: Program) -> Labels:
    if event.closure:
        yield "step-closure", {} if event.has_named_closure else {"passed": "position"}


RULE = Rule(
    "AMP211",
    "closure-with-scaler",
    ERROR,
    "A closure is given to scaler.step(), which supports none while it is enabled.",
    effect="torch raises RuntimeError at this line, which ends the run",
    effect_cases={
        "passed=position": (
            "the closure's gradients stay multiplied by the scale (65536 by default), and so do the updates; no error"
        ),
    },
    event_checks={ScalerStep: _check_closure},
    prescan_words=("scaler",),
    violations={
        "step-closure": ViolationKind(
            "`{scaler}.step({optimizer}, ...)` is given a closure, which an enabled GradScaler does not "
            "support: use an optimizer without a closure, or bfloat16 without a scaler"
        ),
    },
    rationale="""\
An optimizer with a closure (LBFGS, SAM) evaluates the loss again inside `step()`, after the scaler has unscaled and
checked the gradients. The new gradients are neither unscaled nor checked. torch rejects `closure=f` with `Closure use
is not currently supported if GradScaler is enabled.`, but a closure passed by position goes through unseen.
""",
    harm="""\
With a positional closure and `scale()` inside it, SGD's update was 65536 times too large and one iteration of LBFGS 9.6
times. Without `scale()` inside, the closure's gradients had no protection. With a keyword argument torch raises
RuntimeError.
""",
    bad_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(16, 1)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
x, y = torch.randn(64, 16), torch.randn(64, 1)


def closure():
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    return loss


for _ in range(4):
    closure()
    scaler.step(optimizer, closure)  # AMP211
    scaler.update()
""",
    good_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(16, 1)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
x, y = torch.randn(64, 16), torch.randn(64, 1)


def closure():
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    return loss


for _ in range(4):
    optimizer.step(closure)
""",
    fix_advice="Use an optimizer that needs no closure, or train in bfloat16 or float32, where no scaler is needed.",
    sources=(
        "PyTorch docs, torch.amp.GradScaler.step (closure use is not supported)",
        "torch/amp/grad_scaler.py: only the keyword is checked",
        "measured: update ratios with the closure passed by position",
    ),
)
