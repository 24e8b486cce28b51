"""Runs with optimizers that share parameters."""

# mypy: allow-untyped-calls

from __future__ import annotations

import gc
from typing import Any

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


@pytest.mark.parametrize(
    ("of_first", "of_second", "is_discarded"),
    [("ab", "b", True), ("ab", "ab", True), ("ab", "bc", False), ("b", "ab", False), ("a", "b", False)],
)
def test_a_clear_before_the_step_of_another_optimizer(of_first: str, of_second: str, is_discarded: bool) -> None:
    weights = {name: nn.Parameter(torch.ones(2)) for name in "abc"}
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with record() as run:
        first = torch.optim.SGD([weights[name] for name in of_first], lr=0.1)
        second = torch.optim.SGD([weights[name] for name in of_second], lr=0.1)
        loss = torch.stack([weight.square().sum() for weight in weights.values()]).sum()
        scaler.scale(loss).backward()
        first.zero_grad(set_to_none=False)
        scaler.step(second)
        scaler.update()
    assert run.failure is None
    assert [finding.label for finding in run.findings] == ["step@discarded"] * is_discarded


class Dividing(torch.optim.SGD):
    """An optimizer that divides copies of its gradients by the scale."""

    _step_supports_amp_scaling = True

    def step(self, closure: Any = None) -> Any:
        for p in self.param_groups[0]["params"]:
            p.data.sub_(p.grad / self.grad_scale)  # type: ignore[attr-defined]  # of the scaler


@pytest.mark.parametrize(
    ("kind", "options", "labels"),
    [
        # These leave unscaled gradients.
        (torch.optim.SGD, {}, []),
        (torch.optim.SGD, {"fused": True}, []),
        (Dividing, {}, ["plain-step@scaled"]),
    ],
    ids=["plain", "fused", "of the program"],
)
def test_a_plain_step_after_the_step_of_a_scaler_for_the_same_parameters(
    kind: type[torch.optim.SGD], options: dict[str, Any], labels: list[str]
) -> None:
    weight = nn.Parameter(torch.ones(2))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with record() as run:
        first, second = kind([weight], lr=0.1, **options), torch.optim.SGD([weight], lr=0.1)
        scaler.scale(weight.square().sum()).backward()
        scaler.step(first)
        second.step()
        scaler.update()
    assert run.failure is None, run.failure
    assert [finding.label for finding in run.findings] == labels


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


@pytest.mark.parametrize(("cleared", "is_stale"), [((0, 1), False), ((0,), True), ((1,), True)])
def test_a_module_with_some_of_the_parameters_of_an_optimizer(cleared: tuple[int, ...], is_stale: bool) -> None:
    modules = [nn.Linear(2, 2), nn.Linear(2, 2)]
    frozen = torch.optim.SGD(nn.Linear(2, 2).requires_grad_(False).parameters(), lr=0.1)
    with record() as run:
        optimizer = torch.optim.SGD([p for module in modules for p in module.parameters()], lr=0.1)
        for _ in range(2):
            nn.ModuleList([modules[i] for i in cleared]).zero_grad()
            frozen.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = modules[1](modules[0](torch.ones(2, 2))).sum()
            loss.backward()
            optimizer.step()
    assert run.failure is None
    assert [finding.label for finding in run.findings] == ["backward@stale"] * is_stale


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_new_optimizer_holds_no_parameters_of_a_freed_one(is_shared: bool) -> None:
    """The recording numbers optimizers, and gives the number of a freed one to the next."""
    shared, other = nn.Linear(2, 1), nn.Linear(2, 1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with record() as run:
        freed = torch.optim.SGD(shared.parameters(), lr=0.1)
        kept = torch.optim.SGD((shared if is_shared else nn.Linear(1, 1)).parameters(), lr=0.1)
        del freed
        gc.collect()
        second = torch.optim.SGD(other.parameters(), lr=0.1)
        scaler.scale(shared(torch.ones(1, 2)).sum() + other(torch.ones(1, 2)).sum()).backward()
        if is_shared:
            scaler.unscale_(kept)
            nn.utils.clip_grad_norm_(shared.parameters(), 1.0)
            scaler.step(kept)
        scaler.step(second)
        scaler.update()
    assert (run.failure, run.findings) == (None, [])


def test_the_last_of_two_optimizers_of_the_same_parameters_still_holds_them() -> None:
    model = nn.Linear(2, 1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with record() as run:
        freed, kept = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
        del freed
        gc.collect()
        scaler.scale(model(torch.ones(1, 2)).sum()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(kept)
        scaler.update()
    assert run.failure is None
    assert [finding.label for finding in run.findings] == ["clip@scaled"]


def test_a_clear_of_an_optimizer_hides_no_edit_of_one_that_took_the_number_of_its_twin() -> None:
    shared, other = nn.Linear(2, 1), nn.Linear(2, 1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with record() as run:
        freed, kept = (torch.optim.SGD(shared.parameters(), lr=0.1) for _ in range(2))
        del freed
        gc.collect()
        second = torch.optim.SGD(other.parameters(), lr=0.1)
        scaler.scale(shared(torch.ones(1, 2)).sum() + other(torch.ones(1, 2)).sum()).backward()
        assert other.weight.grad is not None
        torch.clamp(other.weight.grad, -1, 1, out=other.weight.grad)
        kept.zero_grad()
        scaler.step(second)
        scaler.update()
    assert run.failure is None
    assert [finding.label for finding in run.findings] == ["edit@scaled"]
