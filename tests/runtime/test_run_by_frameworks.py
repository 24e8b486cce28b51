"""Runs in which a framework scales, unscales and steps: the advice uses the framework's names, at the user's line.

The packages are stand-ins that call torch as accelerate 1.15 and Lightning 2.6 do.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
from marks import shown

pytest.importorskip("torch")

from agreement import recorded

ACCELERATE = """\
import torch

class Optimizer:
    def __init__(self, optimizer, scaler):
        self.optimizer, self.scaler = optimizer, scaler

    def zero_grad(self):
        self.optimizer.zero_grad()

    def step(self):
        self.scaler.step(self.optimizer)
        self.scaler.update()

class Accelerator:
    def __init__(self, gradient_accumulation_steps=1):
        self.scaler, self.sync_gradients = torch.amp.GradScaler("cpu", init_scale=2.0**10), True
        self.gradient_accumulation_steps = gradient_accumulation_steps

    def prepare(self, *given):
        return tuple(Optimizer(each, self.scaler) for each in given)

    def autocast(self):
        return torch.autocast("cpu", dtype=torch.float16)

    def backward(self, loss):
        loss = loss / self.gradient_accumulation_steps
        self.scaler.scale(loss).backward()

    def clip_grad_norm_(self, optimizer, parameters, limit):
        self.scaler.unscale_(optimizer.optimizer)
        torch.nn.utils.clip_grad_norm_(parameters, limit)
"""
LIGHTNING = """\
import torch

class LightningModule(torch.nn.Module):
    def manual_backward(self, loss):
        self.scaler.scale(loss).backward()

class Optimizer:
    def __init__(self, optimizer, scaler):
        self.optimizer, self.scaler = optimizer, scaler

    def zero_grad(self):
        self.optimizer.zero_grad()

    def step(self):
        self.scaler.unscale_(self.optimizer)
        self.scaler.step(self.optimizer)
        self.scaler.update()

class Trainer:
    def fit(self, module):
        module.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        optimizer = Optimizer(module.configure_optimizers(), module.scaler)
        module.optimizers = lambda: optimizer
        for _ in range(3):
            with torch.autocast("cpu", dtype=torch.float16, cache_enabled=False):
                loss = module.training_step(torch.randn(8, 4))
            if loss is not None:
                optimizer.zero_grad()
                loss = loss / 1
                module.scaler.scale(loss).backward()
                optimizer.step()
"""

ACCELERATED = """\
import torch
from accelerate import Accelerator

accelerator = Accelerator()
models = [torch.nn.Linear(4, 1) for _ in range(2)]
first, second = accelerator.prepare(*(torch.optim.SGD(model.parameters(), lr=0.1) for model in models))
for _ in range(3):
    first.zero_grad()
    second.zero_grad()
    with accelerator.autocast():
        losses = [model(torch.randn(8, 4)).float().square().mean() for model in models]
{steps}
"""
CLIPPED = """\
    accelerator.backward(losses[0])
    {clip}
    first.step()
"""
TORCH_CLIP = "torch.nn.utils.clip_grad_norm_(models[0].parameters(), 1.0)"
OWN_CLIP = "accelerator.clip_grad_norm_(first, models[0].parameters(), 1.0)"
TOGETHER = """\
    accelerator.backward(losses[0])
    accelerator.backward(losses[1])
    first.step()  # the scale is updated
    second.step()
"""
ALTERNATING = """\
    accelerator.backward(losses[0])
    first.step()
    accelerator.backward(losses[1])
    second.step()
"""
LOSS = """\
import torch
from accelerate import Accelerator

accelerator = Accelerator({steps})
model = torch.nn.Linear(4, 1)
(optimizer,) = accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
for _ in range(3):
    optimizer.zero_grad()
    with accelerator.autocast():
        output = model(torch.randn(8, 4)).float()
        loss = {loss}
    accelerator.backward(loss)
    optimizer.step()
"""
AUTOMATIC = """\
import torch
from lightning.pytorch import LightningModule, Trainer

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def training_step(self, batch):
        output = self.layer(batch).float()
        return {loss}

Trainer().fit(Model())
"""
MANUAL = """\
import torch
from lightning.pytorch import LightningModule, Trainer

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def training_step(self, batch):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        loss = self.layer(batch).float().square().mean()
{backward}
        optimizer.step()

