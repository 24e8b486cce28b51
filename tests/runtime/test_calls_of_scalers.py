"""Calls of unscale_, step and update: the names, counts and states that runs record."""

# mypy: allow-untyped-calls

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from programs import run_program
from torch import nn

from pytest_amp_check import Run, record
from pytest_amp_check.protocol.finding import Finding

pytestmark = pytest.mark.usefixtures("patched_once")

SETUP = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
adam = torch.optim.SGD(model.parameters(), lr=1e-3)
grad_scaler = torch.amp.GradScaler("cpu", init_scale=64.0)


def run_backward(scaler, factor=1.0):
    adam.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.ones(4, 8)).float().square().mean() * factor
    scaler.scale(loss).backward()


"""


def only(run: Run) -> Finding:
    (finding,) = run.findings
    return finding


@pytest.mark.parametrize("argument", ["adam", "optimizer=adam"])
@pytest.mark.parametrize(
    ("construction", "scaler"),
    [
        ('torch.amp.GradScaler("cpu")', "scale_keeper"),
        ('torch.amp.GradScaler("cpu", enabled=False)  # AMP502', None),
    ],
)
def test_a_step_has_the_names_of_the_program(
    construction: str, scaler: str | None, argument: str, tmp_path: Path
) -> None:
    run = run_program(
        SETUP
        + f"""
scale_keeper = {construction}
run_backward(scale_keeper)
scale_keeper.step({argument})
scale_keeper.update()
""",
        tmp_path / "train.py",
    )
    assert [(step.optimizer, step.scaler) for step in run.steps] == [("adam", scaler)]


@pytest.mark.parametrize("argument", ["adam", "optimizer=adam"])
def test_a_second_unscale_has_the_names_of_the_program(argument: str, tmp_path: Path) -> None:
    run = run_program(
        SETUP
        + f"""
run_backward(grad_scaler)
grad_scaler.unscale_(adam)
try:
    grad_scaler.unscale_({argument})  # AMP209
except RuntimeError:
    pass
grad_scaler.step(adam)
grad_scaler.update()
""",
        tmp_path / "train.py",
    )
    assert only(run).message.startswith("`grad_scaler.unscale_(adam)` is called twice for one update")


def test_an_update_without_a_step_has_the_names_of_the_program(tmp_path: Path) -> None:
    run = run_program(
        SETUP
        + """
renamed = grad_scaler
run_backward(grad_scaler)
grad_scaler.step(adam)
grad_scaler.update()
try:
    renamed.update()  # AMP207
except AssertionError:
    pass
""",
        tmp_path / "train.py",
    )
    assert only(run).message.startswith("`renamed.update()` runs without a step or unscale_ since the last update")


@pytest.mark.parametrize(
    ("passed", "effect"),
    [
        ("lambda: None", "the closure's gradients stay multiplied by the scale"),
        ("closure=lambda: None", "torch raises RuntimeError at this line, which ends the run"),
    ],
)
def test_the_effect_of_a_closure_depends_on_the_form_of_the_argument(passed: str, effect: str, tmp_path: Path) -> None:
    run = run_program(
        SETUP
        + f"""
run_backward(grad_scaler)
try:
    grad_scaler.step(adam, {passed})  # AMP211
    grad_scaler.update()
except RuntimeError:
    pass
""",
        tmp_path / "train.py",
    )
    assert only(run).effect.startswith(effect)


def test_an_argument_that_is_no_closure(tmp_path: Path) -> None:
    run = run_program(
        SETUP
        + """
class Own(torch.optim.SGD):
    def step(self, closure=None, *, grads=None):
        return super().step()


adam = Own(model.parameters(), lr=1e-3)
run_backward(grad_scaler)
grad_scaler.step(adam, grads=[])
grad_scaler.update()
""",
        tmp_path / "train.py",
    )
    assert len(run.steps) == 1


def test_the_skips_of_a_long_run_are_counted(tmp_path: Path) -> None:
    run = run_program(
        SETUP
        + """
