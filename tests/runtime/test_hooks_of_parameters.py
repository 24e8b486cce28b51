"""Hooks that read a scaled gradient, on each of an optimizer's parameters."""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from pytest_amp_check import record

pytestmark = pytest.mark.usefixtures("patched_once")


@pytest.mark.parametrize("hooked", range(5))
def test_a_hook_on_any_of_a_few_parameters_is_seen(hooked: int) -> None:
    model = nn.ParameterList([torch.ones(2) for _ in range(5)])
    sizes = []

    def read_size(grad: torch.Tensor) -> None:
        sizes.append(grad.norm().item())

    model[hooked].register_hook(read_size)
    with record() as run:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
        for _ in range(2):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = torch.stack([(parameter * parameter).sum() for parameter in model]).sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert (run.failure, len(sizes)) == (None, 2)
    assert [finding.label for finding in run.findings] == ["read@scaled"]
    assert run.findings[0].line == read_size.__code__.co_firstlineno + 1


def train(
    scaler: Any, optimizers: Sequence[torch.optim.Optimizer], loss_of: Callable[[], torch.Tensor], passes: int = 2
) -> list[tuple[str, str]]:
    """Record some steps of optimizers. Return label and problem of each finding."""
    with record() as run:
        for _ in range(passes):
            for optimizer in optimizers:
                optimizer.zero_grad()
            scaler.scale(loss_of()).backward()
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
    assert run.failure is None
    return [(finding.label, finding.message.partition(":")[0]) for finding in run.findings]


@pytest.mark.parametrize(
    ("change", "passes", "expected"),
    [
        # The gradient before a change in place is known only once the hook is known to change gradients in place.
        (lambda grad: grad.clamp_(-0.5, 0.5), 1, []),
        (lambda grad: grad.clamp_(-0.5, 0.5), 2, ["edit@scaled"]),
        (lambda grad: grad.mul_(0.5), 3, []),
        (lambda grad: grad.neg_().neg_(), 3, []),
        (lambda grad: grad.div_(2.0**8), 3, []),
    ],
)
def test_a_hook_that_changes_its_gradient_in_place(
    change: Callable[[torch.Tensor], object], passes: int, expected: list[str]
) -> None:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(8))
    weight.register_hook(lambda grad: (change(grad), None)[1])
    optimizer, scaler = torch.optim.SGD([weight], lr=0.1), torch.amp.GradScaler("cpu", init_scale=2.0**8)
    found = train(scaler, [optimizer], lambda: (weight * torch.randn(8)).square().sum(), passes)
    assert [label for label, _ in found] == expected


def test_a_hook_of_a_parameter_that_the_loss_does_not_reach() -> None:
    first, second = (nn.Parameter(torch.ones(2)) for _ in range(2))
    second.register_hook(lambda grad: grad.clamp(-0.5, 0.5))
    optimizer, scaler = torch.optim.SGD([first, second], lr=0.1), torch.amp.GradScaler("cpu", init_scale=2.0**8)
    found = train(scaler, [optimizer], lambda: first.square().sum())
    assert [label for label, _ in found] == []


def test_a_change_after_the_accumulation_is_one_of_the_optimizer_that_owns_the_gradient() -> None:
    first, second = (nn.Parameter(torch.ones(2)) for _ in range(2))
    generator, critic = torch.optim.SGD([first], lr=0.1), torch.optim.SGD([second], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    second.register_post_accumulate_grad_hook(lambda weight: (weight.grad.clamp_(-0.5, 0.5), None)[1])
    with record() as run:
        for _ in range(2):
            generator.zero_grad()
            critic.zero_grad()
            scaler.scale(first.square().sum() + second.square().sum()).backward()
            scaler.step(generator)
            scaler.step(critic)
            scaler.update()
    assert run.failure is None
    assert [(finding.label, finding.message.partition("` ")[0]) for finding in run.findings] == [
        ("edit@scaled", "Gradients of `critic")
    ]


@pytest.mark.parametrize("averages", [5, 6])
def test_hooks_are_examined_in_six_passes(averages: int) -> None:
    weight, passes = nn.Parameter(torch.tensor([1.0, 2.0, 3.0])), 0

    def bound_late(grad: torch.Tensor) -> torch.Tensor:
        nonlocal passes
        passes += 1
        return grad * 0.5 if passes <= averages else grad.clamp(-0.5, 0.5)

    weight.register_hook(bound_late)
    optimizer, scaler = torch.optim.SGD([weight], lr=0.01), torch.amp.GradScaler("cpu", init_scale=2.0**8)
    found = train(scaler, [optimizer], lambda: weight.pow(3).sum(), passes=averages + 3)
    assert [label for label, _ in found] == ["edit@scaled"] * (averages < 6)


def test_a_hook_that_clips_by_the_norm() -> None:
    weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
    weight.register_hook(lambda grad: grad * (0.5 / grad.norm()))
    optimizer, scaler = torch.optim.SGD([weight], lr=0.1), torch.amp.GradScaler("cpu", init_scale=2.0**8)
    factors = iter([1.0, 2.0, 3.0])
    ((label, problem),) = train(scaler, [optimizer], lambda: weight.square().sum() * next(factors), passes=3)
    assert label == "clip@scaled-by-hand"
    assert problem.startswith("`this hook` clips gradients")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda weight: weight.grad.clamp_(-0.5, 0.5), ["edit@scaled"]),
        (lambda weight: weight.grad.div_(2.0, rounding_mode="floor"), ["edit@scaled"]),
        (lambda weight: weight.grad.fill_(0.5), ["edit@scaled"]),
        # Zero is right with any scale, and an infinity makes the scaler skip the step.
        (lambda weight: weight.grad.fill_(0.0), []),
        (lambda weight: weight.grad.fill_(float("inf")), []),
        (lambda weight: weight.grad.zero_(), []),
        (lambda weight: weight.grad.mul_(0.5), []),
        (lambda weight: weight.grad.div_(2.0), []),
        (lambda weight: weight.grad.neg_(), []),
        # Another tensor than the gradient.
        (lambda weight: weight.grad.clone().clamp_(-0.5, 0.5), []),
        (lambda weight: weight.grad.mul_(0.5 / weight.grad.norm()), ["clip@scaled-by-hand"]),
    ],
)
def test_a_hook_that_changes_the_accumulated_gradient_in_place(
    change: Callable[[Any], object], expected: list[str]
) -> None:
    weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
    weight.register_post_accumulate_grad_hook(lambda weight: (change(weight), None)[1])
    optimizer, scaler = torch.optim.SGD([weight], lr=0.01), torch.amp.GradScaler("cpu", init_scale=2.0**8)
    factors = iter([1.0, 2.0, 3.0])
    found = train(scaler, [optimizer], lambda: weight.square().sum() * next(factors), passes=3)
    assert [label for label, _ in found] == expected
