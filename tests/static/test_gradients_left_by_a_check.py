"""Clears that a check of the gradients leaves out, so that infinities stay in them (AMP215)."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

LOOP = """\
import torch

def train(model, loader, optimizer, scaler, k):
    for i, x in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).mean() / k
        scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            scaler.unscale_(optimizer)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if {check}:
                scaler.step(optimizer)
                scaler.update()
                {clear}
                continue
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""
METHODS = """\
import torch

class Trainer:
    def __init__(self, model, optimizer, config):
        self.model, self.optimizer, self.config = model, optimizer, config
        self.scaler = torch.amp.GradScaler("cuda")

    def accumulate(self, x):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = self.model(x) / self.config.every
        self.scaler.scale(loss).backward()

    def update(self):
        self.scaler.unscale_(self.optimizer)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        if {check}:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            {clear}
            return
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()

    def train(self, loader):
        for i, x in enumerate(loader, 1):
            self.accumulate(x)
            if i % self.config.every == 0:
                self.update()
"""


@pytest.mark.parametrize("check", ["not torch.isfinite(norm)", "torch.isnan(norm)", "not math.isfinite(norm)"])
@pytest.mark.parametrize(
    ("program", "clear", "line"), [(LOOP, "optimizer.zero_grad()", 7), (METHODS, "self.optimizer.zero_grad()", 11)]
)
def test_the_branch_of_infinite_gradients(program: str, clear: str, line: int, check: str) -> None:
    program = "import math\n" + program
    findings = check_source(program.format(check=check, clear="pass"), "train.py")
    assert [(each.code, each.line) for each in findings] == [("AMP215", line + 1)]
    assert check_source(program.format(check=check, clear=clear), "train.py") == []


def test_a_branch_that_asks_for_something_else() -> None:
    assert check_source(LOOP.format(check="i > 100", clear="pass"), "train.py") == []
