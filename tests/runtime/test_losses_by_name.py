"""The loss of a backward in messages: the expression that the program scales, or the whole of an unscaled loss."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

pytest.importorskip("torch")

from agreement import recorded

pytestmark = pytest.mark.usefixtures("patched_once")

PROGRAM = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")


def penalty(module, x):
    return module(x).float().square().mean()


every = 4
for step, x in enumerate(torch.randn(4, 4, 8)):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(x).float().abs().mean()
    scaler.scale(loss).backward()
    if step % 2:
        {raw}
    scaler.step(optimizer)
    scaler.update()
"""


@pytest.mark.parametrize(
    ("raw", "loss"),
    [
        ("penalty(model, x).mul(every).backward()", "penalty(model, x).mul(every)"),
        ("penalty(model, x).backward()", "penalty(model, x)"),
        ("(penalty(model, x) * every).backward()", "penalty(model, x) * every"),
        ("torch.autograd.backward(penalty(model, x).mean())", "penalty(model, x).mean()"),
        ("extra = penalty(model, x); extra.backward()", "extra"),
    ],
)
def test_an_unscaled_loss_is_named_whole(raw: str, loss: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM.format(raw=raw), encoding="utf-8")
    run = recorded(lambda: runpy.run_path(str(script), run_name="__main__"))
    (finding,) = run.findings
    assert finding.code == "AMP203"
    assert f"`{loss}` is not scaled, but `scaler.step(optimizer)` divides" in finding.message
    assert f"write `scaler.scale({loss}).backward()`" in finding.message
