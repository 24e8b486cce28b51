"""Modules that are sharded with a policy for mixed precision compute in its dtype, without any region."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_amp_check import check_paths

PROGRAM = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, fully_shard


def main(loader):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    SHARD
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
"""
SECOND = "fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.{}))"
FIRST = "model = FullyShardedDataParallel(model, mixed_precision=MixedPrecision(param_dtype=torch.{}))"


@pytest.mark.parametrize(
    ("shard", "reported"),
    [
        (SECOND.format("float16"), True),
        (FIRST.format("half"), True),
        (SECOND.format("bfloat16"), False),
        (FIRST.format("bfloat16"), False),
        ("fully_shard(model, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float16, param_dtype=dtype))", False),
        ("fully_shard(model)", False),
    ],
)
def test_float16_by_a_policy_needs_a_scaler(tmp_path: Path, shard: str, reported: bool) -> None:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM.replace("SHARD", shard), encoding="utf-8")
    found = [(f.code, f.line) for f in check_paths([str(path)]).findings if f.code == "AMP502"]
    assert found == ([("AMP502", 13)] if reported else [])
