"""Optimizers of a class that the program keeps in an attribute, and that are tested before their step."""

from __future__ import annotations

import pytest
from marks import marks, places, shown

from pytest_amp_check.static.engine import check_source

PROGRAM = """\
import torch
from torch.amp import GradScaler, autocast

class Rounding:
    def apply(self, blocks, data, loss_of):
        for block in blocks:
            self.train(block, data, loss_of)

    def train(self, block, data, loss_of):
        optimizer = self.optimizer_class(block.parameters(), lr=self.lr)
        if self.learns_scale:
            other = self.other_class(block.scales())
        else:
            other = None
        scaler = GradScaler() if self.use_amp else None
        for i in range(self.steps):
            with autocast("cuda", dtype=torch.float16):
                loss = loss_of(block(data[i]))
            if scaler:
                scaler.scale(loss).backward()
            else:
                loss.backward()
            {before}
            self.step_all(optimizer, other, scaler=scaler)
            {behind}

    def step_all(self, *optimizers, scaler=None):
        for optimizer in optimizers:
            if {test}:
                if scaler:
                    scaler.step(optimizer)
                else:
                    optimizer.step()
                optimizer.zero_grad()
"""
UPDATE = "if scaler: scaler.update()"


@pytest.mark.parametrize("test", ["optimizer", "optimizer is not None", "not optimizer is None"])
def test_an_optimizer_that_a_call_has_made_exists(test: str) -> None:
    assert check_source(PROGRAM.format(before="pass", behind=UPDATE, test=test), "train.py") == []


def test_an_update_before_the_steps_is_still_found() -> None:
    program = PROGRAM.format(before=f"{UPDATE}  # AMP207", behind="pass", test="optimizer")
    findings = check_source(program, "train.py")
    assert places(findings) == marks(program), shown(findings)
