"""AMP304: a step in all micro-batches of a window but the one that ends it."""

from __future__ import annotations

import pytest
from marks import marks, places, shown

from pytest_amp_check.static.engine import check_source

HEAD = """\
import torch

def train(model, optimizer, loader, loss_fn, k):
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
"""
BACKWARD = """\
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(x), y) / k
        scaler.scale(loss).backward()
"""
STEP = """\
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""
WRONG = {
    "a condition": HEAD + BACKWARD + "        if (i + 1) % k != 0:  # AMP304\n" + STEP,
    "a name of the other meaning": (
        HEAD
        + "        accumulating = (i + 1) % k == 0  # AMP304\n"
        + BACKWARD
        + "        if not accumulating:\n"
        + STEP
    ),
    "a known number": HEAD + BACKWARD.replace("/ k", "/ 4") + "        if i % 4 != 3:  # AMP304\n" + STEP,
    "Fabric": """\
import lightning as L

def train(model, optimizer, get_batch, loss_fn, steps, k):
    fabric = L.Fabric(accelerator="cuda", precision="bf16-mixed")
    model, optimizer = fabric.setup(model, optimizer)
    for i in range(steps):
        is_accumulating = (i + 1) % k == 0  # AMP304
        x, y = get_batch()
        with fabric.no_backward_sync(model, enabled=is_accumulating):
            fabric.backward(loss_fn(model(x), y) / k)
        if not is_accumulating:
            optimizer.step()
            optimizer.zero_grad()
""",
}
RIGHT = {
    "where it is true": HEAD + BACKWARD + "        if (i + 1) % k == 0:\n" + STEP,
    "a name with its own meaning": (
        HEAD + "        accumulating = (i + 1) % k != 0\n" + BACKWARD + "        if not accumulating:\n" + STEP
    ),
    "the rest is left out": HEAD
    + BACKWARD
    + "        if (i + 1) % k != 0:\n            continue\n"
    + STEP.replace("    " * 3, "    " * 2),
    "a step in either case": (HEAD + BACKWARD + "        if (i + 1) % k != 0:\n" + STEP + "        else:\n" + STEP),
    "windows of two": HEAD + BACKWARD.replace("/ k", "/ 2") + "        if i % 2 != 0:\n" + STEP,
    "two optimizers in turn": """\
def train(net, critic, optimizer, other, loader, k):
    for i, x in enumerate(loader):
        if i % k == 0:
            other.zero_grad()
            critic(x).mean().backward()
            other.step()
        else:
            optimizer.zero_grad()
            net(x).mean().backward()
            optimizer.step()
""",
}


@pytest.mark.parametrize("program", [*WRONG.values(), *RIGHT.values()], ids=[*WRONG, *RIGHT])
def test_steps_where_the_window_is_open(program: str) -> None:
    findings = check_source(program, "train.py")
    assert places(findings) == marks(program), shown(findings)
    assert not any(finding.certain for finding in findings)


def test_the_message_names_the_condition() -> None:
    (finding,) = check_source(WRONG["a condition"], "train.py")
    assert finding.message == (
        "The optimizer steps where `(i + 1) % k == 0` is false, in all micro-batches of a window but one: step where "
        "it is true"
    )
