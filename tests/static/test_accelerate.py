"""A training loop with accelerate in float16, statement by statement, with and without accumulation."""

from __future__ import annotations

from textwrap import indent

import pytest

from pytest_amp_check.static.engine import check_source

PROGRAM = """\
import torch
import torch.nn.functional as F
from accelerate import Accelerator

def main(model, loader, args):
    accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps={steps})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for i, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y)
"""
BACKWARD = "accelerator.backward(loss)\n"
STEP = "optimizer.step()\n"
CLEAR = "optimizer.zero_grad()\n"
ITERATION = BACKWARD + STEP + CLEAR
OWN_CLIP = "accelerator.clip_grad_norm_(model.parameters(), 1.0)\n"
TORCH_CLIP = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"


def block(head: str, body: str) -> str:
    return f"{head}:\n{indent(body, '    ')}"


def accumulated(body: str) -> str:
    return block("with accelerator.accumulate(model)", body)


def at_window_end(body: str) -> str:
    return block("if accelerator.sync_gradients", body)


def found(body: str, steps: str) -> list[tuple[str, int]]:
    """Return label and line of each finding. Lines count from 1 in the body."""
    program = PROGRAM.format(steps=steps)
    findings = check_source(program + indent(body, " " * 8))
    # Most of these loops begin no window, which test_accelerate_windows.py asserts.
    reported = [finding for finding in findings if finding.label != "window:unused"]
    return [(finding.label, finding.line - program.count("\n")) for finding in reported]


@pytest.mark.parametrize("steps", ["1", "4", "args.steps"])
@pytest.mark.parametrize(
    "body",
    [
        ITERATION,
        accumulated(ITERATION),
        block("if args.accumulates", accumulated(ITERATION)) + block("else", ITERATION),
        accumulated(BACKWARD + at_window_end(OWN_CLIP) + STEP + CLEAR),
        accumulated(BACKWARD + at_window_end("accelerator.unscale_gradients()\n" + TORCH_CLIP) + STEP + CLEAR),
        BACKWARD + OWN_CLIP + STEP + CLEAR,
        BACKWARD + "accelerator.unscale_gradients(optimizer)\n" + TORCH_CLIP + STEP + CLEAR,
        BACKWARD + "accelerator.scaler.unscale_(optimizer)\n" + TORCH_CLIP + STEP + CLEAR,
        "accelerator.backward(loss if args.one else F.l1_loss(model(x), y))\n" + STEP + CLEAR,
        BACKWARD + "accelerator.backward(F.l1_loss(model(x), y))\n" + STEP + CLEAR,
        CLEAR + BACKWARD + STEP,
    ],
)
def test_right(body: str, steps: str) -> None:
    assert found(body, steps) == []


@pytest.mark.parametrize("steps", ["1", "4", "args.steps"])
@pytest.mark.parametrize(
    ("body", "label", "line"),
    [
        (BACKWARD + STEP, "backward@stale", 1),
        (accumulated(BACKWARD + STEP), "backward@stale", 2),
        (block("if args.accumulates", accumulated(ITERATION)) + block("else", BACKWARD + STEP), "backward@stale", 7),
        (BACKWARD + TORCH_CLIP + STEP + CLEAR, "clip@scaled-framework", 2),
        (accumulated(BACKWARD + at_window_end(TORCH_CLIP) + STEP + CLEAR), "clip@scaled-framework", 4),
        ("loss.backward()\n" + STEP + CLEAR, "step@raw-framework", 1),
    ],
)
def test_wrong(body: str, label: str, line: int, steps: str) -> None:
    assert found(body, steps) == [(label, line)]


@pytest.mark.parametrize(
    ("body", "label", "line"),
    [
        (accumulated(BACKWARD + OWN_CLIP + STEP + CLEAR), "unscale@window-framework", 3),
        (accumulated(BACKWARD + "accelerator.unscale_gradients()\n" + STEP + CLEAR), "unscale@window-framework", 3),
        (f"loss = loss / accelerator.gradient_accumulation_steps\n{ITERATION}", "loss:divided-twice", 1),
        (accumulated(f"loss = loss / accelerator.gradient_accumulation_steps\n{ITERATION}"), "loss:divided-twice", 2),
    ],
)
def test_wrong_in_a_window(body: str, label: str, line: int) -> None:
    assert found(body, "1") == []
    assert found(body, "4") == found(body, "args.steps") == [(label, line)]


def test_a_window_of_its_own() -> None:
    body = BACKWARD + block("if (i + 1) % 4 == 0", STEP + CLEAR)
    assert found(body, "1") == [("step@undivided", 1)]
    assert found(body, "4") == []
    divided = body.replace("(loss)", "(loss / 4)")
    assert found(divided, "1") == []
    assert found(divided, "4") == [("loss:divided-twice", 1)]
