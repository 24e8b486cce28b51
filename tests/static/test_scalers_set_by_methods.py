"""A scaler that a method sets, before training, is there in each step or in none."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

STRATEGY = """\
import torch

class Strategy(Base):
    def initialize(self, setup):
        {setup}

    def train_step(self, loader, compute, no_sync=False):
        for step in range(self.steps):
            is_last = {window}
            loss = compute(step) / self.k
            if {alive}:
                self.scaler.scale(loss).backward()
            else:
                loss.backward()
            if is_last:
                if {alive_late}:
                    self.scaler.step(self.optimizer)
                    self.scaler.update()
                else:
                    self.optimizer.step()
                self.optimizer.zero_grad()
"""
SETUPS = {
    "an import of the method": """if self.dtype == torch.float16:
            from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
            self.scaler = ShardedGradScaler(growth_interval=400)
        else:
            self.scaler = None""",
    "an import under another name": """import torch.distributed.fsdp.sharded_grad_scaler as sharded
        self.scaler = sharded.ShardedGradScaler() if setup.low else None""",
    "an unknown function": "self.scaler = make_scaler(setup)",
    "an argument": "self.scaler = setup.scaler",
}
WINDOWS = ("True", "(step + 1) % self.k == 0", "((step + 1) % self.k == 0 or step + 1 == self.steps) and not no_sync")


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("setup", SETUPS.values(), ids=SETUPS)
def test_the_scaler_of_a_window_is_that_of_its_step(setup: str, window: str) -> None:
    alive = "self.scaler is not None"
    program = STRATEGY.format(setup=setup, window=window, alive=alive, alive_late=alive)
    assert [f for f in check_source(program) if f.code in ("AMP203", "AMP204")] == []


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("setup", SETUPS.values(), ids=SETUPS)
def test_another_condition_of_the_step_is_found(setup: str, window: str) -> None:
    program = STRATEGY.format(
        setup=setup, window=window, alive="self.scaler is not None and self.low", alive_late="self.scaler is not None"
    )
    assert "AMP203" in [finding.code for finding in check_source(program)]
