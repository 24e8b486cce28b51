"""Gradient states of each optimizer by step, and the steps of mistakes."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import nn

from pytest_amp_check import record
from pytest_amp_check.runtime.record.states import SPANS, GradientHistory

pytestmark = pytest.mark.usefixtures("patched_once")


class Training:
    """A model with its optimizer and scaler, and methods for the steps of a recipe."""

    def __init__(self) -> None:
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def backward(self) -> None:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = self.model(torch.randn(8, 4)).square().mean()
        self.scaler.scale(loss).backward()

    def step(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def clip(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)


def optimizers(run: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run.as_dict()["states"]["optimizers"]
    return found


def test_steps_that_are_alike_are_one_span() -> None:
    training = Training()
    with record() as run:
        for index in range(6):
            training.optimizer.zero_grad()
            training.backward()
            if index >= 2:
                training.scaler.unscale_(training.optimizer)
                training.clip()
            training.step()
    assert optimizers(run) == [
        {
            "name": "self.optimizer",
            "spans": [[0, 1, ["clean", "scaled", "stepped"]], [2, 5, ["clean", "scaled", "unscaled", "stepped"]]],
        }
    ]
    assert run.as_dict()["states"]["violations"] == []


def test_a_mistake_is_reported_with_the_steps_at_which_it_is_made_and_the_state() -> None:
    training = Training()
    with record() as run:
        for index in range(7):
            training.optimizer.zero_grad()
            training.backward()
            if index in (1, 3, 4, 5):
                training.clip()
            training.step()
    (violation,) = run.as_dict()["states"]["violations"]
    (finding,) = run.findings
    assert (violation["code"], violation["filename"], violation["row"]) == ("AMP201", finding.filename, finding.line)
    assert (violation["optimizer"], violation["state"], violation["steps"]) == (0, "scaled", 4)
    assert violation["spans"] == [[1, 1], [3, 5]]


def test_gradients_that_are_not_cleared_go_on_from_the_step_before() -> None:
    training = Training()
    with record() as run:
        for _ in range(3):
            training.backward()
            training.step()
    assert optimizers(run)[0]["spans"] == [[0, 2, ["scaled", "stepped"]]]
    (violation,) = run.as_dict()["states"]["violations"]
    assert violation["state"] == "stepped"


def test_steps_count_over_all_optimizers() -> None:
    with record() as run:
        one, two = Training(), Training()
        for _ in range(2):
            one.optimizer.zero_grad()
            one.backward()
            one.step()
            two.optimizer.zero_grad()
            two.backward()
            two.step()
    spans = [each["spans"] for each in optimizers(run)]
    way = ["clean", "scaled", "stepped"]
    # The steps in between belong to the other optimizer, and do not interrupt the span.
    assert spans == [[[0, 2, way]], [[1, 3, way]]]


def test_a_step_that_torch_refuses_has_no_number() -> None:
    training = Training()
    with record() as run:
        for _ in range(2):
            training.optimizer.zero_grad()
            training.backward()
            training.scaler.step(training.optimizer)
            with contextlib.suppress(RuntimeError):
                training.scaler.step(training.optimizer)
            training.scaler.update()
    assert run.steps_total == 2
    assert max(last for each in optimizers(run) for _, last, _ in each["spans"]) <= 2


def test_a_run_of_any_length_has_a_bounded_history() -> None:
    states = GradientHistory()
    for step in range(3 * SPANS):
        for grads in ("clean", "scaled", *["unscaled"] * (step % 2), "stepped"):
            states.record_state(0, grads)
        states.record_step(0, "optimizer")
    ((only,),) = [states.as_dict(lambda violation: None)["optimizers"]]
    assert len(only["spans"]) == SPANS
    assert only["spans"][-1] == [3 * SPANS - 1, 3 * SPANS - 1, ["clean", "scaled", "unscaled", "stepped"]]


def test_the_norm_of_gradients_says_what_it_is() -> None:
    found = {}
    for norms in (False, True):
        torch.manual_seed(0)
        training = Training()
        with record(norms=norms) as run:
            training.backward()
            training.scaler.unscale_(training.optimizer)
            before = float(nn.utils.clip_grad_norm_(training.model.parameters(), 1e-3))
            training.step()
        found[norms] = (run.as_dict()["grad_norm"], run.steps[0].grad_norm, before)
    what, norm, before = found[False]
    assert (what, norm) == ("before clipping", before)
    what, norm, before = found[True]
    assert what == "at the step"
    assert norm is not None and abs(norm - 1e-3) < 1e-6 < before
