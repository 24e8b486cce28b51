"""Implications between pairs of conditions, compared with an evaluation for all values."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from pytest_amp_check import check_source

PROGRAM = """\
import torch

def train(model, loader, optimizer, n, s, p, q):
    scaler = torch.amp.GradScaler("cuda")
    for i, x in enumerate(loader):
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        if {unscales}:
            scaler.unscale_(optimizer)
        if {clips}:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
"""
#: Conditions about the same variables, and all values that are relevant to them.
FAMILIES: dict[str, tuple[list[str], list[dict[str, Any]]]] = {
    "a number": (
        ["n == 1", "n != 1", "n > 1", "n >= 1", "1 < n", "n == 2", "n < 2", "not n <= 2", "1 < n <= 2"],
        [{"n": n} for n in (-1, 0, 0.5, 1, 1.5, 2, 2.5, 3)],
    ),
    "two flags": (
        ["p", "not p", "p and q", "p or q", "not (p and q)", "not (p or q)", "p and not q", "q or not p", "q is True"],
        [{"p": p, "q": q} for p, q in product((True, False), repeat=2)],
    ),
    "something or nothing": (
        ["p is None", "p is not None", "p", "not p", "p is not None and p", "p == None", "p is None or q"],
        [{"p": p, "q": q} for p, q in product((None, 0, 1), (True, False))],
    ),
    "a word": (
        ["s == 'a'", "'a' == s", "s != 'a'", "s == 'b'", "s == 'a' or s == 'b'", "s != 'a' and s != 'b'"],
        [{"s": s} for s in ("a", "b", "c")],
    ),
    "the iteration of a loop": (
        ["i % 4 == 0", "i % 4 == 1", "i % 4 != 0", "(i + 3) % 4 == 0", "(i - 1) % 4 == 0", "(1 + i) % 4 == 1", "i % 4"],
        [{"i": i} for i in range(8)],
    ),
    "a flag that is one of two": (
        ["(p if q else p)", "p", "q", "p and q", "not p"],
        [{"p": p, "q": q} for p, q in product((True, False), repeat=2)],
    ),
}


@pytest.mark.parametrize(
    ("family", "unscales"), [(name, one) for name, (questions, _) in FAMILIES.items() for one in questions]
)
def test_gradients_are_clipped_unscaled_where_the_one_implies_the_other(family: str, unscales: str) -> None:
    questions, values = FAMILIES[family]
    for clips in questions:
        # The evaluated conditions are constants of this file.
        implied = all(eval(unscales, {}, each) for each in values if eval(clips, {}, each))  # noqa: S307
        found = check_source(PROGRAM.format(unscales=unscales, clips=clips))
        reported = [(finding.code, finding.line) for finding in found]
        assert reported == ([] if implied else [("AMP201", 13)]), clips
