"""Limits of dtypes as numbers: ``torch.finfo(torch.float32).min`` written into low-precision tensors (AMP506)."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_amp_check.static.engine import check_paths, check_source

FILL = """\
import torch

def attend(q, k, mask):
    with torch.autocast("cuda", dtype=torch.{region}):
        scores = q @ k.transpose(-2, -1)
        lowest = {value}
        return scores.masked_fill(mask, lowest).softmax(-1)
"""
MESSAGES = {"float16": "which ends at 65504", "bfloat16": "which ends at 3.39e38"}


@pytest.mark.parametrize(
    ("value", "too_large_for"),
    [
        ("torch.finfo(torch.float32).min", ["float16", "bfloat16"]),
        ("torch.finfo().min", ["float16", "bfloat16"]),
        ("-torch.finfo(torch.float32).max", ["float16", "bfloat16"]),
        ("torch.finfo(torch.bfloat16).min", ["float16"]),
        ("torch.finfo(torch.float16).min", []),
        ("torch.finfo(scores.dtype).min", []),
        ("torch.finfo(torch.float32).eps", []),
        ("-1e30", ["float16"]),
        ('float("-inf")', []),
    ],
)
def test_limits_in_a_region(value: str, too_large_for: list[str]) -> None:
    for region, message in MESSAGES.items():
        findings = check_source(FILL.format(region=region, value=value), "attend.py")
        assert [message in finding.message for finding in findings] == [True] * (region in too_large_for)


LAYER = """\
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q, self.k = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x, mask):
        scores = torch.matmul(self.q(x), self.k(x).transpose(-2, -1))
        return scores.masked_fill(mask, torch.finfo({dtype}).min).softmax(-1)
"""
TRAINING = """\
import torch
from attention import Attention

model = Attention(64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, mask in loader:
    with {region}:
        loss = model(x, mask).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
LOW = 'torch.autocast("cuda", dtype=torch.bfloat16)'


@pytest.mark.parametrize(
    ("dtype", "region", "expected"),
    [
        ("torch.float32", LOW, ["AMP506"]),
        ("scores.dtype", LOW, []),
        ("torch.float32", "torch.enable_grad()", []),
    ],
)
def test_limits_in_a_layer(tmp_path: Path, dtype: str, region: str, expected: list[str]) -> None:
    (tmp_path / "attention.py").write_text(LAYER.format(dtype=dtype))
    (tmp_path / "train.py").write_text(TRAINING.format(region=region))
    assert [each.code for each in check_paths([str(tmp_path)]).findings] == expected
