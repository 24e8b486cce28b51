"""A number of micro-batches that accelerate gets, in a loop that begins no window."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_amp_check.static.engine import check_paths, check_source

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
    ("steps", "loop", "reported"),
    [
        ("gradient_accumulation_steps=4", EACH, True),
        ("gradient_accumulation_steps=args.steps", EACH, True),
        # Where nothing counts micro-batches, no clip is within a window.
        (
            "gradient_accumulation_steps=args.steps",
            EACH.replace(
                "optimizer.step", "accelerator.clip_grad_norm_(model.parameters(), 1.0)\n        optimizer.step"
            ),
            True,
        ),
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
def test_a_number_of_micro_batches_that_no_window_uses(steps: str, loop: str, reported: bool) -> None:
    found = check_source(ACCELERATED.format(steps=steps, loop=loop))
    assert [f.label for f in found if f.code == "AMP304"] == (["window:unused"] if reported else [])


WINDOW = f"with accelerator.accumulate(model):\n            {EACH}".replace("\n        opt", "\n            opt")
CALLER = """\
import torch
from training import train


def main(loader, args, model):
    if args.probe:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(args.probe).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    train(loader, args, None)
"""


@pytest.mark.parametrize(("loop", "labels"), [(EACH, ["window:unused"]), (WINDOW, [])])
def test_windows_of_a_training_that_another_file_calls(loop: str, labels: list[str], tmp_path: Path) -> None:
    steps = "gradient_accumulation_steps=4"
    (tmp_path / "training.py").write_text(ACCELERATED.format(steps=steps, loop=loop))
    (tmp_path / "main.py").write_text(CALLER)
    found = check_paths([str(tmp_path)]).findings
    assert [f.label for f in found if f.code == "AMP304"] == labels


def test_windows_that_a_caller_begins_around_a_step_of_another_file(tmp_path: Path) -> None:
    step = f"def step(accelerator, model, optimizer, x):\n    {EACH}".replace("\n        ", "\n    ")
    (tmp_path / "steps.py").write_text(step)
    loop = "with accelerator.accumulate(model):\n            step(accelerator, model, optimizer, x)"
    training = ACCELERATED.format(steps="gradient_accumulation_steps=4", loop=loop)
    (tmp_path / "training.py").write_text(f"from steps import step\n{training}")
    (tmp_path / "main.py").write_text(CALLER)
    assert [f.label for f in check_paths([str(tmp_path)]).findings if f.code == "AMP304"] == []


@pytest.mark.parametrize("arguments", ["", "gradient_accumulation_steps=1", "gradient_accumulation_steps=k"])
@pytest.mark.parametrize(
    "steps", ["opt.step(); opt.zero_grad()", "opt.step(); other.step(); opt.zero_grad(); other.zero_grad()"]
)
def test_the_window_of_accumulate_fits_the_divisor(arguments: str, steps: str) -> None:
    source = f"""\
import torch
from accelerate import Accelerator

def train(model, loader, a, b, k):
    accelerator = Accelerator({arguments})
    opt, other = torch.optim.AdamW(a), torch.optim.AdamW(b)
    model, opt, other, loader = accelerator.prepare(model, opt, other, loader)
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss.mean()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                {steps}
"""
    assert "AMP301" not in [f.code for f in check_source(source)]
    by_hand = source.replace("accelerator.sync_gradients", "batch.number % k == k - 1").replace(
        "with accelerator.accumulate(model):", "if True:"
    )
    assert ("AMP301" in [f.code for f in check_source(by_hand)]) is (arguments != "gradient_accumulation_steps=k")


CLIPPED = """\
from accelerate import Accelerator
import torch


def train(args, model, loader):
    accelerator = Accelerator(mixed_precision="{precision}", gradient_accumulation_steps={steps})
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            {clip}
            optimizer.step()
            optimizer.zero_grad()
"""
CLIP = "accelerator.clip_grad_norm_(model.parameters(), 1.0)"


@pytest.mark.parametrize(
    ("precision", "steps", "clip", "is_found"),
    [
        ("bf16", "4", CLIP, True),
        ("no", "args.steps", CLIP, True),
        ("bf16", "4", f"if accelerator.sync_gradients:\n                {CLIP}", False),
        ("bf16", "1", CLIP, False),
        ("bf16", "4", "pass", False),
    ],
)
def test_a_clip_in_every_micro_batch_without_a_scaler(precision: str, steps: str, clip: str, is_found: bool) -> None:
    source = CLIPPED.format(precision=precision, steps=steps, clip=clip)
    findings = [(f.code, f.label, f.line) for f in check_source(source)]
    assert findings == ([("AMP304", "clip@window", 12)] if is_found else [])
