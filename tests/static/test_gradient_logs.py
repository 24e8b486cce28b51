"""``wandb.watch`` reads gradients in the backward pass, where a loss scale multiplies them."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source
from pytest_amp_check.static.settings import Settings

TRAINS = """\
import torch
import wandb
from torch import nn

model = nn.Linear(4, 1)
other = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
{watch}
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


def found(source: str) -> list[tuple[int, str, str]]:
    findings = check_source(source, "train.py", Settings(select=frozenset({"AMP202"})))
    return [(finding.line, finding.severity, finding.message) for finding in findings]


@pytest.mark.parametrize(
    "watch",
    [
        "wandb.watch(model)",
        'wandb.watch(model, log="gradients")',
        'wandb.watch(model, log="all", log_freq=10)',
        'wandb.watch(model, None, "all")',
        "wandb.watch(models=[other, model])",
        "wandb.watch(anything)",
    ],
)
def test_logged_gradients_are_scaled(watch: str) -> None:
    message = (
        '`wandb.watch` logs gradients that are still multiplied by the loss scale: pass `log="parameters"` here, and '
        "log gradients yourself after `scaler.unscale_(optimizer)`"
    )
    assert found(TRAINS.format(watch=watch)) == [(9, "info", message)]


def test_a_function_of_an_alias_is_the_same() -> None:
    source = TRAINS.format(watch="watch(model)").replace("import wandb", "from wandb import watch")
    assert [line for line, _, _ in found(source)] == [9]


@pytest.mark.parametrize(
    "watch",
    [
        'wandb.watch(model, log="parameters")',
        "wandb.watch(model, log=None)",
        "wandb.watch(model, log=chosen)",
        "wandb.watch(other)",
        "wandb.init()",
    ],
)
def test_what_logs_no_scaled_gradient(watch: str) -> None:
    assert found(TRAINS.format(watch=watch)) == []


ACCELERATE = """\
import torch
import wandb
from accelerate import Accelerator

accelerator = Accelerator(mixed_precision="{precision}")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)
wandb.watch(model)
for x, y in loader:
    optimizer.zero_grad()
    accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
    optimizer.step()
"""


@pytest.mark.parametrize(("precision", "line"), [("fp16", [9]), ("bf16", []), ("no", [])])
def test_a_framework_scales_as_well(precision: str, line: list[int]) -> None:
    findings = found(ACCELERATE.format(precision=precision))
    assert [where for where, _, _ in findings] == line
    assert all("`accelerator.scaler.unscale_(optimizer)`" in message for _, _, message in findings)


def test_without_a_scale_gradients_are_logged_as_they_are() -> None:
    source = TRAINS.format(watch="wandb.watch(model)")
    assert found(source.replace('GradScaler("cuda")', 'GradScaler("cuda", enabled=False)')) == []
    plain = source.replace("scaler.scale(loss)", "loss").replace("scaler.step(optimizer)", "optimizer.step()")
    assert found(plain.replace("    scaler.update()\n", "")) == []


def test_a_branch_without_a_scaler_logs_no_scaled_gradient() -> None:
    source = TRAINS.format(watch="if not use_amp:\n    wandb.watch(model)")
    step = "    if use_amp:\n        scaler.step(optimizer)\n    else:\n        optimizer.step()\n"
    source = source.replace("    scaler.step(optimizer)\n", step)
    assert found(source) == []
