"""Steps that optimizers make without a scaler, in several forms of training: what a run reports, and where."""

# mypy: allow-untyped-calls

from __future__ import annotations

from pathlib import Path

import pytest
from programs import run_program
from torch import nn

pytestmark = pytest.mark.usefixtures("patched_once")

SETUP = """\
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(4, 8)


def loss_of(model, dtype=torch.float16):
    with torch.autocast("cpu", dtype):
        return model(x).float().square().mean()


"""
TRAINING = """\
model = nn.Linear(8, 1)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0{arguments})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    loss = loss_of(model, {dtype})
    {backward}
    {step}
"""


@pytest.mark.parametrize(
    ("definition", "construction"),
    [
        ("Own = torch.optim.SGD", "optimizer = Own(model.parameters(), lr=0.1)  # AMP501"),
        (
            "class Own(torch.optim.SGD):\n    def __init__(self, params):\n        super().__init__(params, lr=0.1)",
            "optimizer = Own(model.parameters())  # AMP501",
        ),
        (
            (
                "class Base(torch.optim.SGD):\n    def __init__(self, params, rate):\n"
                "        super().__init__(params, lr=rate)\n\n\n"
                "class Own(Base):\n    def __init__(self, params):\n        super().__init__(params, 0.1)"
            ),
            "optimizer = Own(model.parameters())  # AMP501",
        ),
        (
            "def make(params):\n    return torch.optim.SGD(params, lr=0.1)  # AMP501",
            "optimizer = make(model.parameters())",
        ),
        (
            (
                "class Training:\n    def __init__(self, model):\n"
                "        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # AMP501"
            ),
            "optimizer = Training(model).optimizer",
        ),
    ],
    ids=["torch", "a subclass", "a subclass of a subclass", "a function", "a class that holds an optimizer"],
)
def test_older_low_parameters_are_reported_where_the_program_constructs_the_optimizer(
    definition: str, construction: str, tmp_path: Path
) -> None:
    training = "for _ in range(2):\n    optimizer.zero_grad()\n    model(x.bfloat16()).sum().backward()\n"
    training += "    optimizer.step()\n"
    run_program(
        f"{SETUP}{definition}\n\n\n{construction}\n{training}",
        tmp_path / "train.py",
        names={"model": nn.Linear(8, 1).bfloat16()},
    )


@pytest.mark.parametrize(
    ("arguments", "dtype", "backward", "step"),
    [
        # Without a scaler.
        ("", "torch.bfloat16", "loss.backward()", "optimizer.step()"),
        ("", "torch.float16", "loss.backward()  # AMP502", "optimizer.step()"),
        (", enabled=False", "torch.bfloat16", "scaler.scale(loss).backward()", "scaler.step(optimizer)"),
        (", enabled=False)  # AMP502 (", "torch.float16", "scaler.scale(loss).backward()", "scaler.step(optimizer)"),
        # With a scaler, whose check the program leaves out or makes itself.
        ("", "torch.float16", "scaler.scale(loss).backward()", "optimizer.step()  # AMP204"),
        (
            "",
            "torch.float16",
            "scaler.scale(loss).backward(); scaler.unscale_(optimizer)",
            "optimizer.step(); scaler.update()  # AMP204",
        ),
        (
            "",
            "torch.float16",
            "scaler.scale(loss).backward(); scaler.unscale_(optimizer)",
            (
                "norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
                "    if torch.isfinite(norm):\n        optimizer.step()\n    scaler.update()"
            ),
        ),
        (
            "",
            "torch.float16",
            "scaler.scale(loss).backward(); scaler.unscale_(optimizer)",
            "if True:\n        optimizer.step()  # AMP204\n    scaler.update()",
        ),
    ],
)
def test_steps_without_a_scaler(arguments: str, dtype: str, backward: str, step: str, tmp_path: Path) -> None:
    program = TRAINING.format(arguments=arguments, dtype=dtype, backward=backward, step=step)
    run_program(SETUP + program, tmp_path / "train.py")


def test_the_gradients_that_an_optimizer_finds_at_its_construction(tmp_path: Path) -> None:
    run_program(
        SETUP
        + """\
model = nn.Linear(8, 1)
for _ in range(3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_of(model, torch.bfloat16).backward()  # AMP215
    optimizer.step()
""",
        tmp_path / "train.py",
    )


def test_an_optimizer_that_is_constructed_after_the_backward_of_scaled_gradients(tmp_path: Path) -> None:
    run_program(
        SETUP
        + """\
model = nn.Linear(8, 1)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
scaler.scale(loss_of(model)).backward()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer.step()  # AMP204
""",
        tmp_path / "train.py",
    )


def test_each_optimizer_of_a_float16_training_without_a_scaler_is_reported_at_its_backward(tmp_path: Path) -> None:
    run_program(
        SETUP
        + """\
first, second = nn.Linear(8, 1), nn.Linear(8, 1)
one = torch.optim.SGD(first.parameters(), lr=0.1)
two = torch.optim.SGD(second.parameters(), lr=0.1)
for _ in range(3):
    one.zero_grad()
    loss_of(first).backward()  # AMP502
    one.step()
    two.zero_grad()
    loss_of(second).backward()  # AMP502
    two.step()
""",
        tmp_path / "train.py",
    )
