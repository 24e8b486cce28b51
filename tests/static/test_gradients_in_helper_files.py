"""Gradients that a function of another file reads or changes, where that file has no other word of a training."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_amp_check.static.engine import check_paths

TRAINING = """\
import torch
from helpers import act


def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        with torch.autocast("cuda"):
            loss = model(x).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        {unscale}
        act(model, scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
"""
HELPERS = {
    "a division by the scale": ("p.grad.div_(scale)", "AMP210"),
    "a division of data": ("p.grad.data /= scale", "AMP210"),
    "a bound": ("p.grad.clamp_(-1, 1)", "AMP202"),
    "a norm": ("print(p.grad.norm())", "AMP202"),
}


def codes(folder: Path, helper: str, unscale: str) -> list[str]:
    (folder / "helpers.py").write_text(
        f"import torch\n\n\ndef act(model, scale):\n    for p in model.parameters():\n        {helper}\n",
        encoding="utf-8",
    )
    (folder / "train.py").write_text(TRAINING.format(unscale=unscale), encoding="utf-8")
    return [finding.code for finding in check_paths([str(folder)]).findings]


@pytest.mark.parametrize(("helper", "code"), HELPERS.values(), ids=list(HELPERS))
def test_a_helper_that_gets_scaled_gradients(helper: str, code: str, tmp_path: Path) -> None:
    assert codes(tmp_path, helper, "pass") == [code]


@pytest.mark.parametrize("helper", ["p.grad.clamp_(-1, 1)", "print(p.grad.norm())"])
def test_a_helper_that_gets_unscaled_gradients(helper: str, tmp_path: Path) -> None:
    assert codes(tmp_path, helper, "scaler.unscale_(optimizer)") == []


def test_a_helper_that_computes_gradients_of_its_own(tmp_path: Path) -> None:
    assert codes(tmp_path, "print(torch.autograd.grad(p.sum(), p))", "pass") == []
