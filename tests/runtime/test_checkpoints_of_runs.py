"""Checkpoints in runs: what torch.save and load_state_dict say about the state of the scaler."""

# mypy: allow-untyped-calls

from __future__ import annotations

from pathlib import Path

import pytest
from programs import run_program

pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("patched_once")

PROGRAM = """\
import io
import torch
from torch import nn

torch.manual_seed(0)
model, other = nn.Linear(8, 1), nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
second = torch.optim.Adam(other.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
disabled = torch.amp.GradScaler("cpu", enabled=False)
file = io.BytesIO()


def train(scaler, optimizer=optimizer, model=model):
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.float16):
        loss = model(torch.ones(4, 8)).float().square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


def load():
    file.seek(0)
    return torch.load(file)


{statements}
"""


def messages(statements: str, tmp_path: Path) -> list[str]:
    run = run_program(PROGRAM.format(statements=statements), tmp_path / "train.py")
    return [finding.message for finding in run.findings]


LEFT_OUT = "The checkpoint holds the state of `optimizer` but not of `scaler`"


@pytest.mark.parametrize(
    "statements",
    [
        'train(scaler)\ntorch.save({"optimizer": optimizer.state_dict()}, file)  # AMP401',
        'train(scaler)\nstate = {"optimizer": optimizer.state_dict()}  # AMP401\ntorch.save(state, file)',
        'train(scaler)\nstate = [{"states": (optimizer.state_dict(),)}]  # AMP401\ntorch.save(state, file)',
        # A disabled scaler has an empty state.
        "train(scaler)\ntorch.save([optimizer.state_dict(), disabled.state_dict()], file)  # AMP401",
        # Only the optimizer of a scaler counts.
        "train(scaler)\ntorch.save([second.state_dict(), optimizer.state_dict()], file)  # AMP401",
    ],
)
def test_a_checkpoint_without_the_state_of_the_scaler(statements: str, tmp_path: Path) -> None:
    (message,) = messages(statements, tmp_path)
    assert message.startswith(LEFT_OUT)


@pytest.mark.parametrize(
    "statements",
    [
        'train(scaler)\ntorch.save({"optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}, file)',
        "train(scaler)\ntorch.save(optimizer.state_dict(), file)\ntorch.save(scaler.state_dict(), io.BytesIO())",
        # The public values of the scaler's state suffice, and other objects may hold it.
        (
            "train(scaler)\nstate = scaler.state_dict()\n"
            'del state["_growth_tracker"]\ntorch.save([optimizer.state_dict(), state], file)'
        ),
        "train(scaler)\nstate = [optimizer.state_dict(), (scaler.state_dict(),)]\ntorch.save(state, file)",
        "train(scaler)\ntorch.save(model.state_dict(), file)",
        # An optimizer that no scaler has stepped.
        "torch.save(optimizer.state_dict(), file)\ntrain(scaler)",
        "train(scaler)\ntorch.save(second.state_dict(), file)",
        # Loaded states.
        (
            "train(scaler)\ntorch.save([optimizer.state_dict(), scaler.state_dict()], file)\nstate = load()\n"
            "optimizer.load_state_dict(state[0])\nscaler.load_state_dict(state[1])\ntrain(scaler)"
        ),
        "train(scaler)\nstate = optimizer.state_dict()\noptimizer.load_state_dict(state)\ntrain(scaler)",
        "optimizer.load_state_dict(optimizer.state_dict())\ntrain(scaler)",
    ],
)
def test_checkpoints_that_are_right(statements: str, tmp_path: Path) -> None:
    assert messages(statements, tmp_path) == []


@pytest.mark.parametrize(
    ("statements", "start"),
    [
        (
            'train(scaler)\ntorch.save({"optimizer": optimizer.state_dict(), "scaler": scaler}, file)  # AMP402',
            "The checkpoint holds `scaler` as a whole object",
        ),
        (
            (
                'train(scaler)\nkeeper = scaler\nstate = {"optimizer": optimizer.state_dict()}\n'
                'state["scaler"] = keeper\ntorch.save(state, file)  # AMP402'
            ),
            "The checkpoint holds `scaler` as a whole object",
        ),
        (
            (
                "train(scaler)\ntorch.save([optimizer.state_dict(), scaler.state_dict()], file)\nstate = load()\n"
                "optimizer.load_state_dict(state[0])  # AMP402\ntrain(scaler)"
            ),
            "`optimizer` is loaded from a checkpoint but `scaler` is not",
        ),
        # A disabled scaler loads nothing.
        (
            (
                "train(scaler)\ntorch.save([optimizer.state_dict(), scaler.state_dict()], file)\nstate = load()\n"
                "optimizer.load_state_dict(state[0])  # AMP402\ndisabled.load_state_dict({})\ntrain(scaler)"
            ),
            "`optimizer` is loaded from a checkpoint but `scaler` is not",
        ),
        (
            (
                "train(scaler)\nscaler.scale(model(torch.ones(4, 8)).sum()).backward()\nscaler.step(optimizer)\n"
                "state = scaler.state_dict()  # AMP402\nscaler.update()"
            ),
            "`scaler.state_dict()` is taken between step and update",
        ),
    ],
)
def test_states_of_scalers_that_are_of_no_use(statements: str, start: str, tmp_path: Path) -> None:
    (message,) = messages(statements, tmp_path)
    assert message.startswith(start)


def test_the_state_of_a_new_scale_counts_after_it_is_loaded(tmp_path: Path) -> None:
    run = run_program(
        PROGRAM.format(
            statements="train(scaler)\nstate = scaler.state_dict()\nstate['scale'] = 16.0\n"
            "scaler.load_state_dict(state)\ntrain(scaler)",
        ),
        tmp_path / "train.py",
    )
    assert [step.scale_before for step in run.steps] == [64.0, 16.0]
