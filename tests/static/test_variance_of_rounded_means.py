"""Variances as a difference of moments whose mean has the digits of its input, though squares are float32 (AMP507)."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_amp_check.static.engine import check_paths

NORMS = """\
import torch
from comm import all_reduce_mean, gather
from torch import nn
from torch.autograd import Function


class SyncNorm(Function):
    @staticmethod{mark}
    def forward(ctx, x, eps):
        {body}
        ctx.save_for_backward(x, var)
        return x / torch.sqrt(var + eps)


class Norm(nn.Module):
    def forward(self, x):
        return SyncNorm.apply(x, 1e-5)
"""
HELPER = """\
import torch
from torch import nn


def normalize(x: torch.Tensor, eps):
    {body}
    return x / torch.sqrt(var + eps)


class Norm(nn.Module):
    def forward(self, x):
        return normalize(x, 1e-5)
"""
TRAIN = """\
import torch
from torch import nn
from norms import Norm


def train(loader):
    net = nn.Sequential(nn.Linear(8, 8), Norm()).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = net(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
WRONG = [
    "var = x.pow(2).mean(0) - x.mean(0).pow(2)",
    "var = (x ** 2).mean(0) - torch.mean(x, 0) ** 2",
    "mean = x.mean(0); squares = torch.pow(x, 2).mean(0); var = squares - mean * mean",
    "mean = x.mean(0); var = torch.square(x).mean(0) - torch.square(mean)",
]
RIGHT = [
    "x = x.float(); var = x.pow(2).mean(0) - x.mean(0).pow(2)",
    "mean = x.float().mean(0); var = (x.float() ** 2).mean(0) - mean ** 2",
    "mean = x.mean(0); var = (x - mean).pow(2).mean(0)",
    "var = x.var(0)",
    "var = x.pow(2).mean(0) - x.pow(2).amin(0)",
]
REDUCED = "mean = all_reduce_mean(x.mean(0)); squares = all_reduce_mean(x.pow(2).mean(0)); var = squares - mean.pow(2)"


def codes(root: Path, norms: str) -> list[str]:
    (root / "norms.py").write_text(norms)
    (root / "train.py").write_text(TRAIN)
    return [finding.label for finding in check_paths([str(root)]).findings if finding.code == "AMP507"]


@pytest.mark.parametrize("body", [*WRONG, REDUCED])
def test_in_a_custom_function(tmp_path: Path, body: str) -> None:
    assert codes(tmp_path, NORMS.format(body=body, mark="")) == ["fragile:moments"]


@pytest.mark.parametrize("body", WRONG)
def test_in_a_helper(tmp_path: Path, body: str) -> None:
    assert codes(tmp_path, HELPER.format(body=body)) == ["fragile:moments"]


@pytest.mark.parametrize("body", RIGHT)
def test_means_with_all_digits(tmp_path: Path, body: str) -> None:
    assert codes(tmp_path, NORMS.format(body=body, mark="")) == []
    assert codes(tmp_path, HELPER.format(body=body)) == []


def test_a_custom_function_that_asks_for_float32(tmp_path: Path) -> None:
    mark = "\n    @torch.amp.custom_fwd(device_type='cuda', cast_inputs=torch.float32)"
    assert codes(tmp_path, NORMS.format(body=WRONG[0], mark=mark)) == []


def test_a_mean_that_unknown_code_changes(tmp_path: Path) -> None:
    body = REDUCED.replace("all_reduce_mean", "gather")
    assert codes(tmp_path, NORMS.format(body=body, mark="")) == []
