"""Scalers that the code constructs only while there is none, and scalers that each step constructs again."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

PROGRAM = """\
from functools import cached_property

import torch
from torch import nn


class Trainer:
    def __init__(self, net):
        self.net = net
        self.opt = torch.optim.SGD(net.parameters(), lr=0.1)
        {first}

{method}
    def step(self, x, y):
        {made}
        self.opt.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(self.net(x), y)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.opt)
        self.scaler.update()


def main(net, loader):
    trainer = Trainer(net)
    for x, y in loader:
        trainer.step(x, y)
"""
CACHED = """\
    @cached_property
    def scaler(self):
        return torch.amp.GradScaler("cuda")
"""
LAZY = """\
    @property
    def scaler(self):
        if self._scaler is None:
            self._scaler = torch.amp.GradScaler("cuda")
        return self._scaler
"""
MADE = 'self.scaler = torch.amp.GradScaler("cuda")'


@pytest.mark.parametrize(
    ("first", "method", "made", "codes"),
    [
        ("self.scaler = None", "", f"if self.scaler is None:\n            {MADE}", []),
        ("self.scaler = None", "", f"if not self.scaler:\n            {MADE}", []),
        ("pass", "", f'if not hasattr(self, "scaler"):\n            {MADE}', []),
        ("self.scaler = None", "", f"if self.scaler is None and x is not None:\n            {MADE}", []),
        ("pass", CACHED, "pass", []),
        ("self._scaler = None", LAZY, "pass", []),
        ("self.scaler = None", "", MADE, ["AMP208"]),
        ("self.scaler = None", "", f"if x is not None:\n            {MADE}", ["AMP208"]),
        ("self.scaler = None", "", f"if self.net is None:\n            pass\n        {MADE}", ["AMP208"]),
    ],
)
def test_lazy_scalers(first: str, method: str, made: str, codes: list[str]) -> None:
    source = PROGRAM.format(first=first, method=method, made=made)
    assert [finding.code for finding in check_source(source)] == codes


RAISES = """\
import torch
from torch import nn


def check(net):
    for p in net.parameters():
        if not torch.isfinite(p.grad).all():
            raise FloatingPointError("not finite")


def main(net, loader):
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
{body}


def train(net, opt, scaler, loader):
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(net(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
{step}
        scaler.update()
"""
CAUGHT = """\
        try:
            check(net)
            scaler.step(opt)
        except FloatingPointError:
            print("bad batch")
"""
PLAIN = "        check(net)\n        scaler.step(opt)\n"
CALL = "    train(net, opt, scaler, loader)\n"
AROUND_ALL = """\
    try:
        train(net, opt, scaler, loader)
    except FloatingPointError:
        print("the run ends")
"""


@pytest.mark.parametrize(
    ("body", "step", "codes"),
    [(CALL, CAUGHT, []), (CALL, PLAIN, ["AMP213"]), (AROUND_ALL, PLAIN, ["AMP213"]), (AROUND_ALL, CAUGHT, [])],
)
def test_errors_that_a_loop_catches_end_no_run(body: str, step: str, codes: list[str]) -> None:
    assert [finding.code for finding in check_source(RAISES.format(body=body, step=step))] == codes
