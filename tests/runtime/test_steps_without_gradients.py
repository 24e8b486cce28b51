"""AMP215 of runs for gradients that are cleared between a backward and a step without a scaler."""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from pytest_amp_check import record

pytestmark = pytest.mark.usefixtures("patched_once")


def find_cleared(between: Callable[[nn.Module, torch.optim.Optimizer], object], steps: int = 3) -> int:
    """Return the number of findings of AMP215 for a training in bfloat16 that calls a function before each step."""
    model = nn.Linear(4, 1)
    with record() as run:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(steps):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model(torch.ones(2, 4)).float().square().mean()
            loss.backward()
            between(model, optimizer)
            optimizer.step()
            optimizer.zero_grad()
    return sum(finding.code == "AMP215" for finding in run.findings)


def restore(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    kept = [p.grad for p in model.parameters()]
    optimizer.zero_grad()
    for p, grad in zip(model.parameters(), kept, strict=True):
        p.grad = grad


def refill(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad(set_to_none=False)
    for p in model.parameters():
        assert p.grad is not None
        p.grad.copy_(torch.ones_like(p))


def run_again(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()


class TestGradientsBeforeAStep:
    @pytest.mark.parametrize("to_none", [True, False])
    def test_cleared_gradients_are_reported_once(self, to_none: bool) -> None:
        assert find_cleared(lambda _, optimizer: optimizer.zero_grad(set_to_none=to_none)) == 1

    def test_gradients_cleared_through_the_model_are_reported(self) -> None:
        assert find_cleared(lambda model, _: model.zero_grad()) == 1

    @pytest.mark.parametrize("between", [restore, refill, run_again])
    def test_gradients_written_after_the_clear_are_not_reported(
        self, between: Callable[[nn.Module, torch.optim.Optimizer], object]
    ) -> None:
        assert find_cleared(between) == 0

    def test_one_dropped_batch_of_many_is_not_reported(self) -> None:
        dropped = iter([False, True, False, False])
        assert find_cleared(lambda _, optimizer: optimizer.zero_grad() if next(dropped) else None, steps=4) == 0
