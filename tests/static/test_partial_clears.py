"""Clearing of some parameters' gradients: these parameters are frozen for a step, the others keep their gradients."""

from __future__ import annotations

from textwrap import indent

import pytest
from marks import marks, places, shown

from pytest_amp_check.static.engine import check_source

HEAD = """\
import torch


def hold(epoch, model, first):
    if epoch >= first:
        return
    for name, p in model.named_parameters():
        if "last_layer" in name:
            p.grad = None


def clear(model):
    for name, p in model.named_parameters():
        if p.grad is not None:
            p.grad = None


def train(model, loader, criterion, epoch, args):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
"""
FED = """\
with torch.autocast("cuda"):
    loss = criterion(model(x), y)
scaler.scale(loss).backward(){mark}
"""
STEP = "scaler.step(optimizer)\nscaler.update()\n"
#: Code before the forward, and code between backward and step; True if gradients are left to the next backward.
PROGRAMS = {
    "those of a last layer, by name": (
        "",
        'for name, p in model.named_parameters():\n    if "last_layer" in name:\n        p.grad = None\n',
        True,
    ),
    "those of a last layer, by a function": ("", "hold(epoch, model, 1)\n", True),
    "those of a part of the model": ("", "for p in model.head.parameters():\n    p.grad = None\n", True),
    "the others are left out": (
        "",
        'for name, p in model.named_parameters():\n    if "head" not in name:\n        continue\n    p.grad.zero_()\n',
        True,
    ),
    "a part, and all of them before": (
        "optimizer.zero_grad()\n",
        "for p in model.head.parameters():\n    p.grad = None\n",
        False,
    ),
    "by name, and all of them before by hand": (
        "for p in model.parameters():\n    p.grad = None\n",
        "hold(epoch, model, 1)\n",
        False,
    ),
    "all that have one": ("clear(model)\n", "", False),
    "all that are trained": (
        "for p in model.parameters():\n    if p.requires_grad and p.grad is not None:\n        p.grad.zero_()\n",
        "",
        False,
    ),
    "some, where a step has used them": (
        "for name, p in model.named_parameters():\n    if name in args.trained:\n        p.grad = None\n",
        "",
        False,
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_cleared_of_some(name: str) -> None:
    before, between, left = PROGRAMS[name]
    source = HEAD + indent(before + FED.format(mark="  # AMP215" if left else "") + between + STEP, "        ")
    found = check_source(source, "train.py")
    assert places(found) == marks(source), f"{shown(found)}\n{source}"


def test_a_clip_behind_a_partial_clear_still_needs_its_unscale() -> None:
    clip = "hold(epoch, model, 1)\ntorch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201\n"
    source = HEAD + indent("optimizer.zero_grad()\n" + FED.format(mark="") + clip + STEP, "        ")
    assert places(check_source(source, "train.py")) == marks(source)
