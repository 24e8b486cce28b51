"""Recorded matrix products with sides that Tensor Cores handle less efficiently."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from pytest_amp_check import record

pytestmark = pytest.mark.usefixtures("patched_once")

PROGRAM = """\
import torch
from torch import nn
from torch.nn import functional as F

model = {model}
x = {x}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled={enabled}):
        loss = {loss}
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
LINES = {"model": 5, "backward": 11}


def found(
    path: Path, model: str, x: str, loss: str = "model(x).mean()", *, enabled: bool = True
) -> list[tuple[int, str]]:
    """Run a program from a file. Return the line and the message of each finding about sizes."""
    source = PROGRAM.format(model=model, x=x, loss=loss, enabled=enabled)
    path.write_text(source, encoding="utf-8")
    with record() as run:
        run.select("ALL")
        exec(compile(source, str(path), "exec"), {"__name__": "__main__", "__file__": str(path)})  # noqa: S102 - ours
    assert run.failure is None
    return [(finding.line, finding.message) for finding in run.findings if finding.code == "AMP702"]


def message(subject: str, side: int, better: int) -> str:
    return (
        f"`{subject}` multiplies by a low-precision matrix with a side of {side}, slower on Tensor Cores than "
        f"multiples of 8: pad it to {better}"
    )


LAYER = [
    ("nn.Linear(136, 133)", "torch.randn(8, 136)", "nn.Linear", 133, 136),
    ("nn.Linear(133, 136)", "torch.randn(8, 133)", "nn.Linear", 133, 136),
    ("nn.Sequential(nn.Linear(128, 129))", "torch.randn(128, 128)", "nn.Linear", 129, 136),
]


@pytest.mark.parametrize(("model", "x", "subject", "side", "better"), LAYER)
def test_a_layer_with_an_odd_side_is_reported_where_it_is_made(
    tmp_path: Path, model: str, x: str, subject: str, side: int, better: int
) -> None:
    assert found(tmp_path / "train.py", model, x) == [(LINES["model"], message(subject, side, better))]
    assert found(tmp_path / "train.py", model, x, enabled=False) == []


@pytest.mark.parametrize(
    ("model", "x", "loss"),
    [
        ("nn.Linear(128, 128)", "torch.randn(128, 128)", "model(x).mean()"),
        # A small side makes the product cheap.
        ("nn.Linear(128, 3)", "torch.randn(128, 128)", "model(x).mean()"),
        # The weight is of no layer that runs here.
        ("nn.Linear(136, 133)", "torch.randn(8, 136)", "sum(p.sum() for p in model.parameters())"),
    ],
)
def test_other_sizes_are_not_reported(tmp_path: Path, model: str, x: str, loss: str) -> None:
    assert found(tmp_path / "train.py", model, x, loss) == []


@pytest.mark.parametrize(("rows", "better"), [(135, 136), (129, 136)])
def test_a_batch_with_an_odd_size_is_reported_at_the_backward_pass(tmp_path: Path, rows: int, better: int) -> None:
    expected = (
        f"`loss.backward` runs backward through low-precision products of {rows} rows, slower on Tensor Cores than "
        f"multiples of 8: use batches that give {better}"
    )
    reported = found(tmp_path / "train.py", "nn.Linear(128, 128)", f"torch.randn({rows}, 128)")
    assert reported == [(LINES["backward"], expected)]
