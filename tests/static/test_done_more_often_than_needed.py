"""Casts, copies of the scale and zeros that a training makes without need, and necessary operations."""

from __future__ import annotations

from textwrap import indent

import pytest

from pytest_amp_check.static.engine import check_source
from pytest_amp_check.static.settings import Settings

TRAIN = """\
import logging

import torch
from torch import nn
from torch.nn import functional as F

cell = nn.Linear(3, 3)
sgd = torch.optim.SGD(cell.parameters(), lr=0.1)
lift = torch.amp.GradScaler("cuda")
for turn, (signal, echo) in enumerate(loader):
{zero}
{forward}
    lift.scale(loss).backward()
    lift.step(sgd)
    lift.update()
{after}
"""
ZERO = "sgd.zero_grad()"
FORWARD = 'with torch.autocast("cuda"):\n    loss = F.mse_loss(cell(signal), echo)'
EACH = "cast:each-turn"
#: Clearing of gradients, forward, code after the update, and the label of the repeated work.
ITERATIONS = [
    (ZERO, FORWARD, "", ""),
    ("sgd.zero_grad(set_to_none=False)", FORWARD, "", "zero:zeros"),
    ("sgd.zero_grad(False)", FORWARD, "", "zero:zeros"),
    ("sgd.zero_grad(set_to_none=True)", FORWARD, "", ""),
    ("sgd.zero_grad(set_to_none=flag)", FORWARD, "", ""),
    ("sgd.zero_grad(set_to_none=False)\n[p.grad for p in frozen]", FORWARD, "", ""),
    (ZERO, FORWARD, "print(lift.get_scale())", "scale:told"),
    (ZERO, FORWARD, "print(turn, lift.get_scale())", "scale:told"),
    (ZERO, FORWARD, "print('scale', lift.get_scale())", "scale:told"),
    (ZERO, FORWARD, "logging.info(lift.get_scale())", "scale:told"),
    (ZERO, FORWARD, "logging.info(f'{lift.get_scale()}')", "scale:told"),
    (ZERO, FORWARD, "writer.add_scalar('scale', lift.get_scale(), turn)", "scale:told"),
    (ZERO, FORWARD, "print(loss.item(), lift.get_scale())", ""),
    (ZERO, FORWARD, "print(loss, lift.get_scale())", ""),
    (ZERO, FORWARD, "scale = lift.get_scale()", ""),
    (ZERO, FORWARD, "keep(lift.get_scale())", ""),
    (ZERO, FORWARD, "if turn % 100 == 0:\n    print(lift.get_scale())", ""),
    (
        ZERO,
        (
            "loss = 0\nfor part in signal:\n"
            '    with torch.autocast("cuda"):\n        loss = loss + F.mse_loss(cell(part), echo)'
        ),
        "",
        EACH,
    ),
    (
        ZERO,
        (
            'loss = 0\nwith torch.autocast("cuda"):\n'
            "    for part in signal:\n        loss = loss + F.mse_loss(cell(part), echo)"
        ),
        "",
        "",
    ),
    (
        ZERO,
        (
            'loss = 0\nwith torch.autocast("cuda", cache_enabled=False):\n'
            "    for part in signal:\n        loss = loss + F.mse_loss(cell(part), echo)"
        ),
        "",
        "cast:no-cache",
    ),
    (ZERO, 'with torch.autocast("cuda", cache_enabled=False):\n    loss = F.mse_loss(cell(signal), echo)', "", ""),
]


@pytest.mark.parametrize(("zero", "forward", "after", "label"), ITERATIONS)
def test_repeated_work_in_an_iteration(zero: str, forward: str, after: str, label: str) -> None:
    parts = {name: indent(text, "    ") for name, text in (("zero", zero), ("forward", forward), ("after", after))}
    found = check_source(TRAIN.format(**parts), "train.py", Settings(select=frozenset({"AMP701"})))
    assert [each.label for each in found] == ([label] if label else [])
