"""A number of micro-batches that accelerate gets, in a loop that begins no window."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

ACCELERATED = """\
import torch
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin
from torch import nn


def train(loader, args, plugin):
    accelerator = Accelerator({steps})
    model = nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer = accelerator.prepare(model, optimizer)
    for i, (x, y) in enumerate(loader):
        {loop}
"""
EACH = "accelerator.backward(model(x).mean())\n        optimizer.step()\n        optimizer.zero_grad()"


@pytest.mark.parametrize(
    ("steps", "loop", "told"),
    [
        ("gradient_accumulation_steps=4", EACH, True),
        ("gradient_accumulation_steps=args.steps", EACH, True),
        ("gradient_accumulation_steps=1", EACH, False),
        ("", EACH, False),
        ("gradient_accumulation_plugin=plugin", EACH, False),
        # The loop counts by itself.
        (
            "gradient_accumulation_steps=4",
            "accelerator.backward(model(x).mean())\n        if (i + 1) % 4 == 0:\n            optimizer.step()",
            False,
        ),
        (
            "gradient_accumulation_steps=4",
            "for part in x.chunk(4):\n            accelerator.backward(model(part).mean())\n        optimizer.step()",
            False,
        ),
        (
            "gradient_accumulation_steps=4",
            f"with accelerator.accumulate(model):\n            {EACH}".replace("\n        opt", "\n            opt"),
            False,
        ),
        ("gradient_accumulation_steps=4", f"{EACH}\n        print(accelerator.sync_gradients)", False),
    ],
)
def test_a_number_of_micro_batches_that_no_window_uses(steps: str, loop: str, told: bool) -> None:
    found = check_source(ACCELERATED.format(steps=steps, loop=loop))
    assert [f.label for f in found if f.code == "AMP304"] == (["window:unused"] if told else [])
