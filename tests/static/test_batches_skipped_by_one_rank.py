"""Batches that only one rank skips, while the others wait in backward."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

PROGRAM = """\
import math
import os
import sys
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel


def all_ranks_agree(flag):
    return dist.get_world_size() > 0


def train(net, loader, skip):
    model = WRAPPED
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            out = model(x)
            loss = nn.functional.mse_loss(out, y)
BODY
        scaler.step(optimizer)
        scaler.update()
"""
BACKWARD = "scaler.scale(loss).backward()"
DDP = "DistributedDataParallel(net)"


def found(body: str, wrapped: str = DDP) -> list[int]:
    """Return the lines of the body, from 1, with the finding."""
    lines = "\n".join("        " + line for line in body.split("\n"))
    source = PROGRAM.replace("WRAPPED", wrapped).replace("BODY", lines)
    before = source[: source.index(lines)].count("\n")
    every = check_source(source)
    assert "AMP903" not in {finding.code for finding in every}
    return [finding.line - before for finding in every if finding.code == "AMP607"]


@pytest.mark.parametrize(
    "skip",
    [
        "if torch.isnan(loss):\n    continue",
        "if torch.isnan(loss).any():\n    print('nan')\n    continue",
        "if torch.any(torch.isnan(out)):\n    continue",
        "if not torch.isfinite(loss):\n    optimizer.zero_grad()\n    continue",
        "if loss.isnan() or loss.isinf():\n    continue",
        "if loss.isnan().sum() > 0:\n    continue",
        "if not math.isfinite(loss.item()):\n    continue",
        "if np.isnan(loss.detach().cpu().item()):\n    continue",
        "if skip or torch.isnan(loss):\n    continue",
        "if torch.isnan(loss) and skip:\n    continue",
        "if torch.isnan(loss):\n    return",
        "if torch.isnan(loss):\n    break",
        "if torch.isfinite(loss):\n    pass\nelse:\n    continue",
        # One finding for a backward.
        "if torch.isnan(loss):\n    continue\nif torch.isinf(loss):\n    continue",
        # Nothing of the context managers named `join`.
        "if torch.isnan(loss):\n    print(os.path.join('a', 'b'))\n    continue",
    ],
)
def test_one_rank_goes_on_without_backward(skip: str) -> None:
    assert found(f"{skip}\n{BACKWARD}") == [1]


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (f"value = loss.item()\nif not math.isfinite(value):\n    continue\n{BACKWARD}", 2),
        (f"bad = torch.isnan(loss)\nif bad:\n    continue\n{BACKWARD}", 1),
        (f"bad: torch.Tensor = torch.isnan(loss)\nif bad:\n    continue\n{BACKWARD}", 1),
        (f"with torch.no_grad():\n    if torch.isnan(loss):\n        continue\n{BACKWARD}", 2),
        (f"if torch.isfinite(loss):\n    {BACKWARD}", 1),
        (f"if skip and torch.isfinite(loss):\n    {BACKWARD}", 1),
        (f"if not torch.isnan(loss) and not torch.isinf(loss):\n    {BACKWARD}\nelse:\n    continue", 1),
        (f"loss = loss / 2\nif torch.isnan(loss):\n    continue\n{BACKWARD}", 2),
        (f"loss = loss_of(out, y)\nif torch.isnan(loss):\n    continue\n{BACKWARD}", 2),
        (f"if skip:\n    print(1)\nelse:\n    if torch.isnan(loss):\n        continue\n    {BACKWARD}", 4),
        (f"try:\n    if torch.isnan(loss):\n        continue\n    {BACKWARD}\nfinally:\n    print(1)", 2),
        (f"try:\n    print(1)\nfinally:\n    if torch.isnan(loss):\n        return\n    {BACKWARD}", 4),
        (f"with a:\n    with b:\n        if torch.isnan(loss):\n            continue\n    print(1)\n{BACKWARD}", 3),
    ],
)
def test_the_finding_is_at_the_condition(body: str, line: int) -> None:
    assert found(body) == [line]


@pytest.mark.parametrize(
    "body",
    [
        f"bad = torch.isnan(loss).float()\ndist.all_reduce(bad)\nif bad > 0:\n    continue\n{BACKWARD}",
        f"every = dist.reduce_loss(loss)\nif torch.isnan(every):\n    continue\n{BACKWARD}",
        f"if all_ranks_agree(torch.isnan(loss)):\n    continue\n{BACKWARD}",
        f"if torch.isnan(loss):\n    raise ValueError(1)\n{BACKWARD}",
        f"if torch.isnan(loss):\n    sys.exit(1)\n{BACKWARD}",
        f"if torch.isnan(loss):\n    print('nan')\n{BACKWARD}",
        f"if torch.isnan(loss):\n    loss = loss * 0\n{BACKWARD}",
        f"if torch.isfinite(loss):\n    {BACKWARD}\nelse:\n    (out * 0).sum().backward()",
        f"{BACKWARD}\nif torch.isnan(loss):\n    continue",
        f"if torch.isnan(x).any():\n    x = x.nan_to_num()\n{BACKWARD}",
        f"if torch.isnan(loss) and not args.distributed:\n    continue\n{BACKWARD}",
        f"if world_size == 1 and torch.isnan(loss):\n    continue\n{BACKWARD}",
        f"for part in out:\n    if torch.isnan(part).any():\n        continue\n    print(part)\n{BACKWARD}",
        f"if skip:\n    if torch.isnan(loss):\n        continue\n    print(1)\nelse:\n    {BACKWARD}",
        f"with model.join():\n    if torch.isnan(loss):\n        continue\n    {BACKWARD}",
        # A loss that is a number has at most one NaN.
        f"if torch.isnan(loss).sum() > 1:\n    continue\n{BACKWARD}",
        # Calls that may tell the other ranks, also in the block and on its last line.
        f"if torch.isnan(loss):\n    broadcast_skip()\n    continue\n{BACKWARD}",
        f"if torch.isnan(reduce_loss(loss)): continue\n{BACKWARD}",
        # Values that may be the same on all ranks.
        f"if torch.isnan(torch.load('state.pt')).any():\n    continue\n{BACKWARD}",
        f"anchor = teacher(torch.ones(1))\nif torch.isnan(anchor).any():\n    continue\n{BACKWARD}",
        # The function that returns is another one.
        f"def ask():\n    if torch.isnan(loss):\n        return\n    print(1)\nask()\n{BACKWARD}",
        f"bad = worse\nworse = bad\nif bad:\n    continue\n{BACKWARD}",
        # The end of another loop, or of another block.
        f"for part in out:\n    if torch.isnan(loss):\n        break\n{BACKWARD}",
        f"if skip:\n    if torch.isnan(loss):\n        pass\n{BACKWARD}",
    ],
)
def test_what_keeps_the_ranks_together_is_silent(body: str) -> None:
    assert found(body) == []


def test_a_helper_that_is_given_the_loss() -> None:
    helper = """\
