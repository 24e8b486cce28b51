"""Optimizers that an engine never prepares step directly, on gradients that the engine has scaled."""

from __future__ import annotations

from textwrap import indent

import pytest

from pytest_amp_check.static.engine import check_source

ACCELERATE = """\
import torch
from accelerate import Accelerator

def main(model, loader, args):
    accelerator = Accelerator(mixed_precision={precision})
{made}
    for batch in loader:
        loss = model(batch).float().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
"""
FABRIC = """\
import torch
from lightning.fabric import Fabric

def main(model, loader, args):
    fabric = Fabric(precision="16-mixed")
{made}
    for batch in loader:
        loss = model(batch).float().mean()
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
"""
ONE_OF_TWO = """\
kind = args.kind if args.low else torch.optim.AdamW
optimizer = kind(model.parameters(), lr=args.lr)
"""
ADAM = "optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)\n"


def labels(program: str) -> list[tuple[str, bool]]:
    return [(finding.label, finding.certain) for finding in check_source(program)]


def accelerate(made: str, precision: str = '"fp16"') -> str:
    return ACCELERATE.format(precision=precision, made=indent(made, "    "))


@pytest.mark.parametrize(
    "made",
    [
        ADAM + "model, loader = accelerator.prepare(model, loader)",
        ADAM + "model = accelerator.prepare(model)\nloader = accelerator.prepare(loader)",
        "model, loader = accelerator.prepare(model, loader)\n" + ADAM,
        # An optimizer of a class that is not known, and of one of two classes.
        "optimizer = bitsandbytes.AdamW8bit(model.parameters())\nmodel, loader = accelerator.prepare(model, loader)",
        ONE_OF_TWO + "model = accelerator.prepare(model)",
    ],
)
def test_an_optimizer_that_is_left_out(made: str) -> None:
    assert labels(accelerate(made)) == [("plain-step@scaled-framework", True)]
    assert labels(accelerate(made, "args.precision")) == [("plain-step@scaled-framework", False)]
    assert labels(accelerate(made, '"bf16"')) == []


def test_an_optimizer_that_other_code_received() -> None:
    made = (
        "scheduler = get_scheduler(args.kind, optimizer=optimizer)\noptimizer.param_groups[0]['lr'] = 0.0\n"
        "model, loader, scheduler = accelerator.prepare(model, loader, scheduler)"
    )
    assert labels(accelerate(ADAM + made)) == [("plain-step@scaled-framework", False)]


@pytest.mark.parametrize(
    "made",
    [
        ADAM + "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)",
        ADAM
        + "model, loader = accelerator.prepare(model, loader)\noptimizer = accelerator.prepare_optimizer(optimizer)",
        ADAM + "things = [model, optimizer, loader]\nmodel, optimizer, loader = accelerator.prepare(*things)",
        ADAM + "if args.own:\n    model, optimizer = accelerator.prepare(model, optimizer)\n"
        "else:\n    model = accelerator.prepare(model)",
        # Another name for the same optimizer, in a call or in a helper that has the accelerator.
        ADAM + "opt = optimizer\nmodel, optimizer = accelerator.prepare(model, opt)",
        ADAM + "model = accelerator.prepare(model)\noptimizer = AcceleratedOptimizer(optimizer, accelerator.scaler)",
        "model, optimizer = build(accelerator, args)\nloader = accelerator.prepare(loader)",
        "optimizer = args.optimizer\nmodel = accelerator.prepare(model)",
        # Nothing is prepared here, so other code does.
        ADAM,
    ],
)
def test_an_optimizer_that_may_be_prepared(made: str) -> None:
    assert labels(accelerate(made)) == []


def test_fabric_steps_what_its_setup_returns() -> None:
    wrong = FABRIC.format(made=indent(ADAM + "model = fabric.setup(model)", "    "))
    assert labels(wrong) == [("plain-step@scaled-framework", True)]
    right = FABRIC.format(made=indent(ADAM + "model, optimizer = fabric.setup(model, optimizer)", "    "))
    assert labels(right) == []
    separately = indent(ADAM + "model = fabric.setup(model)\noptimizer = fabric.setup_optimizers(optimizer)", "    ")
    assert labels(FABRIC.format(made=separately)) == []


def test_another_method_prepares() -> None:
    program = """\
import torch
from accelerate import Accelerator

class Trainer:
    def __init__(self, model, args):
        self.accelerator = Accelerator(mixed_precision="fp16")
        self.opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
        self.model = self.accelerator.prepare(model)
{prepare}
    def fit(self, loader):
        for batch in loader:
            loss = self.model(batch).float().mean()
            self.accelerator.backward(loss)
            self.opt.step()
            self.opt.zero_grad()
"""
    prepare = "\n    def set_up(self):\n        self.opt = self.accelerator.prepare(self.opt)\n"
    assert labels(program.format(prepare=prepare)) == []
    assert labels(program.format(prepare="")) == [("plain-step@scaled-framework", True)]
