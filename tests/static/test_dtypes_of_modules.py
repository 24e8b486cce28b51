"""Modules with low-precision weights, and modules without: casts, factories, parts, and frozen modules."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

TRAIN = """\
import copy

import torch
from torch import nn

kind = torch.bfloat16
{statements}
learner = torch.optim.AdamW(tower.parameters(), lr=1e-4)
{scaler}
for tokens, labels in loader:
    learner.zero_grad()
    loss = nn.functional.cross_entropy(tower(tokens), labels)
    {step}
"""
CAST = "cast:trained"
#: Creation of the module, and the violation of the marked line, "" for none.
MODULES = [
    ("tower = nn.Linear(16, 4).half()  # !", CAST),
    ("tower = nn.Linear(16, 4).bfloat16()  # !", CAST),
    ("tower = nn.Linear(16, 4).to(torch.bfloat16)  # !", CAST),
    ("tower = nn.Linear(16, 4).to('cuda', torch.float16)  # !", CAST),
    ("tower = nn.Linear(16, 4).to(device='cuda', dtype=torch.half)  # !", CAST),
    ("tower = nn.Linear(16, 4).to('cuda')", ""),
    ("tower = nn.Linear(16, 4).to(torch.float32)", ""),
    ("tower = nn.Linear(16, 4).to(kind)  # !", CAST),
    ("tower = nn.Linear(16, 4).to(other)", ""),
    ("tower = nn.Linear(16, 4).float()", ""),
    ("tower = nn.Linear(16, 4).double()", ""),
    ("tower = nn.Linear(16, 4).cuda().train().half()  # !", CAST),
    ("tower = nn.Linear(16, 4).half().cuda()  # !", CAST),
    ("tower = nn.Linear(16, 4)\ntower.half()  # !", CAST),
    ("tower = nn.Linear(16, 4)\ntower.to(dtype=torch.bfloat16)  # !", CAST),
    ("tower = nn.Linear(16, 4).half().float()", ""),
    ("tower = nn.Linear(16, 4).half()\ntower.float()", ""),
    ("tower = nn.Linear(16, 4).half()\ntower.to(torch.float32)", ""),
    ("tower = nn.Linear(16, 4).half()\ntower.to(torch.float64)", ""),
    ("tower = nn.Linear(16, 4).float().half()  # !", CAST),
    ("tower = nn.Linear(16, 4).half()\ntower.requires_grad_(False)", ""),
    ("tower = nn.Linear(16, 4).half()\ntower.requires_grad_(requires_grad=False)", ""),
    ("switch = lambda part, on: part.requires_grad_(on)\ntower = nn.Linear(16, 4).half()\nswitch(tower, False)", ""),
    (
        "switch = lambda part, on: part.requires_grad_(on)\ntower = nn.Linear(16, 4).half()  # !\nswitch(tower, True)",
        CAST,
    ),
    ("tower = nn.Linear(16, 4).half()  # !\ntower.requires_grad_()", CAST),
    ("tower = nn.Linear(16, 4).half()  # !\ntower.requires_grad_(True)", CAST),
    ("tower = nn.Linear(16, 4).half()\ntower.add_adapter(config)  # !", "adapter:trained"),
    ("tower = nn.Linear(16, 4).bfloat16()\ntower.add_adapter(config)", ""),
    ("tower = nn.Linear(16, 4).half()  # !\ntower.eval()", CAST),
    ("tower = nn.Linear(16, 4, dtype=torch.float16)  # !", CAST),
    ("tower = nn.Linear(16, 4, dtype=torch.bfloat16)  # !", CAST),
    ("tower = nn.Linear(16, 4, device='cuda', dtype=torch.half)  # !", CAST),
    ("tower = nn.Linear(16, 4, dtype=torch.float32)", ""),
    ("tower = nn.Linear(16, 4, dtype=kind)  # !", CAST),
    ("tower = nn.Linear(16, 4, dtype=other)", ""),
    ("tower = nn.Linear(16, 4, dtype=torch.bfloat16).float()", ""),
    ("tower = nn.Linear(16, 4, dtype=torch.bfloat16).requires_grad_(False)", ""),
    ("tower = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4)).half()  # !", CAST),
    ("tower = nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 4, dtype=torch.bfloat16))  # !", CAST),
    ("tower = nn.Sequential(nn.Linear(16, 8).bfloat16(), nn.Linear(8, 4)).float()", ""),
    ("tower = nn.Sequential(*[nn.Linear(16, 16, dtype=torch.bfloat16) for _ in range(3)])  # !", CAST),
    ("tower = nn.DataParallel(nn.Linear(16, 4).half())  # !", CAST),
    ("tower = nn.DataParallel(nn.Linear(16, 4)).half()  # !", CAST),
    ("tower = torch.compile(nn.Linear(16, 4)).half()  # !", CAST),
    ("tower = nn.Linear(16, 4)\nteacher = copy.deepcopy(tower).half()", ""),
    ("base = nn.Linear(16, 4)\ntower = copy.deepcopy(base)\nbase.half()", ""),
    ("base = nn.Linear(16, 4)\ntower = copy.deepcopy(base).half()  # !", CAST),
    ("tower = nn.Linear(16, 4)\nteacher = nn.Linear(16, 4).half()", ""),
    ("tower = nn.Linear(16, 4)\nfor part in tower.children():\n    part.half()", ""),
]


@pytest.mark.parametrize(("statements", "label"), MODULES)
@pytest.mark.parametrize("scaled", [False, True])
def test_weights_that_an_optimizer_trains(statements: str, label: str, *, scaled: bool) -> None:
    low = "bfloat16" if "bfloat16" in statements or "kind" in statements else "float16"
    scaler, step = "", "loss.backward()\n    learner.step()"
    if scaled:
        scaler = 'ups = torch.amp.GradScaler("cuda")'
        step = "ups.scale(loss).backward()\n    ups.step(learner)\n    ups.update()"
        # GradScaler rejects float16 gradients everywhere, and bfloat16 gradients only on CUDA.
        label = label and (label if low == "bfloat16" else f"{label}-scaled")
    source = TRAIN.format(statements=statements, scaler=scaler, step=step)
    marked = next((number for number, line in enumerate(source.split("\n"), 1) if "# !" in line), 0)
    found = [each for each in check_source(source, "train.py") if each.code == "AMP501"]
    assert [(each.line, each.label, each.certain) for each in found] == ([(marked, label, True)] if label else [])
    for each in found:
        assert f" in {low}, " in each.message
        assert ("GradScaler" in each.message) is scaled