Trainer().fit(Model())
"""


def found(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> list[tuple[int, str, str]]:
    """Run a program. Return line, code and message of each finding."""
    for name, text in (("accelerate", ACCELERATE), ("lightning", ""), ("lightning/pytorch", LIGHTNING)):
        package = folder / name
        package.mkdir()
        (package / "__init__.py").write_text(text, encoding="utf-8")
        monkeypatch.delitem(sys.modules, name.replace("/", "."), raising=False)
    monkeypatch.syspath_prepend(str(folder))
    script = folder / "train.py"
    script.write_text(source, encoding="utf-8")
    run = recorded(lambda: runpy.run_path(str(script), run_name="__main__"))
    assert run.failure is None
    print(shown(run.findings))  # noqa: T201 - shown where a test fails
    assert {finding.filename for finding in run.findings} <= {str(script)}
    for name in ("accelerate", "lightning.pytorch", "lightning"):
        sys.modules.pop(name, None)
    return [(finding.line, finding.code, finding.message) for finding in run.findings]


@pytest.mark.parametrize(
    "source",
    [
        ACCELERATED.format(steps=CLIPPED.format(clip=OWN_CLIP)),
        ACCELERATED.format(steps=ALTERNATING),
        MANUAL.format(backward="        self.manual_backward(loss)"),
    ],
    ids=["accelerate's own clip", "accelerate, one optimizer after the other", "manual optimization"],
)
def test_what_a_framework_is_made_for_is_right(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(tmp_path, monkeypatch, source) == []


def test_a_clip_is_to_be_the_frameworks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ACCELERATED.format(steps=CLIPPED.format(clip=TORCH_CLIP))
    ((line, code, message),) = found(tmp_path, monkeypatch, source)
    assert (line, code) == (13, "AMP201")
    assert message == (
        "`torch.nn.utils.clip_grad_norm_` clips gradients that accelerate keeps multiplied by the loss scale: "
        "call `accelerator.clip_grad_norm_`, which unscales them first, where `accelerator.sync_gradients` is true"
    )


def test_an_update_in_each_step_comes_too_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ((line, code, message),) = found(tmp_path, monkeypatch, ACCELERATED.format(steps=TOGETHER))
    assert (line, code) == (14, "AMP207")
    assert message == (
        "accelerate updates its one loss scale in each step, but `second` still holds gradients of the old "
        "scale: let each `optimizer.step()` follow its own `accelerator.backward()`, before "
        "the next one"
    )


def test_the_backward_is_to_be_the_frameworks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = MANUAL.format(backward="        self.scaler.scale(loss.detach())\n        loss.backward()")
    ((line, code, message),) = found(tmp_path, monkeypatch, source)
    assert (line, code) == (17, "AMP203")
    assert message == (
        "`loss` is not scaled, but Lightning divides its gradients by the loss scale: call `self.manual_backward(loss)`"
    )


def test_a_region_of_ones_own_is_not_lightnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    region = "        with torch.autocast('cpu', dtype=torch.float16):\n            self.manual_backward(loss)"
    assert [place[:2] for place in found(tmp_path, monkeypatch, MANUAL.format(backward=region))] == [(17, "AMP103")]


LOSSES = {
    "infinity": ('output.square().mean() * float("inf")', "`mul` in code outside of modules fills in"),
    "overflow": ("(output.half() * 6e4).mean() * 1e4", "`mul` in code outside of modules produces the first"),
    "domain": ("(output * 0.0).log().mean()", "`log` in code outside of modules produces the first"),
    "gradient": ("(output * 0.0).square().sum().sqrt()", "The gradient of `SqrtBackward0` in code outside of modules"),
}


@pytest.mark.parametrize(("source", "line"), [(LOSS, 11), (AUTOMATIC, 14)], ids=["accelerate", "lightning"])
@pytest.mark.parametrize("how", LOSSES)
def test_a_loss_that_is_not_finite_is_reported_where_the_program_computes_it(
    source: str, line: int, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss, start = LOSSES[how]
    ((found_line, code, message),) = found(tmp_path, monkeypatch, source.format(loss=loss, steps=""))
    assert (found_line, code) == (line, "AMP802")
    assert message.startswith(start)


def test_an_op_of_the_framework_is_reported_where_the_program_calls_the_framework(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = LOSS.format(loss="output.square().mean()", steps="0")
    ((line, code, message),) = found(tmp_path, monkeypatch, source)
    assert (line, code) == (12, "AMP802")
    assert message.startswith("`div` in code outside of modules produces the first non-finite value in step 0")


def test_an_update_beside_the_frameworks_is_to_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = LOSS.format(loss="output.square().mean()", steps="") + "    accelerator.scaler.update()\n"
    ((line, code, message),) = found(tmp_path, monkeypatch, source)
    assert (line, code) == (14, "AMP207")
    assert message == (
        "`accelerator.scaler.update` runs after accelerate has stepped and updated its scale, so torch raises: remove "
        "it, because `optimizer.step()` updates the scale"
    )


def test_optimizers_are_named_as_in_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ACCELERATED.format(steps="    accelerator.backward(losses[0])\n    second.step()\n")
    ((line, code, message),) = found(tmp_path, monkeypatch, source)
    assert (line, code) == (13, "AMP810")
    assert message.startswith(
        "`loss` reaches the parameters of `first` but not of `second`, so `second.step` finds no gradient"
    )
