"""Steps that optimizers make without a scaler, in several forms of training: what a run reports, and where."""

# mypy: allow-untyped-calls

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from programs import run_program
from torch import nn

from pytest_amp_check import record

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


def test_a_disabled_scaler_that_is_older_than_the_recording_is_reported_at_its_first_use(tmp_path: Path) -> None:
    run = run_program(
        SETUP
        + """\
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    older.scale(loss_of(model)).backward()  # AMP502
    older.step(optimizer)
    older.update()
""",
        tmp_path / "train.py",
        names={"older": torch.amp.GradScaler("cpu", enabled=False)},
    )
    assert [finding.label for finding in run.findings] == ["scaler:off-in-float16"]


def test_a_plain_step_is_reported_with_the_names_of_the_program(tmp_path: Path) -> None:
    run = run_program(
        SETUP
        + """\
model = nn.Linear(8, 1)
keeper = torch.amp.GradScaler("cpu", init_scale=64.0)
adam = torch.optim.Adam(model.parameters())
keeper.scale(loss_of(model)).backward()
adam.step()  # AMP204
""",
        tmp_path / "train.py",
    )
    (finding,) = run.findings
    assert finding.message == (
        "`adam.step()` applies gradients that are still multiplied by the loss scale: write `keeper.step(adam)` and "
        "then `keeper.update()` in its place"
    )


@pytest.mark.parametrize(
    ("hook", "name"),
    [
        ("def after(*_):\n    pass", "after"),
        ("import functools\nafter = functools.partial(print, end='')", "the hook"),
    ],
)
def test_a_hook_that_runs_after_a_skip_of_a_fused_optimizer(hook: str, name: str, tmp_path: Path) -> None:
    run = run_program(
        f"""{SETUP}
{hook}


model = nn.Linear(8, 1)
keeper = torch.amp.GradScaler("cpu", init_scale=64.0)
adam = torch.optim.Adam(model.parameters(), fused=True)
adam.register_step_post_hook(after)
for factor in (1.0, float("inf"), 1.0):
    adam.zero_grad()
    keeper.scale(loss_of(model) * factor).backward()
    keeper.step(adam)  # AMP403
    keeper.update()
""",
        tmp_path / "train.py",
    )
    (finding,) = run.findings
    assert finding.message.startswith(
        f"`{name}` runs although the step of `adam` was skipped: call it only if `keeper.get_scale()` did not fall"
    )


@pytest.mark.parametrize("is_older", [False, True])
def test_a_first_window_that_ends_early_is_known_if_the_optimizer_is_constructed_in_the_recording(
    is_older: bool, tmp_path: Path
) -> None:
    model = nn.Linear(8, 1)
    names = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    construction = "" if is_older else "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"
    run_program(
        f"""{SETUP}{construction}
for i in range(16):
    (loss_of(model, torch.bfloat16) / 4).backward()
    if i % 4 == 0:{"" if is_older else "  # AMP304"}
        optimizer.step()
        optimizer.zero_grad()
""",
        tmp_path / "train.py",
        names=names,
    )


@pytest.mark.parametrize(
    ("dtype", "step", "backward"),
    [
        ("torch.bfloat16", "optimizers[p].step()", "loss.backward()"),
        ("torch.float16", "optimizers[p].step()", "loss.backward()  # AMP502"),
        ("torch.float16", "optimizers[p].step()  # AMP204", "scaler.scale(loss).backward()"),
    ],
)
def test_steps_inside_of_a_backward(dtype: str, step: str, backward: str, tmp_path: Path) -> None:
    run = run_program(
        f"""{SETUP}
model = nn.Linear(8, 1)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
optimizers = {{p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}}


def update(p):
    {step}
    optimizers[p].zero_grad()


for p in model.parameters():
    p.register_post_accumulate_grad_hook(update)
for _ in range(3):
    loss = loss_of(model, {dtype})
    {backward}
""",
        tmp_path / "train.py",
    )
    assert len(run.steps) == 6


def test_findings_that_are_read_between_a_backward_and_its_step() -> None:
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record() as run:
        with torch.autocast("cpu", torch.float16):
            loss = model(torch.ones(4, 8)).float().square().mean()
        loss.backward()
        # Another step of the program may still scale the gradients.
        assert run.findings == []
        optimizer.step()
        assert [finding.label for finding in run.findings] == ["backward:no-scaler"]
    assert [finding.label for finding in run.findings] == ["backward:no-scaler"]


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
