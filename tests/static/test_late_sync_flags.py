"""AMP305 for ``require_backward_grad_sync`` that is set after the forward."""

from __future__ import annotations

import pytest

from pytest_amp_check import check_source

PROGRAM = """\
import torch
from torch.nn.parallel import DistributedDataParallel

def train(model, other, loader, optimizer, steps, k, ddp):
    for step in range(steps):
        for m in range(k):
            x = next(loader)
{body}
        optimizer.step()
        optimizer.zero_grad()
"""
FORWARD = """
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model(x).mean() / k
"""
BACKWARD = """
            loss.backward()
"""
FLAG = """
            if ddp:
                model.require_backward_grad_sync = (m == k - 1)
"""
PLAIN_FLAG = """
            model.require_backward_grad_sync = m == k - 1
"""
ON = """
            model.require_backward_grad_sync = True
"""


def flags(body: str) -> list[str]:
    text = PROGRAM.format(body=body)
    rows = text.splitlines()
    return [rows[each.line - 1].strip() for each in check_source(text) if each.code == "AMP305"]


@pytest.mark.parametrize("flag", [FLAG, PLAIN_FLAG], ids=["under a condition", "alone"])
def test_a_flag_between_forward_and_backward_is_late(flag: str) -> None:
    assert flags(FORWARD + flag + BACKWARD) == [flag.strip().splitlines()[-1].strip()]


@pytest.mark.parametrize(
    "body",
    [
        FLAG + FORWARD + BACKWARD,
        FORWARD + BACKWARD + FLAG.replace("m ==", "m + 1 =="),
        FLAG + FORWARD + PLAIN_FLAG + BACKWARD,
        FORWARD + ON + BACKWARD,
        FORWARD + FLAG.replace("model.", "other.") + BACKWARD,
        FORWARD.replace("model(x)", "other(x)") + FLAG + BACKWARD,
    ],
    ids=["before", "for the next micro-batch", "twice", "always on", "of another model", "forward of another model"],
)
def test_other_flags_are_right(body: str) -> None:
    assert flags(body) == []
