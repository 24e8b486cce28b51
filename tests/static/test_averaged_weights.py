"""Averages of weights that are updated after each scaler step, although some steps are skipped (AMP403)."""

from __future__ import annotations

import pytest
from marks import marks, places, shown

from pytest_amp_check.static.engine import check_source
from pytest_amp_check.static.settings import Settings

AMP403 = Settings(select=frozenset({"AMP403"}))

SETUP = """\
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

model = nn.Linear(8, 2).cuda()
average = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")

for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
"""
STEPS = SETUP + "    scaler.step(optimizer)\n    scaler.update()\n"
WRONG = {
    "after the update": STEPS + "    average.update_parameters(model)  # AMP403\n",
    "before the update": (
        SETUP
        + "    scaler.step(optimizer)\n"
        + "    average.update_parameters(model)  # AMP403\n"
        + "    scaler.update()\n"
    ),
    "of a model by name": STEPS + "    average.update_parameters(model=model)  # AMP403\n",
}
RIGHT = {
    "under a test that is not the step's": (
        STEPS.replace("for x, y in loader", "for step, (x, y) in enumerate(loader)")
        + "    if step % 16 == 0:\n        average.update_parameters(model)\n"
    ),
    "only where the scale did not fall": (
        SETUP
        + "    scaler.step(optimizer)\n"
        + "    before = scaler.get_scale()\n"
        + "    scaler.update()\n"
        + "    if scaler.get_scale() >= before:\n"
        + "        average.update_parameters(model)\n"
    ),
    "an exponential average": STEPS.replace(
        "AveragedModel(model)",
        "AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.999))",
    )
    + "    average.update_parameters(model)\n",
    "an average by another function": STEPS.replace(
        "AveragedModel(model)", "AveragedModel(model, avg_fn=lambda old, new, count: 0.9 * old + 0.1 * new)"
    )
    + "    average.update_parameters(model)\n",
    "once an epoch": STEPS + "average.update_parameters(model)\n",
    "a model that nothing trains": STEPS + "    average.update_parameters(nn.Linear(8, 2))\n",
    "without a scaler": (
        SETUP.replace("scaler.scale(loss)", "loss")
        .replace("float16", "bfloat16")
        .replace('scaler = torch.amp.GradScaler("cuda")\n', "")
        + "    optimizer.step()\n    average.update_parameters(model)\n"
    ),
}


@pytest.mark.parametrize("source", [*WRONG.values(), *RIGHT.values()], ids=[*WRONG, *RIGHT])
def test_averages_of_weights_beside_steps_that_may_be_skipped(source: str) -> None:
    findings = check_source(source, "train.py", AMP403)
    assert places(findings) == marks(source), shown(findings)


def test_it_says_what_averages_and_whose_step_is_skipped() -> None:
    (finding,) = check_source(WRONG["after the update"], "train.py", AMP403)
    assert finding.message == (
        "`average.update_parameters` adds the same weights to the average again if the step of `optimizer` is "
        "skipped: call it only if `scaler.get_scale()` did not fall in `scaler.update()`"
    )
