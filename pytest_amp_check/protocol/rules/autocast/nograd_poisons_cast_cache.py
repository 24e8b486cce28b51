"""AMP109 nograd-poisons-cast-cache."""

from __future__ import annotations

from ...event_graph import Program
from ...events import Forward
from ...rule import ERROR, RUNTIME, Labels, Rule, ViolationKind


def _check_poisoned_cache(event: Forward, program: Program) -> Labels:
    if event.poisoned:
        yield "forward@poisoned", {}


RULE = Rule(
    "AMP109",
    "nograd-poisons-cast-cache",
    ERROR,
    "A forward without gradients leaves weight copies in the cast cache that the training forward then reuses.",
    effect="with torch before 2.11 these weights get no gradients and stay as they are; later versions are correct",
    detected_by=RUNTIME,
    event_checks={Forward: _check_poisoned_cache},
    violations={
        "forward@poisoned": ViolationKind(
            "`{module}` ran without gradients earlier in this autocast region, so its cached low-precision weights "
            "get no gradients: call `torch.clear_autocast_cache()` before this forward, or use separate regions"
        ),
    },
    rationale="""\
Autocast keeps the low-precision copy of each weight until its outermost region ends. Before torch 2.11, a copy made
under `torch.no_grad()` is kept as well, without its link to the weight. A forward with gradients in the same region
uses that copy, and the weight gets no gradient. Since torch 2.11 the cache is not filled under `torch.no_grad()`, and
the code is correct.
""",
    harm="""\
On torch 2.4.1 and 2.10 backward raised RuntimeError `element 0 of tensors does not require grad`. Other programs ran
and left 0.44, 0.07, None and None as the gradients of four parameters. Reentrant checkpointing of reused weights gave a
relative gradient error of 56 % on 2.4.1. On 2.11 and 2.13 the gradients are correct.
""",
    bad_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
x = torch.randn(64, 16)

optimizer.zero_grad()
with torch.autocast("cpu", dtype=torch.bfloat16):
    with torch.no_grad():
        target = model(x + 0.1)
    loss = nn.functional.mse_loss(model(x), target)  # AMP109
loss.backward()
optimizer.step()
""",
    good_example="""\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
x = torch.randn(64, 16)

optimizer.zero_grad()
with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
    target = model(x + 0.1)
with torch.autocast("cpu", dtype=torch.bfloat16):
    loss = nn.functional.mse_loss(model(x), target)
loss.backward()
optimizer.step()
""",
    fix_advice="Give the forward without gradients its own autocast region, or clear the cast cache after it.",
    sources=(
        "PyTorch source: aten/src/ATen/autocast_mode.cpp",
        "pytorch/pytorch issues 105211, 112583 and 165068: the cast cache and no_grad",
        "measured with torch 2.4.1, 2.10, 2.11 and 2.13 on the CPU",
    ),
)
