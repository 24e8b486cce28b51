"""First windows of an epoch that are shorter than the others, by the number at which the count begins."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

LOOP = """\
import torch
from torch import nn

model = nn.Linear(4, 1).cuda()
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cuda")


def train(loader, k, done=0):
    for step, x in enumerate(loader{start}):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).mean() / k
        scaler.scale(loss).backward()
        if {window}:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""


def found(start: str, window: str) -> list[tuple[str, str, int]]:
    findings = check_source(LOOP.format(start=start, window=window))
    return [(each.code, each.label, each.line) for each in findings]


@pytest.mark.parametrize(
    ("start", "window"),
    [
        (", start=1", "(step + 1) % k == 0"),
        (", 1", "(step + 1) % k == 0"),
        (", start=done + 1", "(step + 1) % k == 0"),
        (", 1 + done", "not (step + 1) % k"),
        (", start=2", "step % k == 0"),
    ],
)
def test_a_count_that_begins_one_too_high_shortens_the_first_window(start: str, window: str) -> None:
    assert found(start, window) == [("AMP304", "window:one-short", 14)]


@pytest.mark.parametrize(
    ("start", "window"),
    [
        ("", "(step + 1) % k == 0"),
        (", start=1", "step % k == 0"),
        (", start=done + 1", "step % k == 0"),
        (", start=done", "(step + 1) % k == 0"),
        (", start=first(loader)", "(step + 1) % k == 0"),
    ],
)
def test_right_counts_are_silent(start: str, window: str) -> None:
    assert found(start, window) == []
