"""Casts of a trained module to low precision and back: a run reports the rounding, unless the weights are restored."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from marks import marks, places, shown

pytest.importorskip("torch")

from agreement import recorded

pytestmark = pytest.mark.usefixtures("patched_once")

PROGRAM = """\
import copy
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
{before}
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step, x in enumerate(torch.randn(4, 4, 8)):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(x).float().square().mean()
    loss.backward()
    optimizer.step()
    if step == 1:
        {between}
{after}
"""


def check(tmp_path: Path, before: str = "", between: str = "pass", after: str = "") -> str:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM.format(before=before, between=between, after=after), encoding="utf-8")
    run = recorded(lambda: runpy.run_path(str(script), run_name="__main__"))
    assert places(run.findings) == marks(script.read_text(encoding="utf-8"), "runtime"), shown(run.findings)
    assert all(finding.certain for finding in run.findings)
    return shown(run.findings)


@pytest.mark.parametrize(
    "between",
    [
        "states = model.half().state_dict(); model.float()  # AMP501",
        "model.to(torch.bfloat16)(x.bfloat16()); model.to(torch.float32)  # AMP501",
        "model[0].half(); model.float()  # AMP501",
    ],
)
def test_trained_weights_that_are_rounded_for_an_export_are_named(between: str, tmp_path: Path) -> None:
    assert "rounds trained parameters to" in check(tmp_path, between=between)


@pytest.mark.parametrize(
    "programs",
    [
        {"between": "copy.deepcopy(model).half().state_dict()"},
        {
            "between": "kept = copy.deepcopy(model.state_dict()); model.half(); model.float(); "
            "model.load_state_dict(kept)"
        },
        {"before": "model.half().float()"},
        {"after": "model.half()\nmodel.float()"},
    ],
    ids=["a copy", "loaded again", "before the training", "after the training"],
)
def test_casts_that_leave_the_trained_weights_alone_are_right(programs: dict[str, str], tmp_path: Path) -> None:
    check(tmp_path, **programs)
