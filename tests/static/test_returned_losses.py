"""Losses that a function returns after their backward: scaled, or as they were before."""

from __future__ import annotations

import pytest
from marks import marks, places

from pytest_amp_check import check_source

STEP = """\
import torch

class Trainer:
    def __init__(self, model, optimizer, precision=None):
        self.model, self.optimizer = model, optimizer
        self.scaler = torch.amp.GradScaler("cuda") if precision == "fp16" else None

    def finish(self):
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()

    def train_step(self, x, y):
        self.optimizer.zero_grad()
        with torch.autocast("cuda"):
            out = self.model(x)
            loss = torch.nn.functional.mse_loss(out, y)
{middle}
"""
MIDDLES = {
    "the scaled loss": """\
        if self.scaler:
            loss = self.scaler.scale(loss)
        loss.backward()  # AMP202
        self.finish()
        return loss
""",
    "with other outputs": """\
        if self.scaler:
            loss = self.scaler.scale(loss)
        loss.backward()  # AMP202
        self.finish()
        return loss, out
""",
    "in a dict": """\
        if self.scaler:
            loss = self.scaler.scale(loss)
        loss.backward()  # AMP202
        self.finish()
        return {"loss": loss, "out": out}
""",
    "through another method": """\
        loss = self.run(loss)
        self.finish()
        return loss

    def run(self, loss):
        if self.scaler:
            loss = self.scaler.scale(loss)
        loss.backward()  # AMP202
        return loss
""",
    "under a name of its own": """\
        scaled = self.scaler.scale(loss) if self.scaler else loss
        scaled.backward()
        self.finish()
        return loss
""",
    "scaled in the call": """\
        if self.scaler:
            self.scaler.scale(loss).backward()
        else:
            loss.backward()
        self.finish()
        return loss
""",
    "divided by the scale": """\
        if self.scaler:
            loss = self.scaler.scale(loss)
        loss.backward()
        self.finish()
        return loss / self.scaler.get_scale() if self.scaler else loss
""",
    "not returned": """\
        if self.scaler:
            loss = self.scaler.scale(loss)
        loss.backward()
        self.finish()
        return out
""",
    "returned before its backward": """\
        self.run(self.scaled(loss))
        self.finish()

    def scaled(self, loss):
        return self.scaler.scale(loss) if self.scaler else loss

    def run(self, loss):
        loss.backward()
""",
}


@pytest.mark.parametrize("middle", MIDDLES.values(), ids=MIDDLES)
def test_a_returned_loss_is_unscaled(middle: str) -> None:
    program = STEP.format(middle=middle)
    assert {place for place in places(check_source(program)) if place[1] == "AMP202"} == marks(program)


def test_a_loss_that_a_caller_reads_is_named_there() -> None:
    program = STEP.format(middle=MIDDLES["the scaled loss"].replace("  # AMP202", "")) + (
        "    def fit(self, loader):\n"
        "        for x, y in loader:\n"
        "            print(self.train_step(x, y).item())  # AMP202\n"
    )
    assert {place for place in places(check_source(program)) if place[1] == "AMP202"} == marks(program)
