"""Calls that torch refuses: a test that expects the refusal has no finding, and code that goes on after it has one."""

# mypy: allow-untyped-calls

from __future__ import annotations

import contextlib
import unittest
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from pytest_amp_check import Run, record

pytestmark = pytest.mark.usefixtures("patched_once")

raises = pytest.raises


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


def test_a_second_unscale_that_is_expected_by_other_forms_of_the_same_context() -> None:
    for is_named in (False, True):
        with record() as run:
            training = Training()
            training.scaler.unscale_(training.optimizer)
            if is_named:
                with raises(RuntimeError, match="already been called"):
                    training.scaler.unscale_(training.optimizer)
            else:
                with contextlib.nullcontext(), pytest.raises(RuntimeError, match="already been called"):
                    training.scaler.unscale_(training.optimizer)
            training.scaler.step(training.optimizer)
            training.scaler.update()
        assert codes(run) == []


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


@pytest.mark.parametrize(
    ("construct", "label"),
    [
        (lambda: torch.autocast("cpu", torch.float32), "autocast:unsupported-dtype"),
        (lambda: torch.autocast("cpu", dtype=torch.float32), "autocast:unsupported-dtype"),
        (lambda: torch.autocast(device_type="cpu", dtype=torch.float32), "autocast:unsupported-dtype"),
        (lambda: torch.autocast("cpu", dtype=any_value("bfloat16")), "autocast:string-dtype"),
        (lambda: torch.autocast("cpu", dtype=any_value(True)), "autocast:bool-dtype"),
        (lambda: torch.autocast("cpu:0", dtype=torch.bfloat16), "autocast:indexed-device"),
        (lambda: torch.autocast(device_type="cpu:0", dtype=torch.bfloat16), "autocast:indexed-device"),
        (lambda: torch.autocast("CPU", dtype=torch.bfloat16), "autocast:unknown-device"),
        (lambda: torch.autocast(any_value(torch.device("cpu")), dtype=torch.bfloat16), "autocast:device-object"),
        (lambda: torch.autocast("cpu", dtype=torch.bfloat16, enabled=any_value(1)), "autocast:not-a-bool"),
        (lambda: torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=any_value(1)), "autocast:not-a-bool"),
        (lambda: any_value(torch.autocast)("cpu", dtype=torch.bfloat16, on=True), "autocast:unknown-argument"),
        (lambda: any_value(torch.autocast)(dtype=torch.bfloat16), "autocast:no-device"),
        (lambda: any_value(torch.autocast)("cpu", torch.bfloat16, True, True, 1), "autocast:too-many"),
        (lambda: torch.autocast("cpu", torch.bfloat16, True, False), None),
        (lambda: torch.autocast("cpu", dtype=torch.bfloat16, enabled=True, cache_enabled=False), None),
        (lambda: torch.autocast(device_type="cuda", dtype=torch.float16, enabled=False), None),
        (lambda: torch.autocast("cpu"), None),
    ],
)
def test_the_arguments_of_autocast_are_checked_at_its_construction(construct: Any, label: str | None) -> None:
    with record() as run, contextlib.suppress(RuntimeError, TypeError, ValueError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        construct()
    assert run.failure is None
    line = construct.__code__.co_firstlineno
    assert [(finding.label, finding.line) for finding in run.findings] == [(label, line)] * (label is not None)


class OwnScaler(torch.amp.GradScaler):
    """A scaler of the program."""


@pytest.mark.parametrize(
    ("construct", "label"),
    [
        (lambda: torch.amp.GradScaler("cpu", init_scale=-1.0), "scaler:zero-scale"),
        (lambda: torch.amp.GradScaler("cpu", 0.0), "scaler:zero-scale"),
        (lambda: any_value(torch.cpu.amp).GradScaler(0.0), "scaler:zero-scale"),
        (lambda: OwnScaler("cpu", 0.0), "scaler:zero-scale"),
        (lambda: torch.amp.GradScaler("cpu", any_value(True)), "scaler:bool-as-scale"),
        (lambda: torch.amp.GradScaler("cpu", any_value("cpu")), "scaler:device-as-scale"),
        (lambda: torch.amp.GradScaler("cpu", any_value(torch.device("cpu"))), "scaler:device-as-scale"),
        (lambda: torch.amp.GradScaler(any_value(2.0**10)), "scaler:number-as-device"),
        (lambda: torch.amp.GradScaler("cpu", enabled=any_value(torch.bfloat16)), "scaler:wrong-dtype"),
        (lambda: torch.amp.GradScaler("cpu", growth_factor=0.5, backoff_factor=2.0), "scaler:factors-swapped"),
        (lambda: torch.amp.GradScaler("cpu", 2.0**8, 0.5), "scaler:growth-factor"),
        (lambda: torch.amp.GradScaler("cpu", backoff_factor=0.0), "scaler:zero-backoff"),
        (lambda: torch.amp.GradScaler("cpu", init_scale=-1.0, enabled=False), None),
        (lambda: torch.amp.GradScaler("cpu", any_value(torch.tensor(8.0))), None),
        (lambda: torch.amp.GradScaler("cpu", 2.0**8, 2.0, 0.5), None),
        (lambda: torch.amp.GradScaler("cpu"), None),
    ],
)
def test_the_arguments_of_a_scaler_are_checked_at_its_construction(construct: Any, label: str | None) -> None:
    with record() as run, contextlib.suppress(AssertionError, TypeError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        construct()
    assert run.failure is None
    line = construct.__code__.co_firstlineno
    found = [(finding.label, finding.line) for finding in run.findings if finding.code == "AMP216"]
    assert found == [(label, line)] * (label is not None)


def any_value(value: Any) -> Any:
    """Return a value that a type checker accepts everywhere."""
    return value
