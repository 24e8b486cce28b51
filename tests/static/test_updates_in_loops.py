"""Updates of a scaler in the loop that steps its optimizers."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

PROGRAM = """\
import torch

class Driver:
    def __init__(self, model, optimizers):
        self.model, self.optimizers = model, optimizers
        self.scaler = torch.amp.GradScaler("cuda")

    def train(self, loader):
        for x in loader:
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = self.model(x).mean()
            self.scaler.scale(loss).backward()
            self.step_all()

    def backward(self):
        self.scaler.scale(self.model(1).mean()).backward()

    def step_all(self):
        {statements}
"""


def labels(statements: str) -> list[str]:
    findings = check_source(PROGRAM.format(statements=statements.replace("\n", "\n        ")))
    return [finding.label for finding in findings if finding.code in ("AMP206", "AMP207")]


@pytest.mark.parametrize(
    "statements",
    [
        "for optimizer in self.optimizers:\n    self.scaler.step(optimizer)\n    self.scaler.update()",
        "for number, each in enumerate(self.optimizers):\n    self.scaler.step(each)\n    self.scaler.update()",
        "for name, each in self.optimizers.items():\n    self.scaler.step(each)\n    self.scaler.update()",
    ],
)
def test_an_update_for_each_optimizer(statements: str) -> None:
    assert labels(statements) == ["update@each"]


@pytest.mark.parametrize(
    "statements",
    [
        "for optimizer in self.optimizers:\n    self.scaler.step(optimizer)\nself.scaler.update()",
        # The last iteration alone updates.
        "for n, each in enumerate(self.optimizers):\n    self.scaler.step(each)\n    if n == 3: self.scaler.update()",
        # Each optimizer has a whole cycle of its own.
        "for each in self.optimizers:\n    self.backward()\n    self.scaler.step(each)\n    self.scaler.update()",
        # The loop is over steps, not over optimizers.
        "for _ in range(1):\n    self.scaler.step(self.optimizers[0])\n    self.scaler.update()",
    ],
)
def test_an_update_after_all_optimizers(statements: str) -> None:
    assert "update@each" not in labels(statements)
