"""Classes of the project with the methods of ``torch.amp.GradScaler``: trainings with them follow torch's protocol."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from trees import found, write
from trees import marks as marks_in_tree

from pytest_amp_check import check_source
from pytest_amp_check.protocol.finding import Finding

#: A reimplementation whose name says nothing about scaling.
COPY = """\
import torch

class Helper:
    def __init__(self, init_scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000, enabled=True):
        self._enabled = enabled
        self._scale = torch.tensor(init_scale)
        self._factors, self._growth_interval = (growth_factor, backoff_factor), growth_interval
        self._clean_steps, self._found = 0, {}

    def scale(self, outputs):
        return outputs * self._scale if self._enabled else outputs

    def unscale_(self, optimizer):
        if self._enabled:
            self._found[id(optimizer)] = self._unscale(optimizer)

    def _unscale(self, optimizer):
        found = False
        for group in optimizer.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    param.grad.div_(self._scale)
                    found = found or not torch.isfinite(param.grad).all()
        return found

    def step(self, optimizer, *args, **kwargs):
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if id(optimizer) not in self._found:
            self.unscale_(optimizer)
        if not self._found[id(optimizer)]:
            return optimizer.step(*args, **kwargs)

    def update(self):
        self._clean_steps = 0 if any(self._found.values()) else self._clean_steps + 1
        self._scale *= self._factors[1] if any(self._found.values()) else 1.0
        if self._clean_steps == self._growth_interval:
            self._scale *= self._factors[0]
            self._clean_steps = 0
        self._found = {}

    def state_dict(self):
        return {"scale": self._scale, "clean_steps": self._clean_steps}

    def load_state_dict(self, state):
        self._scale, self._clean_steps = state["scale"], state["clean_steps"]
"""

TRAINING = """\

def train(model, optimizer, loader):
    helper = Helper()
    for inputs, targets in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
        helper.scale(loss).backward()
        helper.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        helper.step(optimizer)
        helper.update()
    torch.save({"optimizer": optimizer.state_dict(), "helper": helper.state_dict()}, "last.pt")
