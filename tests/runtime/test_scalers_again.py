"""Scalers that are constructed again for the same optimizer: a run reports them, unless the scale is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from agreement import check_script

PROGRAM = """\
import torch
from torch import nn

torch.manual_seed(0)


class Training:
    def __init__(self):
        self.model = nn.Linear(8, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.scaler = None

    def make(self):
        {make}

    def epoch(self):
        self.make()
        for x in torch.randn(3, 4, 8):
            self.optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = self.model(x).float().square().mean()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()


{run}
"""
LOADED = """old, self.scaler = self.scaler, torch.amp.GradScaler("cpu")
        if old:
            self.scaler.load_state_dict(old.state_dict())"""
AGAIN = "training = Training()\nfor _ in range(3):\n    training.epoch()"


def check(tmp_path: Path, make: str, run: str = AGAIN) -> str:
    return check_script(PROGRAM.format(make=make, run=run), tmp_path)


@pytest.mark.parametrize(
    "make",
    [
        'self.scaler = torch.amp.GradScaler("cpu")  # AMP208',
        "self.scaler = torch.cpu.amp.GradScaler()  # AMP208",
        'self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=int(700))  # AMP208',
    ],
)
def test_a_scaler_for_each_epoch_is_named(make: str, tmp_path: Path) -> None:
    message = check(tmp_path, make)
    assert "`self.scaler` is constructed again in every iteration of `for _ in range(3)`" in message


@pytest.mark.parametrize(
    ("loop", "head"),
    [
        ("while len(done) < 3:", "while len(done) < 3"),
        ("for i, (j, k) in [(1, (2, 3))] * 3:", "for i, (j, k) in [(1, (2, 3))] * 3"),
        ("for (i, j) in zip(range(3), range(3)):", "for i, j in zip(range(3), range(3))"),
        ("for _ in range(1):\n  for fold in range(3):", "for fold in range(3)"),
        ("for fold in range(3):\n  if fold >= 0:", "for fold in range(3)"),
    ],
)
def test_the_head_of_the_loop_in_which_a_scaler_is_made(loop: str, head: str, tmp_path: Path) -> None:
    run = f"training, done = Training(), []\n{loop}\n    training.epoch()\n    done.append(1)"
    message = check(tmp_path, 'self.scaler = torch.amp.GradScaler("cpu")  # AMP208', run)
    assert f"`self.scaler` is constructed again in every iteration of `{head}`" in message


def test_a_scaler_without_a_name_or_a_loop(tmp_path: Path) -> None:
    make = "setattr(self, 'scaler', torch.amp.GradScaler('cpu'))  # AMP208"
    message = check(tmp_path, make, "training = Training()\n[training.epoch() for _ in range(3)]")
    assert "the scaler is constructed again in every iteration of the loop that uses it" in message


@pytest.mark.parametrize(
    ("make", "run"),
    [
        ('self.scaler = self.scaler or torch.amp.GradScaler("cpu")', AGAIN),
        (LOADED, AGAIN),
        (
            'self.scaler = torch.amp.GradScaler("cpu", init_scale=self.scaler.get_scale() if self.scaler else 2.0**16)',
            AGAIN,
        ),
        ('self.scaler = torch.amp.GradScaler("cpu")', "for fold in range(3):\n    Training().epoch()"),
    ],
    ids=["made once", "loaded", "with the last scale", "a training each"],
)
def test_scalers_that_keep_the_scale_or_belong_to_separate_trainings_are_right(
    make: str, run: str, tmp_path: Path
) -> None:
    check(tmp_path, make, run)
