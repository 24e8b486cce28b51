"""Scalers that nested branches choose: each branch repeats the questions of the branches around it."""

from __future__ import annotations

import pytest
from marks import marks, places

from pytest_amp_check import check_source

BY_SHARDING = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.nn.parallel import DistributedDataParallel as DDP

def choose(precision, model):
    if precision == torch.float16:
        if isinstance(model, FSDP):
            return ShardedGradScaler()
        return torch.amp.GradScaler("cuda")
    return None

def train(model, loader, optimizer, precision, ways):
    if ways:
        if isinstance(ways, str):
            model = DDP(model)
        elif isinstance(ways, dict):
            model = FSDP(model)
    scaler = None
    if precision:
        scaler = choose(precision, model)
"""
BY_NAME = """\
import torch

def choose(precision, kind):
    if precision == torch.float16:
        if kind == "large":
            return torch.amp.GradScaler("cuda", init_scale=2.0**20)
        elif kind == "small":
            return torch.amp.GradScaler("cuda", init_scale=2.0**8)
        elif kind == "fixed":
            return torch.amp.GradScaler("cuda", init_scale=2.0**10)
        return torch.amp.GradScaler("cuda")
    return None

def train(model, loader, optimizer, options):
    scaler = None
    precision = options.precision
    if options.mixed:
        scaler = choose(precision, options.kind)
"""
LOOP = """\
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=precision):
            loss = torch.nn.functional.mse_loss(model(x), y)
        if {asked}:
            loss = scaler.scale(loss)
        loss.backward()
"""
RIGHT = """\
        if {asked}:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
"""
ENDS = {
    "steps where it scales": RIGHT,
    "steps past it": "        optimizer.step()  # AMP204\n",
    "clips where it scales": """\
        if {asked}:
            torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)  # AMP201
            scaler.step(optimizer)
            scaler.update()
        else:
            torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
            optimizer.step()
""",
}


@pytest.mark.parametrize("asked", ["scaler", "scaler is not None"])
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("choice", [BY_SHARDING, BY_NAME], ids=("by sharding", "by name"))
def test_the_chosen_scaler_is_one_scaler(choice: str, end: str, asked: str) -> None:
    program = (choice + LOOP + ENDS[end]).replace("{asked}", asked)
    assert places(check_source(program)) == marks(program)
