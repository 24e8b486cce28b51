"""Work of autocast and the scaler that is repeated without need: AMP701, which is off by default."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source
from pytest_amp_check.static.settings import Settings

TRAIN = """\
import logging

import torch
from torch import nn
from torch.nn import functional as F

net = nn.Linear(8, 8)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
gs = torch.amp.GradScaler("cuda")
{before}
for x, y in loader:
    {clear}
    {forward}
    gs.scale(err).backward()
    gs.step(opt)
    gs.update()
    {after}
"""
ONCE = 'with torch.autocast("cuda"):\n    err = F.mse_loss(net(x), y)'


def found(forward: str = ONCE, clear: str = "opt.zero_grad()", after: str = "", before: str = "") -> list[str]:
    parts = {"forward": forward, "clear": clear, "after": after}
    source = TRAIN.format(
        before=before, **{name: (part or "pass").replace("\n", "\n    ") for name, part in parts.items()}
    )
    return [finding.label for finding in check_source(source, "train.py", Settings(select=frozenset({"AMP701"})))]


@pytest.mark.parametrize(
    ("forward", "label"),
    [
        (ONCE, ""),
        (
            "h = x\nfor i in range(9):\n    with torch.autocast('cuda'):\n        h = net(h)\nerr = F.mse_loss(h, y)",
            "cast:each-turn",
        ),
        ("h = x\nwith torch.autocast('cuda'):\n    for i in range(9):\n        h = net(h)\nerr = F.mse_loss(h, y)", ""),
        (
            (
                "h = x\nwith torch.autocast('cuda', cache_enabled=False):\n    for i in range(9):\n        h = net(h)\n"
                "err = F.mse_loss(h, y)"
            ),
            "cast:no-cache",
        ),
        (
            (
                "h = x\nwith torch.autocast('cuda', cache_enabled=False):\n    for i in range(9):\n        h = net(h)\n"
                "        net.weight.data.mul_(2)\nerr = F.mse_loss(h, y)"
            ),
            "",
        ),
        (
            (
                "h = x\nwith torch.autocast('cuda', cache_enabled=False):\n    for i in range(9):\n        h = net(h)\n"
                "    with torch.no_grad():\n        net(x)\nerr = F.mse_loss(h, y)"
            ),
            "",
        ),
        ("with torch.autocast('cuda', cache_enabled=False):\n    err = F.mse_loss(net(x), y)", ""),
        (
            (
                "h = x\nfor i in range(9):\n    with torch.autocast('cuda', enabled=False):\n        h = net(h)\n"
                "err = F.mse_loss(h, y)"
            ),
            "",
        ),
        ("for net2 in [net]:\n    with torch.autocast('cuda'):\n        h = net2(x)\nerr = F.mse_loss(h, y)", ""),
        (
            (
                "h = x\nwith torch.no_grad():\n    for i in range(9):\n"
                "        with torch.autocast('cuda'):\n            h = net(h)\n"
                "with torch.autocast('cuda'):\n    err = F.mse_loss(net(h), y)"
            ),
            "",
        ),
    ],
)
def test_weights_that_are_cast_in_each_iteration(forward: str, label: str) -> None:
    assert found(forward) == ([label] if label else [])


@pytest.mark.parametrize("before", ["net.half()", "net = torch.compile(net)", "net.compile()"])
def test_weights_that_are_not_cast_one_by_one(before: str) -> None:
    forward = "h = x\nfor i in range(9):\n    with torch.autocast('cuda'):\n        h = net(h)\nerr = F.mse_loss(h, y)"
    assert found(forward) == ["cast:each-turn"]
    assert found(forward, before=before) == []


@pytest.mark.parametrize(
    ("after", "reported"),
    [
        ("print(gs.get_scale())", True),
        ("print('scale', gs.get_scale())", True),
        ("logging.info(gs.get_scale())", True),
        ("scales.append(gs.get_scale())", True),
        ("writer.add_scalar('scale', gs.get_scale(), 3)", True),
        # Another number is copied anyway, or the scale decides about something.
        ("print(gs.get_scale(), err.item())", False),
        ("print(gs.get_scale(), err)", False),
        ("writer.add_scalar('scale', gs.get_scale(), step(x))", False),
        ("scale = gs.get_scale()", False),
        ("use(gs.get_scale())", False),
        ("if gs.get_scale() < 1:\n    raise ValueError(x)", False),
    ],
)
def test_the_loss_scale_is_copied_to_be_logged(after: str, *, reported: bool) -> None:
    assert found(after=after) == (["scale:told"] if reported else [])


@pytest.mark.parametrize(
    ("clear", "before", "zeros"),
    [
        ("opt.zero_grad(set_to_none=False)", "", True),
        ("opt.zero_grad(False)", "", True),
        ("opt.zero_grad()", "", False),
        ("opt.zero_grad(set_to_none=True)", "", False),
        ("opt.zero_grad(set_to_none=keep)", "", False),
        # Other code may need the zeros.
        ("opt.zero_grad(set_to_none=False)", "print(net.weight.grad)", False),
        ("opt.zero_grad(set_to_none=False)", "from torch.distributed.fsdp import fully_shard", False),
        ("opt.zero_grad(set_to_none=False)", "g = torch.cuda.CUDAGraph()", False),
    ],
)
def test_gradients_are_zeros_that_could_be_none(clear: str, before: str, *, zeros: bool) -> None:
    assert found(clear=clear, before=before) == (["zero:zeros"] if zeros else [])
