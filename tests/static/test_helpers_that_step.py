"""Functions that step with or without a scaler, while their callers compute the gradients."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

HELPER = """\
import torch


def apply(model, optimizer, scaler=None):
    before = [p.detach().clone() for p in model.parameters()]
{body}
    return [(p - q).norm() for p, q in zip(model.parameters(), before)]
"""
ALTERNATIVES = {
    "by truth": """\
    if scaler:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()
""",
    "by None": """\
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()
""",
    "by an early return": """\
    if scaler is None:
        optimizer.step()
        return []
    scaler.step(optimizer)
    scaler.update()
""",
    "by a closure": """\
    def step():
        if scaler is not None:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()

    step()
""",
}
TWICE = """\
    scaler.step(optimizer)
    scaler.update()
    optimizer.step()
"""


@pytest.mark.parametrize("body", ALTERNATIVES.values(), ids=ALTERNATIVES)
def test_a_call_without_a_scaler_applies_the_gradients_of_its_own_backward(body: str) -> None:
    assert check_source(HELPER.format(body=body)) == []


def test_a_helper_that_steps_twice_is_found() -> None:
    (finding,) = check_source(HELPER.format(body=TWICE))
    assert (finding.code, finding.line) == ("AMP204", 8)
