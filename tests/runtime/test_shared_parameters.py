"""Runs with optimizers that share parameters."""

# mypy: allow-untyped-calls

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_amp_check import record

pytestmark = pytest.mark.usefixtures("patched_once")


@pytest.mark.parametrize(
    ("of_first", "of_second", "expected"),
    [
        ("ab", "b", []),
        ("ab", "ab", []),
        ("abc", "ca", []),
        ("ab", "bc", ["`second.zero_grad()`"]),
        ("ab", "c", ["`second.zero_grad()`"]),
        ("b", "ab", ["`second.zero_grad()`"]),
    ],
)
def test_a_clear_of_all_parameters_of_another_optimizer_clears_both(
    of_first: str, of_second: str, expected: list[str]
) -> None:
    weights = {name: nn.Parameter(torch.ones(2)) for name in "abc"}
    with record() as run:
        first = torch.optim.SGD([weights[name] for name in of_first], lr=0.1)
        second = torch.optim.SGD([weights[name] for name in of_second], lr=0.1)
        for _ in range(2):
            first.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = torch.stack([weight.square().sum() for weight in weights.values()]).sum()
            loss.backward()
            first.step()
            second.step()
    assert run.failure is None
    assert [finding.label for finding in run.findings] == ["backward@stale"] * len(expected)
    assert all(text in finding.message for finding, text in zip(run.findings, expected, strict=True))


def test_a_hook_of_a_parameter_of_two_optimizers_is_reported_once() -> None:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(8))

    def bound(grad: torch.Tensor) -> torch.Tensor:
        return grad.clamp(-0.5, 0.5)

    weight.register_hook(bound)
    with record() as run:
        first, second = (torch.optim.SGD([weight], lr=0.1) for _ in range(2))
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
        for optimizer in (first, second):
            optimizer.zero_grad()
            scaler.scale((weight * torch.randn(8)).square().sum()).backward()
            scaler.step(optimizer)
            scaler.update()
    assert run.failure is None
    assert [(finding.label, finding.line) for finding in run.findings] == [
        ("edit@scaled", bound.__code__.co_firstlineno)
    ]
