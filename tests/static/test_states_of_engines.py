"""Checkpoints written by hand beside an accelerator, whose scaler they leave out (AMP401)."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

PROGRAM = """\
import torch
from accelerate import Accelerator


def main(model, optimizer, loader, args):
    accelerator = Accelerator({given})
    if args.resume:
        state = torch.load(args.resume)
        {load}
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for step, batch in enumerate(loader):
        with accelerator.autocast():
            loss = model(batch)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if step % 1000 == 0:
            {save}
"""
LOAD = 'optimizer.load_state_dict(state["opt"])'
STATES = '"model": model.state_dict(), "opt": optimizer.state_dict()'
SAVE = f'torch.save({{{STATES}}}, "last.pt")'


def severities(given: str, load: str = LOAD, save: str = SAVE) -> list[str]:
    findings = check_source(PROGRAM.format(given=given, load=load, save=save), "train.py")
    return [finding.severity for finding in findings if finding.code == "AMP401"]


@pytest.mark.parametrize(
    ("given", "load", "expected"),
    [
        ('mixed_precision="fp16"', LOAD, ["warning"]),
        ("mixed_precision=args.precision", LOAD, ["warning"]),
        # The command line may switch mixed precision on.
        ("", LOAD, ["info"]),
        ('mixed_precision="bf16"', LOAD, []),
        ('mixed_precision="no"', LOAD, []),
    ],
)
def test_precisions(given: str, load: str, expected: list[str]) -> None:
    assert severities(given, load) == expected


@pytest.mark.parametrize(
    ("save", "expected"),
    [
        (f'accelerator.save({{{STATES}}}, "last.pt")', ["warning"]),
        (f'checkpoint = {{{STATES}}}; torch.save(checkpoint, "last.pt")', ["warning"]),
        (f'torch.save({{{STATES}, "scaler": accelerator.scaler.state_dict()}}, "last.pt")', []),
        (
            f'torch.save({{{STATES}, "scaler": accelerator.scaler.state_dict() if accelerator.scaler else None}}, "x")',
            [],
        ),
        ('torch.save({"model": model.state_dict()}, "last.pt")', []),
        ('accelerator.save_state("last")', []),
        # The file that is resumed holds everything.
        (f'{SAVE}; accelerator.save_state("last")', []),
    ],
)
def test_checkpoints(save: str, expected: list[str]) -> None:
    assert severities('mixed_precision="fp16"', save=save) == expected


def test_what_to_change_names_the_accelerator() -> None:
    source = PROGRAM.format(given='mixed_precision="fp16"', load=LOAD, save=SAVE)
    (finding,) = [each for each in check_source(source, "train.py") if each.code == "AMP401"]
    assert "`accelerator.save_state`" in finding.remedy
    assert "`accelerator.scaler`" in finding.message
