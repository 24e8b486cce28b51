"""Calls that torch refuses: a test that expects the refusal has no finding, and code that goes on after it has one."""

# mypy: allow-untyped-calls

from __future__ import annotations

import contextlib
import unittest
from typing import Any

import pytest
import torch
from torch import nn

from pytest_amp_check import Run, record

pytestmark = pytest.mark.usefixtures("patched_once")


class Training:
    """A model with scaled gradients, its optimizer and its scaler."""

    def __init__(self) -> None:
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.scaler: Any = torch.amp.GradScaler("cpu", init_scale=2.0**8)
        self.run_backward()

    def run_backward(self) -> None:
        self.optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = self.model(torch.ones(2, 4)).float().mean()
        self.scaler.scale(loss).backward()


def codes(run: Run) -> list[str]:
    assert run.failure is None
    return [finding.code for finding in run.findings]


def test_a_second_unscale_that_a_test_expects_to_be_refused() -> None:
    with record() as run:
        training = Training()
        training.scaler.unscale_(training.optimizer)
        with pytest.raises(RuntimeError, match="already been called"):
            training.scaler.unscale_(training.optimizer)
        training.scaler.step(training.optimizer)
        training.scaler.update()
    assert codes(run) == []


@pytest.mark.parametrize(
    ("attribute", "message"), [("grad", "to be a Tensor or None"), ("grad.data", "data has to be a tensor")]
)
def test_a_gradient_is_still_scaled_after_an_assignment_that_torch_refuses(attribute: str, message: str) -> None:
    with record() as run:
        training = Training()
        weight = training.model.weight
        with pytest.raises(TypeError, match=message):
            setattr(weight.grad if attribute == "grad.data" else weight, attribute.rpartition(".")[2], 5)
        torch.nn.utils.clip_grad_norm_(training.model.parameters(), 1.0)
        training.scaler.step(training.optimizer)
        training.scaler.update()
    assert codes(run) == ["AMP201"]


@pytest.mark.parametrize("method", ["unscale_", "step"])
def test_a_call_without_an_optimizer_leaves_the_state(method: str) -> None:
    with record() as run:
        training = Training()
        with pytest.raises(AttributeError, match="has no attribute 'param_groups'"):
            getattr(training.scaler, method)(5)
        torch.nn.utils.clip_grad_norm_(training.model.parameters(), 1.0)
        training.scaler.step(training.optimizer)
        training.scaler.update()
    assert codes(run) == ["AMP201"]


def test_a_second_unscale_that_is_refused_and_passed_over() -> None:
    with record() as run:
        training = Training()
        training.scaler.unscale_(training.optimizer)
        with contextlib.suppress(RuntimeError):
            training.scaler.unscale_(training.optimizer)
        training.scaler.step(training.optimizer)
        training.scaler.update()
    assert codes(run) == ["AMP209"]


def test_a_second_step_that_a_test_expects_to_be_refused() -> None:
    with record() as run:
        training = Training()
        training.scaler.step(training.optimizer)
        with pytest.raises(RuntimeError, match="already been called"):
            training.scaler.step(training.optimizer)
        training.scaler.update()
    assert codes(run) == []


def test_a_second_step_that_is_refused_and_passed_over() -> None:
    with record() as run:
        training = Training()
        training.scaler.step(training.optimizer)
        with contextlib.suppress(RuntimeError):
            training.scaler.step(training.optimizer)
        training.scaler.update()
    assert codes(run) == ["AMP206"]


@pytest.mark.parametrize("is_matched", [False, True])
def test_a_second_unscale_that_a_unittest_expects_to_be_refused(is_matched: bool) -> None:
    case = unittest.TestCase()
    with record() as run:
        training = Training()
        training.scaler.unscale_(training.optimizer)
        if is_matched:
            with case.assertRaisesRegex(RuntimeError, "already been called"):  # noqa: PT027 - as in a unittest
                training.scaler.unscale_(training.optimizer)
        else:
            with case.assertRaises(RuntimeError):  # noqa: PT027 - as in a unittest
                training.scaler.unscale_(training.optimizer)
        training.scaler.step(training.optimizer)
        training.scaler.update()
    assert codes(run) == []
