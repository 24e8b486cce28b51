"""Gradient penalties with their scale, and loops over the micro-batches of a batch, form by form."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

PENALTY = """\
import torch
import torch.nn.functional as F
from torch import nn

model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
{before}
for x, y in loader:
    {first}
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.mse_loss(model(x), y)
    grads = torch.autograd.grad({outputs}, model.parameters(), create_graph=True)
    {unscale}
    with torch.autocast("cuda", dtype=torch.float16):
        penalty = sum(grad.pow(2).sum() for grad in grads).sqrt()
        loss = loss + penalty
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
OUTDATED, SCALED = [("penalty@outdated", 15)], [("penalty@scaled", 14)]


@pytest.mark.parametrize(
    ("before", "first", "outputs", "unscale", "expected"),
    [
        ("", "pass", "scaler.scale(loss)", "grads = [grad / scaler.get_scale() for grad in grads]", []),
        ("", "scale = scaler.get_scale()", "scaler.scale(loss)", "grads = [grad / scale for grad in grads]", []),
        ("", "scale = 1 / scaler.get_scale()", "scaler.scale(loss)", "grads = [grad * scale for grad in grads]", []),
        ("", "pass", "loss", "pass", []),
        # The scale changes in the loop.
        ("scale = scaler.get_scale()", "pass", "scaler.scale(loss)", "grads = [g / scale for g in grads]", OUTDATED),
        (
            "scale = 1 / scaler.get_scale()",
            "pass",
            "scaler.scale(loss)",
            "grads = [g * scale for g in grads]",
            OUTDATED,
        ),
        ("scale = scaler.get_scale()", "pass", "loss", "grads = [g for g in grads]", []),
        ("", "pass", "scaler.scale(loss)", "pass", SCALED),
        ("", "pass", "scaler.scale(loss)", "grads = [grad * 2 for grad in grads]", SCALED),
    ],
)
def test_a_penalty(before: str, first: str, outputs: str, unscale: str, expected: list[tuple[str, int]]) -> None:
    text = PENALTY.format(before=before, first=first, outputs=outputs, unscale=unscale)
    assert [(finding.label, finding.line) for finding in check_source(text)] == expected


def test_an_old_scale_is_the_scale_if_nothing_updates_it() -> None:
    text = PENALTY.format(
        before="scale = scaler.get_scale()",
        first="pass",
        outputs="scaler.scale(loss)",
        unscale="grads = [grad / scale for grad in grads]",
    )
    without = text.replace("    scaler.step(optimizer)\n    scaler.update()\n", "    scaler.step(optimizer)\n")
    assert "penalty@outdated" not in [finding.label for finding in check_source(without)]


BATCHES = """\
import itertools
import torch
import torch.nn.functional as F
from torch import nn

model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch, target in loader:
    optimizer.zero_grad()
    for {loop}:
        {statement}
        loss.backward()
    optimizer.step()
"""
LOSS = "loss = F.mse_loss(model(x), y)"


@pytest.mark.parametrize(
    ("loop", "is_part"),
    [
        ("x, y in zip(batch.chunk(4), target.chunk(4))", True),
        ("x, y in zip(batch.split(4), target.split(4))", True),
        ("x, y in zip(torch.chunk(batch, 4), torch.chunk(target, 4))", True),
        ("x, y in zip(batch.split(4), others)", True),
        ("x, y in zip(*[batch.chunk(4), target.chunk(4)])", True),
        ("x, y in zip(list(batch.chunk(4)), list(target.chunk(4)))", True),
        ("x, y in list(zip(batch.chunk(4), target.chunk(4)))", True),
        ("x, y in reversed(list(zip(batch.chunk(4), target.chunk(4))))", True),
        ("x, y in [(a, b) for a, b in zip(batch.chunk(4), target.chunk(4))]", True),
        ("i, (x, y) in enumerate(zip(batch.split(4), target.split(4)))", True),
        ("i, (x, y) in enumerate(zip(batch.split(4), target.split(4)), start=1)", True),
        ("x, y in itertools.islice(loader, 4)", True),
        ("i in range(0, len(batch), 4)", True),
        ("i in range(0, len(batch), size)", True),
        # Perhaps samples, or the tasks of a batch.
        ("x, y in zip(batch, target)", False),
        ("x, y in parts(batch, target)", False),
        ("i in range(len(batch))", False),
        ("i in range(0, len(batch))", False),
    ],
)
def test_micro_batches(loop: str, is_part: bool) -> None:
    def labels(loss: str) -> list[str]:
        statement = f"x, y = batch[i:i + 4], target[i:i + 4]\n        {loss}" if loop.startswith("i in") else loss
        return [finding.label for finding in check_source(BATCHES.format(loop=loop, statement=statement))]

    assert labels(LOSS) == (["step@undivided"] if is_part else [])
    assert labels(f"{LOSS} / 4") == []
    assert labels(f"{LOSS} * len(x) / len(batch)") == []