"""


def check(training: str, copy: str = COPY) -> list[Finding]:
    return [finding for finding in check_source(copy + training, "train.py") if finding.line > copy.count("\n")]


def test_a_right_training_is_silent() -> None:
    assert check_source(COPY + TRAINING, "train.py") == []


@pytest.mark.parametrize(
    ("right", "wrong", "line", "code"),
    [
        ("        helper.unscale_(optimizer)\n", "", "clip_grad_norm_", "AMP201"),
        ("        helper.update()\n", "", "helper.step", "AMP206"),
        ("        helper.step(optimizer)\n", "        optimizer.step()\n", "optimizer.step", "AMP204"),
        ("helper.scale(loss).backward()", "loss.backward()", "loss.backward", "AMP203"),
        ("unscale_(optimizer)", "unscale_(optimizer); helper.unscale_(optimizer)", "helper.unscale_", "AMP209"),
        (', "helper": helper.state_dict()', "", "torch.save", "AMP401"),
        ("        optimizer.zero_grad()\n", "", "helper.scale", "AMP215"),
    ],
)
def test_a_mistake_is_found_and_is_only_possible(right: str, wrong: str, line: str, code: str) -> None:
    training = TRAINING.replace(right, wrong)
    assert training != TRAINING
    found = check(training)
    lines = (COPY + training).splitlines()
    assert [(line in lines[finding.line - 1], finding.code) for finding in found] == [(True, code)]
    assert code == "AMP401" or not found[0].certain


def test_a_copy_of_another_file_is_a_scaler(tmp_path: Path) -> None:
    write(
        tmp_path,
        "=== amp/__init__.py\nfrom ._helper import Helper\n"
        f"=== amp/_helper.py\n{COPY}"
        "=== wrapper.py\n"
        + textwrap.dedent("""\
            from amp import Helper

            class Wrapped:
                def __init__(self, optimizer, *args, **kwargs):
                    self.optimizer = optimizer
                    self.helper = Helper(*args, **kwargs)

                def backward(self, loss):
                    self.helper.scale(loss).backward()

                def step(self):
                    self.helper.step(self.optimizer)  # AMP206
            """),
    )
    assert found(tmp_path) == marks_in_tree(tmp_path)


def test_a_disabled_copy_scales_nothing() -> None:
    training = TRAINING.replace("Helper()", "Helper(enabled=False)").replace("        helper.unscale_(optimizer)\n", "")
    assert [finding.code for finding in check(training) if finding.code != "AMP502"] == []


@pytest.mark.parametrize(
    ("of_torch", "own", "left_out"),
    [
        (
            "return outputs * self._scale if self._enabled else outputs",
            "return outputs",
            "        helper.unscale_(optimizer)\n",
        ),
        (
            "            self.unscale_(optimizer)\n",
            "            self.unscale_(optimizer)\n        self.update()\n",
            "        helper.update()\n",
        ),
        (
            "        self._found = {}\n\n    def state_dict",
            "        self.optimizer.zero_grad()\n\n    def state_dict",
            "        optimizer.zero_grad()\n",
        ),
        ("def state_dict(self):", "def state(self):", "        helper.update()\n"),
    ],
    ids=["nothing is scaled", "the step updates", "the update clears", "another interface"],
)
def test_a_class_with_another_protocol_is_analyzed_like_other_code(of_torch: str, own: str, left_out: str) -> None:
    copy, training = COPY.replace(of_torch, own), TRAINING.replace(left_out, "")
    assert copy != COPY
    assert training != TRAINING
    codes = {finding.code for finding in check(training, copy)}
    assert codes <= {"AMP502"}


def test_the_methods_of_a_copy_are_no_training() -> None:
    assert check_source(COPY, "helper.py") == []


#: A subclass that scales like torch's method, and lists of losses by a function of its own.
SUBCLASS = """\
import torch

class Helper(torch.cuda.amp.grad_scaler.GradScaler):
    def scale(self, outputs):
        if self.get_scale() > 1024:
            self.set_growth_factor(1)
        if isinstance(outputs, torch.Tensor):
            return outputs * {factor}

        def apply(value):
            return value * {factor} if isinstance(value, torch.Tensor) else type(value)(map(apply, value))

        return apply(outputs)
"""


@pytest.mark.parametrize("factor", ["self._scale", "self._scale.to(outputs.device)", "self.current()"])
def test_a_subclass_may_scale_by_itself(factor: str) -> None:
    copy = SUBCLASS.format(factor=factor)
    right = TRAINING.replace("Helper()", "Helper()\n    losses = {}").replace(
        "helper.scale(loss)", 'losses["all"] = loss\n        helper.scale(losses["all"])'
    )
    assert check(right, copy) == []
    wrong = right.replace("        helper.unscale_(optimizer)\n", "")
    assert [(finding.code, finding.certain) for finding in check(wrong, copy)] == [("AMP201", False)]


def test_a_subclass_that_scales_nothing_is_followed() -> None:
    copy = SUBCLASS.replace(" * {factor}", "")
    assert [finding.code for finding in check(TRAINING, copy)] == ["AMP203"]


@pytest.mark.parametrize("parameter", ["enabled={}", "*, enabled={}"])
@pytest.mark.parametrize(("default", "is_reported"), [("True", True), ("False", False), ("flag", False)])
def test_a_copy_that_its_default_disables(parameter: str, default: str, is_reported: bool) -> None:
    """A flag of `unscale_` may be the flag of the scaler, unless the scaler is known to be enabled."""
    copy = COPY.replace("enabled=True", parameter.format(default))
    unscale = "        helper.unscale_(optimizer)\n"
    training = TRAINING.replace(unscale, f"        if amp:\n    {unscale}")
    assert [finding.code for finding in check(training, copy)] == ["AMP201"] * is_reported
