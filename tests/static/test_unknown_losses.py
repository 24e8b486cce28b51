"""Losses of unanalyzed code in an accumulation window: what may divide them, and what does not."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

PROGRAM = """\
import torch

def train(net, loader, optimizer, k):
    scaler = torch.amp.GradScaler("cuda")
    for i, batch in enumerate(loader):
        with torch.autocast("cuda"):
            loss = net(batch)
        {statement}
        scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""


def labels(statement: str) -> list[str]:
    return [finding.label for finding in check_source(PROGRAM.format(statement=statement))]


@pytest.mark.parametrize(
    "statement",
    [
        "loss = loss / k",
        "loss /= k",
        "loss = loss.div(k)",
        "loss.div_(k)",
        "loss.mul_(1 / k)",
        "loss = loss.mul(1 / k)",
        "loss = torch.div(loss, k)",
        "loss = (loss / k).mean()",
        "loss = (loss / k).sum()",
        "loss = (loss / k).float()",
        'loss = (loss / k).to("cuda")',
        "loss = (loss / k).view(())",
        "loss = (loss / k).squeeze(0)",
        "loss = (loss / k).clamp(max=5)",
        "loss = (loss / k).other()",
        "loss = other(loss / k)",
        "loss = torch.mean(loss / k)",
        "loss = loss.mean() / k",
        "loss = loss.sum() / k",
        "loss = loss['total'] / k",
        "loss = loss.total / k",
        "loss = loss[0] / k",
        "loss = sum(loss) / k",
        "loss = sum(loss.values()) / k",
        # The names of these methods say that they divide.
        "loss = loss.normalize(k)",
        "loss = loss.average()",
        # A sum needs no division.
        "loss = loss.sum()",
    ],
)
def test_a_loss_that_may_be_divided(statement: str) -> None:
    assert labels(statement) == []


@pytest.mark.parametrize(
    ("statement", "label"),
    [
        ("loss = loss.mean()", "step@undivided"),
        ("loss = torch.mean(loss)", "step@undivided"),
        ("loss = loss.total", "step@undivided"),
        # A function of two values may compare them, as a criterion.
        ("loss = other(loss, batch)", "step@undivided"),
        ("pass", "step@undivided-vague"),
        ("loss = loss * 2", "step@undivided-vague"),
        ("loss = loss.mul(2)", "step@undivided-vague"),
        ("loss.mul_(2)", "step@undivided-vague"),
        ("loss = loss.float()", "step@undivided-vague"),
        ('loss = loss.to("cuda")', "step@undivided-vague"),
        ("loss = loss.clamp(max=5)", "step@undivided-vague"),
        ("loss = loss.other()", "step@undivided-vague"),
        ("loss = loss.other(k)", "step@undivided-vague"),
        ("loss = other(loss)", "step@undivided-vague"),
        ("loss = loss['total']", "step@undivided-vague"),
        ("loss = loss[0]", "step@undivided-vague"),
        ("loss = sum(loss)", "step@undivided-vague"),
        ("loss = sum(loss.values())", "step@undivided-vague"),
    ],
)
def test_a_loss_that_is_not_divided(statement: str, label: str) -> None:
    assert labels(statement) == [label]
