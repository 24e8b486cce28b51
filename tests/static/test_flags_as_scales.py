"""AMP216 for flags that land in the first parameter of a GradScaler."""

from __future__ import annotations

import pytest

from pytest_amp_check import check_source

PROGRAM = """\
import torch

class Trainer:
    def __init__(self, model, {parameter}, full=False, scale=2.0):
        self.model = model
        self.scaler = {scaler}

    def step(self, x, optimizer):
        with torch.autocast("cuda"):
            loss = self.model(x).mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(optimizer)
        self.scaler.update()
        optimizer.zero_grad()
"""


def labels(parameter: str, scaler: str) -> list[str]:
    return [
        each.label for each in check_source(PROGRAM.format(parameter=parameter, scaler=scaler)) if "216" in each.code
    ]


@pytest.mark.parametrize(
    ("parameter", "scaler"),
    [
        ("amp: bool", "torch.cuda.amp.GradScaler(amp)"),
        ("amp=True", "torch.cuda.amp.GradScaler(amp)"),
        ("amp: bool", "torch.amp.GradScaler(amp)"),
        ("amp: bool", "torch.amp.GradScaler(not full)"),
        ("device", "torch.cuda.amp.GradScaler(device.type == 'cuda')"),
    ],
)
def test_a_flag_in_the_place_of_a_scale_or_device_is_reported(parameter: str, scaler: str) -> None:
    assert labels(parameter, scaler) == ["scaler:flag-misplaced"]


@pytest.mark.parametrize(
    ("parameter", "scaler"),
    [
        ("amp: bool", "torch.cuda.amp.GradScaler(enabled=amp)"),
        ("amp: bool", "torch.amp.GradScaler('cuda', enabled=amp)"),
        ("amp: bool", "torch.cuda.amp.GradScaler(scale)"),
        ("device: str", "torch.amp.GradScaler(device)"),
        ("start: float", "torch.cuda.amp.GradScaler(start)"),
        ("amp", "torch.cuda.amp.GradScaler(amp)"),
    ],
)
def test_other_arguments_are_right(parameter: str, scaler: str) -> None:
    assert labels(parameter, scaler) == []
