"""Sizes that are unfavorable for Tensor Cores: reported by analyzer and recorder, only for low-precision products."""

from __future__ import annotations

from pathlib import Path

import pytest
from agreement import TORCH, recorded, traced
from marks import MISTAKES, marks, places, shown

from pytest_amp_check.static.engine import check_source
from pytest_amp_check.static.settings import Settings

pytestmark = pytest.mark.usefixtures("patched_once")

pytest.importorskip("torch")

HEAD = """\
import torch
from torch import nn

torch.manual_seed(0)
"""
LOOP = """\
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(X).float().square().mean()
    loss.backward()
    optimizer.step()
"""
PROGRAMS = {
    "both sides of a layer": ("model = nn.Linear(129, 130)  # AMP702", "torch.randn(8, 129)"),
    "sides by their names": ("model = nn.Linear(out_features=136, in_features=131)  # AMP702", "torch.randn(8, 131)"),
    "a convolution": ("model = nn.Conv2d(129, 136, 3)  # AMP702", "torch.randn(1, 129, 4, 4)"),
    "channels of an image": ("model = nn.Conv2d(3, 129, 3)", "torch.randn(1, 3, 4, 4)"),
    "few classes": ("model = nn.Linear(1024, 10)", "torch.randn(8, 1024)"),
    "multiples of 8": ("model = nn.Linear(136, 1008)", "torch.randn(8, 136)"),
    "behind what takes no gradients": (
        "with torch.no_grad():\n    torch.zeros(1)\nmodel = nn.Linear(129, 130)  # AMP702",
        "torch.randn(8, 129)",
    ),
    "groups": ("model = nn.Conv2d(130, 130, 3, groups=130)", "torch.randn(1, 130, 4, 4)"),
    "a weight that a program transposes": (
        """\
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(1001, 128)  # runtime-only: AMP702 a function is given it

    def forward(self, x):
        return nn.functional.linear(self.words(x), self.words.weight)


model = Tied()""",
        "torch.randint(1001, (4, 34))",
    ),
}


@pytest.mark.parametrize(("model", "x"), PROGRAMS.values(), ids=PROGRAMS)
def test_layers_of_odd_sizes(model: str, x: str, tmp_path: Path) -> None:
    assert_reported(f"{HEAD}{model}\n{LOOP.replace('X', x)}", tmp_path)


def test_in_float32_every_size_is_as_good(tmp_path: Path) -> None:
    source = f"{HEAD}model = nn.Linear(129, 130)\n{LOOP.replace('X', 'torch.randn(150, 129)')}"
    assert_reported(source.replace("dtype=torch.bfloat16", "enabled=False"), tmp_path)


def test_rows_are_reported_where_the_layers_are_right(tmp_path: Path) -> None:
    source = f"{HEAD}model = nn.Linear(136, 136)\n{LOOP.replace('X', 'torch.randn(150, 136)')}"
    assert_reported(source.replace("backward()", "backward()  # runtime-only: AMP702 of data"), tmp_path)


def assert_reported(source: str, folder: Path) -> None:
    path = folder / "script.py"
    path.write_text(source, encoding="utf-8")
    run = recorded(lambda: traced(path, set()))
    assert (run.failure, run.error) == (None, None)
    # Before torch 2.5, graph nodes do not have the dtype of their results.
    assert places(run.findings) == (marks(source, "runtime") if TORCH >= (2, 5) else set()), shown(run.findings)
    assert places(check_source(source, str(path), Settings(select=MISTAKES))) == marks(source)
