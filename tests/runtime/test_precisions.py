"""Correct trainings in newer precisions and with newer optimizers: a run has no findings."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from marks import places, shown

torch = pytest.importorskip("torch")

from agreement import recorded  # noqa: E402 - needs torch

pytestmark = pytest.mark.usefixtures("patched_once")

SETUP = """\
import torch
from torch import nn

torch.manual_seed(0)
batches = [(torch.randn(8, 16), torch.randint(0, 4, (8,))) for _ in range(4)]


def net():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


model = net()
"""
BFLOAT16 = """\
for x, y in batches:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
"""
FLOAT16 = """\
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
for x, y in batches:
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    for optimizer in optimizers:
        optimizer.zero_grad()
"""
STEP = "    for optimizer in optimizers:\n        optimizer.step()\n        optimizer.zero_grad()\n"
MUON = """\
matrices = [p for p in model.parameters() if p.ndim == 2]
others = [p for p in model.parameters() if p.ndim != 2]
optimizers = [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(others)]
"""
ADAM = "optimizers = [torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])]\n"
LOW = """\
for x, y in batches:
    nn.functional.cross_entropy(model(x.bfloat16()).float(), y).backward()
"""
ROUNDING = """\
class Rounding(torch.optim.SGD):
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                bits = (p.float() - group["lr"] * p.grad.float()).view(torch.int32)
                noise = torch.randint_like(bits, 0, 1 << 16)
                p.copy_(((bits + noise) & -65536).view(torch.float32))


"""
RIGHT = {
    "Muon, bfloat16": MUON + BFLOAT16 + STEP,
    "Muon, float16": MUON + FLOAT16,
    "an optimizer in the backward pass": """\
optimizers = {p: torch.optim.AdamW([p]) for p in model.parameters()}


def step(p):
    optimizers[p].step()
    optimizers[p].zero_grad()


for p in model.parameters():
    p.register_post_accumulate_grad_hook(step)
"""
    + BFLOAT16,
    "bfloat16 weights, rounded stochastically": "model = model.to(torch.bfloat16)\n"
    + ROUNDING
    + "optimizers = [Rounding(model.parameters(), lr=0.1)]\n"
    + LOW
    + STEP,
    "bfloat16 weights, rounded stochastically by a kernel": """\
model = model.to(torch.bfloat16)
optimizers = [torch.optim.SGD([{"params": model.parameters(), "bf16_stochastic_round": True}], lr=0.1)]
"""
    + LOW
    + STEP,
    "bfloat16 weights with master copies": """\
model = model.to(torch.bfloat16)
masters = [p.detach().float().requires_grad_() for p in model.parameters()]
optimizers = [torch.optim.AdamW(masters)]
"""
    + LOW
    + """\
    for p, master in zip(model.parameters(), masters):
        master.grad, p.grad = p.grad.float(), None
    optimizers[0].step()
    with torch.no_grad():
        for p, master in zip(model.parameters(), masters):
            p.copy_(master)
""",
    "a precision of float32 products": "torch.set_float32_matmul_precision('high')\n" + ADAM + FLOAT16,
    "a frozen base in float16 under adapters in float32": """\
class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(16, 32).half().requires_grad_(False)
        self.down, self.up = nn.Linear(16, 4, bias=False), nn.Linear(4, 32, bias=False)
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(torch.relu(self.base(x.half()).float() + self.up(self.down(x))))


model = Adapted()
"""
    + ADAM
    + FLOAT16,
    "products in float8": """\
class Product(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        by, to = 448 / x.abs().max(), 448 / weight.abs().max()
        low = (x * by).to(torch.float8_e4m3fn), (weight * to).to(torch.float8_e4m3fn)
        return low[0].float() @ low[1].float().t() / (by * to)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad = grad.to(torch.float8_e5m2).float()
        return grad @ weight.float(), grad.t() @ x.float()


class Linear(nn.Linear):
    def forward(self, x):
        return Product.apply(x, self.weight) + self.bias


model = nn.Sequential(Linear(16, 32), nn.ReLU(), Linear(32, 4))
"""
    + ADAM
    + BFLOAT16
    + "    nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
    + STEP,
}
WRONG = "model = model.to(torch.bfloat16)\noptimizers = [torch.optim.SGD(model.parameters(), lr=0.1)]\n" + LOW + STEP


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_training_is_silent(name: str, tmp_path: Path) -> None:
    if "Muon" in name and not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    script = tmp_path / "train.py"
    script.write_text(SETUP + RIGHT[name], encoding="utf-8")
    before = torch.get_float32_matmul_precision()
    try:
        run = recorded(lambda: runpy.run_path(str(script), run_name="__main__"))
    finally:
        torch.set_float32_matmul_precision(before)
    assert (run.failure, run.error) == (None, None)
    assert run.findings == [], shown(run.findings)


def test_weights_that_are_rounded_to_the_nearest_are_reported(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SETUP + WRONG, encoding="utf-8")
    run = recorded(lambda: runpy.run_path(str(script), run_name="__main__"))
    assert places(run.findings) == {(SETUP.count("\n") + 1, "AMP501")}
