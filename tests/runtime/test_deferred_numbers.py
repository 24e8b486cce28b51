"""Numbers on a device: known some steps later, in order, and as they were when they were asked for."""

# mypy: allow-untyped-calls

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pytest_amp_check import record
from pytest_amp_check.runtime.record.deferred_values import WAITING, DeferredValues

pytestmark = pytest.mark.usefixtures("patched_once")

MODULE = "pytest_amp_check.runtime.record.deferred_values"


@pytest.fixture
def on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let numbers count as being on a device, which this machine may lack."""
    monkeypatch.setattr(f"{MODULE}._is_on_cpu", lambda tensor: False)


@pytest.mark.usefixtures("on_a_device")
def test_a_number_is_the_one_at_the_time_of_the_request() -> None:
    values = DeferredValues()
    single, several = torch.tensor(1.5), torch.tensor([1.0, 2.0, 4.0])
    numbers = [values.defer_number(single), values.defer_number(several), values.defer_number(single.reshape(1))]
    single.fill_(9.0)
    several.fill_(9.0)
    assert [number.is_known for number in numbers] == [False] * 3
    assert numbers[1].value == 7.0
    # One wait fetches all numbers.
    assert [number.is_known for number in numbers] == [True] * 3
    assert [number.value for number in numbers] == [1.5, 7.0, 1.5]


def test_a_number_on_the_cpu_is_known_at_once() -> None:
    values = DeferredValues()
    parameter = nn.Parameter(torch.tensor([1.0, 2.0]))
    numbers = [values.defer_number(each) for each in (torch.tensor(1.5), parameter, parameter * 2.0)]
    assert [number.is_known for number in numbers] == [True] * 3
    assert [number.value for number in numbers] == [1.5, 3.0, 6.0]


def test_a_number_of_another_class_of_tensors_is_known_at_once() -> None:
    class Own(torch.Tensor):
        pass

    values = DeferredValues()
    own = torch.tensor([1.0, 2.0]).as_subclass(Own)
    assert [values.defer_number(each).value for each in (own, own[0], own.requires_grad_())] == [3.0, 1.0, 3.0]


@pytest.mark.usefixtures("on_a_device")
@pytest.mark.parametrize("count", [WAITING - 1, WAITING])
def test_callbacks_run_in_order_once_enough_numbers_wait(count: int) -> None:
    values, called = DeferredValues(), list[float]()
    for i in range(count):
        number = values.defer_number(torch.tensor(float(i)))
        values.run_when_known(lambda number=number: called.append(number.value))  # type: ignore[misc]
    assert called == ([] if count < WAITING else list(range(count)))
    values.fetch_all()
    assert called == list(range(count))
    values.run_when_known(lambda: called.append(-1.0))
    assert called[-1] == -1.0


@pytest.mark.usefixtures("on_a_device")
def test_a_graph_that_is_captured_is_read_when_it_has_run(monkeypatch: pytest.MonkeyPatch) -> None:
    values, called, total = DeferredValues(), list[float](), torch.tensor(0.0)
    assert values.can_fetch
    monkeypatch.setattr(f"{MODULE}._is_captured", lambda tensor: True)
    numbers = [values.defer_number(total) for _ in range(WAITING)]
    values.run_when_known(lambda: called.append(numbers[0].value))
    assert (values.can_fetch, called) == (False, [])
    monkeypatch.setattr(f"{MODULE}._is_captured", lambda tensor: False)
    total.fill_(2.0)
    assert values.can_fetch
    values.fetch_all()
    assert called == [2.0]


def train(steps: int) -> Any:
    """Record steps, of which some are skipped."""
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    with record() as run:
        for step in range(steps):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = model(torch.randn(4, 8)).float().square().mean()
            torch.autograd.backward(scaler.scale(loss * float("inf") if step % 7 in (2, 3) else loss))
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
    assert run.failure is None
    return run


@pytest.mark.parametrize("steps", [9, 100])
def test_steps_of_a_device_are_those_of_the_cpu(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    here = train(steps)
    monkeypatch.setattr(f"{MODULE}._is_on_cpu", lambda tensor: False)
    there = train(steps)
    assert [str(step.as_dict()) for step in there.steps] == [str(step.as_dict()) for step in here.steps]
    assert there.scale_history == here.scale_history
    assert (there.skipped_total, here.skipped_total) == (sum(i % 7 in (2, 3) for i in range(steps)),) * 2
    assert [finding.label for finding in there.findings] == [finding.label for finding in here.findings]
