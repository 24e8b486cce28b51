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


WRAPPER = """\
import torch


class Wrapper({base}):
    def __init__(self, inner, scaler):
        self.inner, self.scaler = inner, scaler

    @property
    def param_groups(self):
        return self.inner.param_groups

    def step(self):
        self.scaler.step(self.inner)
        self.scaler.update()

    def zero_grad(self):
        self.inner.zero_grad()


def fit(model, loader):
    scaler = torch.amp.GradScaler("cuda")
    wrapper = Wrapper(torch.optim.SGD(model.parameters(), lr=0.1), scaler)
    for x, y in loader:
        wrapper.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = (model(x) - y).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_({unscaled})
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        wrapper.step()
"""


@pytest.mark.parametrize("base", ["torch.optim.Optimizer", "torch.optim.SGD", "object"])
@pytest.mark.parametrize(("unscaled", "codes"), [("wrapper.inner", []), ("wrapper", ["AMP210"])])
def test_a_wrapper_steps_its_optimizer_through_a_scaler(base: str, unscaled: str, codes: list[str]) -> None:
    # The scaler notes an unscale_ of the wrapper for the wrapper, and divides again in the step of the optimizer.
    assert [f.code for f in check_source(WRAPPER.format(base=base, unscaled=unscaled))] == codes
