"""Optimizers that hold parameters which FSDP replaces afterwards (AMP608)."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_amp_check import check_paths
from pytest_amp_check.static.engine import check_source

HEAD = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, fully_shard


def shard(model):
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)


def make(model):
    decayed = [p for p in model.parameters() if p.ndim > 1]
    return torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}], lr=1e-3)


"""
LOOP = """\
    for x in loader:
        model(x).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
PLAIN = "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)"


def found(*lines: str) -> list[str]:
    body = "".join(f"    {line}\n" for line in lines)
    source = f"{HEAD}def main(model, loader):\n{body}{LOOP}"
    return [source.splitlines()[f.line - 1].strip() for f in check_source(source) if f.code == "AMP608"]


@pytest.mark.parametrize("made", [PLAIN, "optimizer = make(model)"])
@pytest.mark.parametrize(
    "sharded",
    ["fully_shard(model)", "shard(model)", "model = FSDP(model)", "model = FSDP(model, use_orig_params=False)"],
)
def test_the_order_decides(made: str, sharded: str) -> None:
    assert found(made, sharded) == [made]
    assert found(sharded, made) == []


@pytest.mark.parametrize(
    "lines",
    [
        (PLAIN, "model = FSDP(model, use_orig_params=True)"),
        ("optimizer = torch.optim.AdamW(model.head.parameters())", "fully_shard(model.trunk)"),
        (PLAIN, "teacher = nn.Linear(8, 8)", "fully_shard(teacher)"),
        ("first = make(model)", "shard(model)", PLAIN),
    ],
)
def test_parameters_that_stay_or_are_not_stepped(lines: tuple[str, ...]) -> None:
    assert found(*lines) == []


RUNNER = """\
import torch
from setup_ import make, shard


class Runner:
    def __init__(self, model):
        self.model = model.cuda()
        {first}
        {second}

    def step(self, x):
        self.model(x).mean().backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
"""
MAKE, SHARD = "self.optimizer = make(self.model)", "shard(self.model)"


@pytest.mark.parametrize(("first", "second", "expected"), [(MAKE, SHARD, [8]), (SHARD, MAKE, [])])
def test_a_class_with_helpers_of_another_file(tmp_path: Path, first: str, second: str, expected: list[int]) -> None:
    (tmp_path / "setup_.py").write_text(HEAD)
    (tmp_path / "runner.py").write_text(RUNNER.format(first=first, second=second))
    (tmp_path / "train.py").write_text(
        "from runner import Runner\nimport torch\n\nrunner = Runner(torch.nn.Linear(8, 8))\n"
        "for x in loader:\n    runner.step(x)\n"
    )
    findings = [f for f in check_paths([tmp_path]).findings if f.code == "AMP608"]
    assert [(Path(f.filename).name, f.line) for f in findings] == [("runner.py", line) for line in expected]
