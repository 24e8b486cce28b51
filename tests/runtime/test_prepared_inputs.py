"""Non-finite inputs that a program computes between a step and the next forward: a run names the op."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from agreement import check_script

PROGRAM = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu"{enabled})


def area(height, width):
    return height * width{at_area}


for step in range(5):
    size = torch.tensor([{size}], dtype=torch.float16)
    x, weight = torch.randn(4, 8), area(size, size) / 1e6
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype={dtype}):
        loss = (model(x * weight) - x).float().square().mean(){at_use}
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
FLOAT16 = {"enabled": "", "dtype": "torch.float16", "at_area": "", "at_use": ""}
BFLOAT16 = {"enabled": ", enabled=False", "dtype": "torch.bfloat16", "at_area": "", "at_use": ""}


@pytest.mark.parametrize("precision", [FLOAT16, BFLOAT16], ids=["float16", "bfloat16"])
def test_an_overflow_before_the_region_is_named(precision: dict[str, str], tmp_path: Path) -> None:
    parts = {**precision, "size": "900.0", "at_area": "  # AMP802"}
    assert "its result is above 65504" in check_script(PROGRAM.format(**parts), tmp_path)


@pytest.mark.parametrize("precision", [FLOAT16, BFLOAT16], ids=["float16", "bfloat16"])
def test_an_overflow_that_happens_once_stays_the_input_of_its_step(precision: dict[str, str], tmp_path: Path) -> None:
    parts = {**precision, "size": "900.0 if step == 2 else 9.0", "at_use": "  # AMP802"}
    assert "contains non-finite values" in check_script(PROGRAM.format(**parts), tmp_path)


def test_finite_inputs_are_right(tmp_path: Path) -> None:
    check_script(PROGRAM.format(**{**FLOAT16, "size": "90.0"}), tmp_path)
