"""Wrappers of optimizers that mmengine passes to ``train_step``: with AMP they scale, and losses run through them."""

from __future__ import annotations

import pytest
from marks import marks, places

from pytest_amp_check import check_source

ONE = """\
from mmengine.model import BaseModel

class Model(BaseModel):
    def train_step(self, data, {parameter}):
        loss, log_vars = self.parse_losses(self(self.data_preprocessor(data, True)))
{steps}
        return log_vars
"""
STEPS = {
    "past the wrapper": """\
        optim_wrapper.zero_grad()
        loss.backward()  # AMP203
        optim_wrapper.step()
""",
    "past one wrapper of two": """\
        optim_wrapper['disc'].zero_grad()
        loss.backward()  # AMP203
        optim_wrapper['disc'].step()
        other, _ = self.parse_losses(self.other(data))
        optim_wrapper['gen'].update_params(other)
""",
    "past each wrapper": """\
        optim_wrapper['disc'].zero_grad()
        loss.backward()  # AMP203
        optim_wrapper['disc'].step()
        other, _ = self.parse_losses(self.other(data))
        optim_wrapper['gen'].zero_grad()
        other.backward()  # AMP203
        optim_wrapper['gen'].step()
""",
    "in the wrapper": """\
        optim_wrapper.zero_grad()
        optim_wrapper.backward(loss)
        optim_wrapper.step()
""",
    "all in one": "        optim_wrapper.update_params(loss)\n",
    "in wrappers for each model": """\
        with optim_wrapper['disc'].optim_context(self):
            loss, log_vars = self.parse_losses(self(data))
        optim_wrapper['disc'].update_params(loss)
        optim_wrapper['gen'].zero_grad()
        optim_wrapper['gen'].backward(self.other(data))
        optim_wrapper['gen'].step()
""",
    "a wrapper of the code itself": """\
        optim_wrapper = self.build(optim_wrapper.optimizer)
        optim_wrapper.zero_grad()
        loss.backward()
        optim_wrapper.step()
""",
    "an optimizer": """\
        optimizer = optim_wrapper.optimizer
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
}


@pytest.mark.parametrize("parameter", ["optim_wrapper", "optim_wrapper=None", "optim_wrapper: OptimWrapper"])
@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_losses_run_backward_in_the_wrapper(steps: str, parameter: str) -> None:
    program = ONE.format(parameter=parameter, steps=steps)
    findings = check_source(program)
    assert places(findings) == marks(program)
    assert all(each.severity == "info" for each in findings)


def test_the_advice_names_the_wrapper() -> None:
    program = ONE.format(parameter="optim_wrapper", steps=STEPS["past each wrapper"])
    assert [finding.message.rpartition(": ")[2] for finding in check_source(program)] == [
        "call `optim_wrapper['disc'].backward(loss)`",
        "call `optim_wrapper['gen'].backward(other)`",
    ]
