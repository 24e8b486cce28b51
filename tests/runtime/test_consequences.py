"""Non-finite values after a wrong update: the update is named first, and the consequence says what it rests on."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

pytest.importorskip("torch")

from agreement import recorded

from pytest_amp_check.protocol.finding import Finding

pytestmark = pytest.mark.usefixtures("patched_once")

PROGRAM = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr={rate})
scaler = torch.amp.GradScaler("cpu")
for step in range(5):
    x = torch.randn(4, 8)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        out = model(x)
        loss = out.float().square().mean() {loss}
    {backward}
    {between}
    {step}
    scaler.update()
"""
USUAL = {
    "rate": "0.01",
    "loss": "",
    "backward": "scaler.scale(loss).backward()",
    "between": "pass",
    "step": "scaler.step(optimizer)",
}


def findings(tmp_path: Path, **parts: str) -> list[Finding]:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM.format(**{**USUAL, **parts}), encoding="utf-8")
    run = recorded(lambda: runpy.run_path(str(script), run_name="__main__"))
    assert run.failure is None
    return list(run.findings)


TWICE = "scaler.scale(loss).backward(retain_graph=True); scaler.unscale_(optimizer); scaler.scale(loss).backward()"


@pytest.mark.parametrize(
    ("parts", "code", "line"),
    [({"backward": TWICE}, "AMP209", 14), ({"step": "optimizer.step(); scaler.unscale_(optimizer)"}, "AMP204", 16)],
)
def test_the_wrong_update_comes_before_the_overflow_that_it_causes(
    parts: dict[str, str], code: str, line: int, tmp_path: Path
) -> None:
    first, *others = findings(tmp_path, **parts)
    assert others
    assert (first.code, first.line, first.certain) == (code, line, True)
    for other in others:
        assert other.code == "AMP802"
        assert not other.certain
        assert other.uncertainty == f"only if it remains once {code} in line {line} is mended"


def test_an_overflow_before_the_wrong_update_stays_where_it_is(tmp_path: Path) -> None:
    loss = "/ (0.0 if step == 0 else 1.0)"
    found = findings(tmp_path, loss=loss, between="if step > 2: nn.utils.clip_grad_norm_(model.parameters(), 1.0)")
    assert [finding.code for finding in found] == ["AMP802", "AMP201"]
    assert all(finding.certain for finding in found)


def test_an_overflow_without_a_wrong_update_is_certain(tmp_path: Path) -> None:
    (found,) = findings(tmp_path, loss="/ (0.0 if step == 2 else 1.0)")
    assert (found.code, found.line, found.certain) == ("AMP802", 13, True)