def step(loss, optimizer, scaler, skip):
    bad = torch.isnan(loss).any()
    if bad and skip:
        return
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


def main(net, loader, skip):
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        step(loss, optimizer, scaler, skip)
"""
    head = PROGRAM[: PROGRAM.index("def all_ranks")]
    inner = "    def ask():\n        if bad:\n            return\n        print(1)\n    ask()\n"
    for text, expected in (
        (helper, [2]),
        (helper.replace("DistributedDataParallel(net)", "net"), []),
        (helper.replace("    if bad and skip:\n        return\n", inner), []),
        (helper.replace("        return\n", "        print(bad)\n"), []),
    ):
        findings = [f.line - head.count("\n") for f in check_source(head + text) if f.code == "AMP607"]
        assert findings == expected


def test_it_names_the_check_and_the_module() -> None:
    body = f"        if loss.isnan():\n            return\n        {BACKWARD}"
    (finding,) = check_source(PROGRAM.replace("WRAPPED", DDP).replace("BODY", body))
    assert finding.message == (
        "`loss.isnan` checks only this rank's batch, so after a skipped backward other ranks wait for gradients of "
        "`model`: run every backward (the GradScaler skips bad steps), or `all_reduce` the check"
    )


@pytest.mark.parametrize(
    ("wrapped", "expected"),
    [
        ("net", []),
        ("nn.DataParallel(net)", []),
        ("torch.compile(net)", []),
        ("FullyShardedDataParallel(net)", [1]),
        ("fully_shard(net)", [1]),
        ("DistributedDataParallel(net, device_ids=[0])", [1]),
    ],
)
def test_it_takes_a_module_whose_backward_waits(wrapped: str, expected: list[int]) -> None:
    assert found(f"if torch.isnan(loss):\n    continue\n{BACKWARD}", wrapped) == expected
