"""The last accumulation window of a loop with a known number of iterations: micro-batches without a step (AMP304)."""

from __future__ import annotations

from textwrap import indent

import pytest
from marks import marks, places, shown

from pytest_amp_check.static.engine import check_source

HEAD = """\
import torch
from torch.amp import GradScaler, autocast

K = 4


def train(model, optimizer, criterion, loader, draw, args):
    scaler = GradScaler("cuda")
"""
MICRO_BATCH = """\
with autocast("cuda"):
    loss = criterion(model(x), y) / 4
scaler.scale(loss).backward()
"""
STEP = "scaler.step(optimizer)\nscaler.update()\noptimizer.zero_grad()\n"

#: Loop, condition of the window, and code after the loop.
BAD = {
    "a range": ("for i in range(10):\n    x, y = draw()\n", "(i + 1) % 4 == 0", ""),
    "a list that is made of one": (
        "batches = [draw() for _ in range(10)]\nfor i, (x, y) in enumerate(batches):\n",
        "(i + 1) % K == 0",
        "",
    ),
    "a test the other way round": (
        "total = 11\nfor i in range(total):\n    x, y = draw()\n",
        "0 == (i + 1) % 4",
        "",
    ),
    "an enumeration that starts at one": (
        "batches = [draw() for _ in range(10)]\nfor number, (x, y) in enumerate(batches, 1):\n",
        "not number % K",
        "",
    ),
    "the remainder that the last one has": ("for i in range(6):\n    x, y = draw()\n", "i % 4 == 3", ""),
    "epochs": (
        "for epoch in range(3):\n    for i in range(10):\n        x, y = draw()\n",
        "(i + 1) % 4 == 0",
        "",
    ),
    "a number of its own": ("count = 9\nfor i in range(count):\n    x, y = draw()\n", "(i + 1) % 4 == 0", ""),
}
GOOD = {
    "windows that fit": ("for i in range(12):\n    x, y = draw()\n", "(i + 1) % 4 == 0", ""),
    "a number that nobody knows": ("for i in range(args.total):\n    x, y = draw()\n", "(i + 1) % 4 == 0", ""),
    "a window that nobody knows": ("for i in range(10):\n    x, y = draw()\n", "(i + 1) % args.k == 0", ""),
    "data that nobody counted": ("for i, (x, y) in enumerate(loader):\n", "(i + 1) % 4 == 0", ""),
    "a loop that is left": (
        "for i in range(10):\n    x, y = draw()\n    if x is None:\n        break\n",
        "(i + 1) % 4 == 0",
        "",
    ),
    "the last one ends a window, too": (
        "for i in range(10):\n    x, y = draw()\n",
        "(i + 1) % 4 == 0 or i == 9",
        "",
    ),
    "a flag says which is the last": (
        "for i in range(10):\n    x, y, last = draw()\n",
        "(i + 1) % 4 == 0 or last",
        "",
    ),
    "a step behind the loop": ("for i in range(10):\n    x, y = draw()\n", "(i + 1) % 4 == 0", STEP),
    "a step behind the loop for what is left": (
        "for i in range(10):\n    x, y = draw()\n",
        "(i + 1) % 4 == 0",
        "if 10 % K:\n" + indent(STEP, "    "),
    ),
    "somebody else steps for what is left": (
        "for i in range(10):\n    x, y = draw()\n",
        "(i + 1) % 4 == 0",
        "args.step_for_the_rest(scaler, optimizer)\n",
    ),
    "a list that others fill, too": (
        (
            "batches = [draw() for _ in range(10)]\nbatches.append(draw())\nbatches.append(draw())\n"
            "for i, (x, y) in enumerate(batches):\n"
        ),
        "(i + 1) % 4 == 0",
        "",
    ),
    "some of a list": (
        "batches = [b for b in range(10) if args.takes(b)]\nfor i, (x, y) in enumerate(batches):\n",
        "(i + 1) % 4 == 0",
        "",
    ),
}


def program(loop: str, test: str, after: str, mark: str = "") -> str:
    lines = loop.rstrip("\n").split("\n")
    deepest = max(len(line) - len(line.lstrip()) for line in lines if line.rstrip().endswith(":") or "draw()" in line)
    inside = " " * (deepest if not lines[-1].rstrip().endswith(":") else deepest + 4)
    if "break" in lines[-1]:
        inside = "    "
    body = MICRO_BATCH + f"if {test}:{mark}\n" + indent(STEP, "    ")
    return HEAD + indent(loop + indent(body, inside) + after, "    ")


@pytest.mark.parametrize("name", BAD)
def test_micro_batches_that_are_left(name: str) -> None:
    source = program(*BAD[name], mark="  # AMP304")
    found = check_source(source, "train.py")
    assert places(found) == marks(source), f"{shown(found)}\n{source}"


@pytest.mark.parametrize("name", GOOD)
def test_micro_batches_that_are_stepped_or_not_known(name: str) -> None:
    source = program(*GOOD[name])
    found = check_source(source, "train.py")
    assert not found, f"{shown(found)}\n{source}"


@pytest.mark.parametrize(
    ("micro_batches", "said"),
    [
        (10, "`(i + 1) % 4 == 0` leaves the last 2 of 10 micro-batches without a step"),
        (9, "`(i + 1) % 4 == 0` leaves the last of 9 micro-batches without a step"),
        (7, "`(i + 1) % 4 == 0` leaves the last 3 of 7 micro-batches without a step"),
    ],
)
def test_the_message_counts_the_micro_batches_that_are_left(micro_batches: int, said: str) -> None:
    (found,) = check_source(program(f"for i in range({micro_batches}):\n    x, y = draw()\n", "(i + 1) % 4 == 0", ""))
    assert found.message.startswith(said)
    assert found.severity == "warning"
