"""Fills of what unanalyzed code computes: float32 tensors give float32, and low tensors give low ones."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

PROGRAM = """\
import torch
import torch_scatter
from torch import nn


class Net(nn.Module):
    def __init__(self, gather):
        super().__init__()
        self.encoder = nn.Linear(3, 8)
        self.gather = gather

    def forward(self, batch):
        point = self.encoder(batch["feat"])
        {count}
        counts[counts == 0] = 100000
        return (point / counts[:, None]).mean()


def train(loader, gather):
    net = Net(gather).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for batch in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = net(batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
RIGHT = [
    'counts = torch_scatter.segment_csr((batch["corr"] != -1).float(), point["pointers"], reduce="sum")',
    'counts = torch_scatter.segment_csr(torch.ones_like(batch["w"].float()), point["pointers"])',
    'm = (batch["corr"] != -1).all(1).float()\n        counts = torch_scatter.scatter(m[point["order"]], point["p"])',
    'mask = (batch["corr"] != -1).float()\n        counts = self.gather(mask, point["pointers"])',
    'counts = batch["sum"](batch["w"].float(), point["pointers"])',
    'counts = torch_scatter.segment_csr(point.float(), point["pointers"])',
]
WRONG = [
    'counts = torch_scatter.segment_csr(point["feat"], point["pointers"], reduce="sum")',
    'counts = torch_scatter.segment_csr(point, batch["w"].float())',
    'counts = self.gather(point["feat"], point["pointers"])',
]


def lines(count: str) -> list[int]:
    source = PROGRAM.format(count=count)
    return [finding.line for finding in check_source(source) if finding.code == "AMP506"]


@pytest.mark.parametrize("count", RIGHT)
def test_float32_tensors_give_float32(count: str) -> None:
    assert lines(count) == []


@pytest.mark.parametrize("count", WRONG)
def test_low_tensors_give_low_ones(count: str) -> None:
    assert lines(count) == [15]
