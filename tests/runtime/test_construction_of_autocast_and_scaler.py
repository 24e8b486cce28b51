"""Contexts and scalers that a program constructs with wrong arguments, or for a device that is missing."""

# mypy: allow-untyped-calls

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from programs import run_program

pytestmark = [
    pytest.mark.usefixtures("patched_once"),
    pytest.mark.filterwarnings("ignore:.*is not available", "ignore:.*deprecated", "ignore:In CPU autocast"),
]

SETUP = """\
import contextlib
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(4, 8)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(scaler, dtype=torch.float16, enabled=True):
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype, enabled=enabled):{at_region}
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward(){at_scale}
        scaler.step(optimizer)
        scaler.update()


"""


def messages(
    statements: str, tmp_path: Path, *, at_scale: str = "", at_region: str = "", names: dict[str, Any] | None = None
) -> list[str]:
    source = SETUP.format(at_scale=at_scale, at_region=at_region) + statements
    return [finding.message for finding in run_program(source, tmp_path / "train.py", names=names).findings]


@pytest.mark.parametrize(
    ("arguments", "start"),
    [
        ('"cpu", 2.0**10, 1.0', "`growth_factor=1.0` never lets the scale grow"),
        ('"cpu", growth_factor=0.5', "`growth_factor=0.5` never lets the scale grow"),
        ('"cpu", 2.0**10, 2.0, 1.5', "`backoff_factor=1.5` does not lower the scale"),
        ('"cpu", growth_interval=0', "`growth_interval=0` lets the scale fall but never grow again"),
    ],
)
def test_arguments_of_a_scaler(arguments: str, start: str, tmp_path: Path) -> None:
    statements = f"with contextlib.suppress(AssertionError):\n    torch.amp.GradScaler({arguments})  # AMP216"
    (message,) = messages(statements, tmp_path)
    assert message.startswith(start)


@pytest.mark.parametrize(
    ("arguments", "start"),
    [
        ('"cpu", torch.float16, False, False, 3', "`torch.autocast` takes 4 arguments and is given more"),
        ('"cpu", torch.float32', "`torch.autocast` is given `torch.float32`, which cpu autocast does not support"),
        ('"cpu", dtype=torch.float64', "`torch.autocast` is given `torch.float64`, which cpu autocast does not"),
        ('"cpu", enabled="yes"', "`torch.autocast` is given 'yes' as `enabled`"),
    ],
)
def test_arguments_of_a_context_are_reported_once(arguments: str, start: str, tmp_path: Path) -> None:
    statements = (
        "for _ in range(2):\n    with contextlib.suppress(TypeError):\n"
        f"        with torch.autocast({arguments}):  # AMP106\n            model(x)\n"
    )
    (message,) = messages(statements, tmp_path)
    assert message.startswith(start)


@pytest.mark.parametrize(
    "arguments", ['"cpu"', '"cpu", torch.bfloat16, True, True', '"cpu", dtype=torch.float16, cache_enabled=False']
)
def test_arguments_of_a_context_that_are_right(arguments: str, tmp_path: Path) -> None:
    assert messages(f"with torch.autocast({arguments}):\n    model(x)\n", tmp_path) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device of the scaler is not missing")
@pytest.mark.parametrize(
    "statements",
    [
        'train(torch.amp.GradScaler("cuda"))  # AMP217',
        "train(torch.cuda.amp.GradScaler())  # AMP217",
        'torch.amp.GradScaler("cuda")  # AMP217',
        # One report is enough.
        'first = torch.amp.GradScaler("cuda")  # AMP217\nsecond = torch.amp.GradScaler("cuda")\ntrain(second)',
    ],
)
def test_a_scaler_that_disables_itself_is_reported_where_it_is_constructed(statements: str, tmp_path: Path) -> None:
    (message,) = messages(statements, tmp_path)
    assert "GradScaler` switched itself off because this machine has no such device" in message


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device of the scaler is not missing")
@pytest.mark.parametrize("statements", ["train(older)", "train(older)\ntrain(other)"])
def test_an_older_scaler_that_has_disabled_itself_is_reported_where_it_scales_first(
    statements: str, tmp_path: Path
) -> None:
    with contextlib.suppress(UserWarning):
        names = {name: torch.amp.GradScaler("cuda") for name in ("older", "other")}
    (message,) = messages(statements, tmp_path, at_scale="  # AMP217", names=names)
    assert message.startswith("`scaler.scale` switched itself off because this machine has no such device")


@pytest.mark.parametrize(
    "statements",
    [
        'train(torch.amp.GradScaler("cpu"))',
        # Disabled by the program, for a dtype that needs no scaler, or for a device that is missing.
        'train(torch.amp.GradScaler("cpu", enabled=False), torch.bfloat16)',
        'torch.amp.GradScaler("cpu", enabled=False)',
        'torch.amp.GradScaler("cuda", enabled=False)',
        'train(torch.amp.GradScaler("cuda", enabled=False))',
    ],
)
def test_scalers_that_are_right_or_disabled_by_the_program(statements: str, tmp_path: Path) -> None:
    assert messages(statements, tmp_path) == []


def test_a_scaler_that_is_enabled_for_disabled_regions(tmp_path: Path) -> None:
    (message,) = messages('train(torch.amp.GradScaler("cpu"), enabled=False)', tmp_path, at_region="  # AMP110")
    assert message.startswith("`torch.autocast` is disabled in every forward, but `scaler` is enabled")


def test_a_scaler_of_bfloat16(tmp_path: Path) -> None:
    (message,) = messages('train(torch.amp.GradScaler("cpu"), torch.bfloat16)', tmp_path, at_scale="  # AMP503")
    assert message.startswith("`scaler` scales a bfloat16 loss, which needs no scaling")
