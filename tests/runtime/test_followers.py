"""AMP403 in runs: averages of weights that a program computes manually, and that include a skipped step."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from marks import marks, places, shown

pytest.importorskip("torch")

from pytest_amp_check import record

pytestmark = pytest.mark.usefixtures("patched_once")

SETUP = """\
import copy
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 4)
ema = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
batches = [(torch.randn(4, 8), torch.randn(4, 4) * (1e30 if i == 5 else 1.0)) for i in range(9)]

def train_step(x, y):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()

"""
PAIRS = "        for kept, p in zip(ema.parameters(), model.parameters()):\n"
EACH = f"for x, y in batches:\n    train_step(x, y)\n    with torch.no_grad():\n{PAIRS}"
PROGRAMS = {
    "a share is added": EACH + "            kept.mul_(0.9).add_(p, alpha=0.1)  # AMP403\n",
    "a product with the share is added": EACH + "            kept.mul_(0.9).add_(p.detach() * 0.1)  # AMP403\n",
    "it moves by lerp_": EACH + "            kept.lerp_(p, 0.1)  # AMP403\n",
    "it is copied": EACH + "            kept.copy_(0.9 * kept + 0.1 * p)  # AMP403\n",
    "it is given": EACH + "            kept.data = 0.9 * kept.data + 0.1 * p.data  # AMP403\n",
    "a class keeps it": """\
class Average:
    def __init__(self, model):
        self.kept = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model):
        for name, p in model.named_parameters():
            self.kept[name].mul_(0.9).add_(p.data, alpha=0.1)  # AMP403

average = Average(model)
for x, y in batches:
    train_step(x, y)
    average.update(model)
""",
    "... left out where the scale fell": f"""\
for x, y in batches:
    before = scaler.get_scale()
    train_step(x, y)
    if scaler.get_scale() < before:
        continue
    with torch.no_grad():
{PAIRS}            kept.mul_(0.9).add_(p, alpha=0.1)
""",
    "... not in each turn": f"""\
for i, (x, y) in enumerate(batches):
    train_step(x, y)
    if i != 5:
        continue
    with torch.no_grad():
{PAIRS}            kept.mul_(0.9).add_(p, alpha=0.1)
""",
    "... past the weights": EACH + "            kept.copy_(1.5 * p - 0.5 * kept)\n",
    "the weights are copied whole": EACH + "            kept.copy_(p)\n",
    "the weights decay": "for x, y in batches:\n    train_step(x, y)\n    with torch.no_grad():\n"
    "        for p in model.parameters():\n            p.add_(p, alpha=-1e-4)\n",
    "... by way of their gradients": """\
for x, y in batches:
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    for p in model.parameters():
        p.grad.data.add_(p.detach(), alpha=1e-3)
    scaler.step(optimizer)
    scaler.update()
""",
    "... of another model, by way of their gradients": """\
other = nn.Linear(8, 1)
second = torch.optim.SGD(other.parameters(), lr=0.1)
for x, y in batches:
    train_step(x, y)
    second.zero_grad()
    scaler.scale(other(x).square().mean()).backward()
    scaler.unscale_(second)
    for p in other.parameters():
        p.grad.add_(p.detach(), alpha=1e-3)
    scaler.step(second)
    scaler.update()
""",
    "something else is added up": "total = torch.zeros(4, 8)\nfor x, y in batches:\n    train_step(x, y)\n"
    "    total.add_(torch.randn(4, 8))\n",
}


@pytest.mark.parametrize("body", PROGRAMS.values(), ids=PROGRAMS)
def test_averages_made_by_hand_that_count_a_skipped_step(body: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SETUP + body, encoding="utf-8")
    with record() as run:
        runpy.run_path(str(path), run_name="__main__")
    assert run.failure is None
    assert places(run.findings) == marks(SETUP + body, "runtime"), shown(run.findings)
