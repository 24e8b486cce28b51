"""Losses of low-precision outputs, and sums of losses in low precision: which runs are reported, and where."""

# mypy: allow-untyped-calls

from __future__ import annotations

from pathlib import Path

import pytest
from programs import run_program

pytest.importorskip("torch")

from pytest_amp_check import record

pytestmark = pytest.mark.usefixtures("patched_once")

PROGRAM = """\
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Linear(8, 4)
x, y = torch.randn(4, 8), torch.tensor([0, 1, 2, 3])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(x)
        {inside}
    {outside}
    loss.backward()
    optimizer.step()
"""


def run(tmp_path: Path, inside: str = "pass", outside: str = "pass") -> list[str]:
    source = PROGRAM.format(inside=inside, outside=outside)
    return [finding.message for finding in run_program(source, tmp_path / "train.py").findings]


@pytest.mark.parametrize(
    ("loss", "call", "given"),
    [
        ("F.cross_entropy(output, y)", "F.cross_entropy", "output"),
        ("F.cross_entropy(input=output, target=y)", "F.cross_entropy", "output"),
        ("F.nll_loss(output.log_softmax(-1), y)", "F.nll_loss", "output.log_softmax(-1)"),
        ("nn.CrossEntropyLoss()(output, y)", "nn.CrossEntropyLoss()", "output"),
    ],
)
def test_a_loss_behind_its_region_is_reported_once(loss: str, call: str, given: str, tmp_path: Path) -> None:
    (message,) = run(tmp_path, outside=f"loss = {loss}  # AMP104")
    assert message.startswith(
        f"`{call}` computes the loss outside autocast, in bfloat16 with its 8 bits of precision: pass `{given}.float()`"
    )


def test_losses_of_two_lines(tmp_path: Path) -> None:
    outside = "loss = F.cross_entropy(output, y)  # AMP104\n    loss = loss + F.cross_entropy(-output, y)  # AMP104"
    assert len(run(tmp_path, outside=outside)) == 2


@pytest.mark.parametrize(
    "statements",
    [
        {"inside": "loss = F.cross_entropy(output, y)"},
        {"outside": "loss = F.cross_entropy(output.float(), y)"},
        {"outside": "F.cross_entropy(output.detach(), y); loss = output.float().sum()"},
        {"outside": "torch.no_grad()(F.cross_entropy)(output, y); loss = output.float().sum()"},
        # An output that comes from no region.
        {"outside": "loss = F.cross_entropy((model.weight @ x.T).bfloat16(), y)"},
    ],
)
def test_losses_that_lose_nothing(statements: dict[str, str], tmp_path: Path) -> None:
    assert run(tmp_path, **statements) == []


@pytest.mark.parametrize("call", ["F.binary_cross_entropy", "nn.BCELoss()"])
def test_a_binary_cross_entropy_in_a_region(call: str, tmp_path: Path) -> None:
    inside = f"loss = {call}(output.sigmoid(), torch.zeros(4, 4))  # AMP504"
    (message,) = run(tmp_path, inside=inside)
    assert message.startswith(f"`{call}` runs under autocast, on probabilities already rounded to 0 or 1")


def test_a_binary_cross_entropy_behind_a_region(tmp_path: Path) -> None:
    assert run(tmp_path, outside="loss = F.binary_cross_entropy(output.float().sigmoid(), torch.zeros(4, 4))") == []


COMPILED = """\
import torch
from torch import nn
from torch.nn import functional as F


class Loss(nn.Module):
    def forward(self, x, y):
        return F.binary_cross_entropy(x.sigmoid(), y)


x, y = torch.randn(4, 2), torch.ones(4, 2)
with torch.autocast("cpu", dtype=torch.bfloat16):
    {statement}
"""


@pytest.mark.parametrize(
    ("statement", "count"),
    [("Loss()(x, y)", 1), ("torch.export.export(Loss(), (x, y), strict=False)", 0)],
    ids=["called", "exported"],
)
def test_a_binary_cross_entropy_that_is_exported_is_not_called(statement: str, count: int, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    source = COMPILED.format(statement=statement)
    path.write_text(source, encoding="utf-8")
    with record() as run:
        exec(compile(source, str(path), "exec"), {"__name__": "__main__"})  # noqa: S102 - ours
    assert run.failure is None
    assert len(run.findings) == count