weight = nn.Parameter(torch.ones(2))
adam = torch.optim.SGD([weight], lr=0.0)
scaler = torch.amp.GradScaler("cpu")
for step in range(500):
    adam.zero_grad()
    scaler.scale((weight * (1e38 if step % 10 == 5 else 1.0)).sum()).backward()
    scaler.step(adam)
    # A new scale keeps the scale from falling below 1.
    scaler.update(None if step % 100 else 2.0**16)  # AMP801
""",
        tmp_path / "train.py",
    )
    assert only(run).message.startswith("`scaler` has skipped 50 of 500 steps")


def test_a_norm_of_gradients_that_the_program_unscales_and_steps_itself(tmp_path: Path) -> None:
    run = run_program(
        SETUP
        + """
weight = nn.Parameter(torch.ones(4))
adam = torch.optim.SGD([weight], lr=0.0)
grad_scaler.scale((weight * 3.0).sum()).backward()
grad_scaler.unscale_(adam)
adam.step()  # AMP204
""",
        tmp_path / "train.py",
        norms=True,
    )
    assert [step.grad_norm for step in run.steps] == [pytest.approx(6.0)]


def test_gradients_that_the_program_divides_are_scaled_no_more() -> None:
    weight = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
    with record() as run:
        scaler.scale((weight * 3.0).sum()).backward()
        assert weight.grad is not None
        weight.grad.div_(scaler.get_scale())
        nn.utils.clip_grad_norm_([weight], 1.0)
        optimizer.step()
    assert run.failure is None
    # The norm of 6.0 is not divided again.
    assert [step.grad_norm for step in run.steps] == [None]


@pytest.mark.parametrize("unscales", [False, True])
def test_gradients_are_measured_before_they_are_clipped(unscales: bool) -> None:
    weight = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
    with record(numerics=True) as run:
        scaler.scale((weight * 2.0**-12).sum()).backward()
        if unscales:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_([weight], 2.0**-40)
        scaler.step(optimizer)
        scaler.update()
    assert run.failure is None
    # float16 holds 2**-12, but not the clipped 2**-41.
    run.assert_underflow(below=0.5, without_scaling=True)


def test_a_loaded_optimizer_is_named_with_the_first_scaler_that_steps_it(tmp_path: Path) -> None:
    file = (tmp_path / "state.pt").as_posix()
    run = run_program(
        SETUP
        + f"""
run_backward(grad_scaler)
grad_scaler.step(adam)
grad_scaler.update()
torch.save({{"adam": adam.state_dict(), "scaler": grad_scaler.state_dict()}}, "{file}")
state = torch.load("{file}")
first = torch.amp.GradScaler("cpu", init_scale=32.0)
second = torch.amp.GradScaler("cpu", init_scale=16.0)
adam.load_state_dict(state["adam"])  # AMP402
run_backward(first)
first.step(adam)
first.update()
run_backward(second)
second.step(adam)
second.update()
""",
        tmp_path / "train.py",
    )
    assert only(run).message.startswith("`adam` is loaded from a checkpoint but `first` is not")


def test_a_refused_step_of_low_parameters_is_reported_at_their_cast(tmp_path: Path) -> None:
    run = run_program(
        SETUP
        + """
model.half()  # AMP501
adam = torch.optim.SGD(model.parameters(), lr=1e-3)
run_backward(grad_scaler)
try:
    grad_scaler.step(adam)
except ValueError:
    pass
""",
        tmp_path / "train.py",
    )
    assert only(run).label == "cast:trained-scaled"


def test_a_refused_step_names_no_cast_that_is_older_than_the_recording() -> None:
    model = nn.Linear(8, 1).half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    with record() as run:
        scaler.scale(model(torch.ones(4, 8).half()).float().sum()).backward()
        with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
            scaler.step(optimizer)
    assert run.failure is None
    assert run.findings == []
