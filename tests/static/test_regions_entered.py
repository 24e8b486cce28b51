"""Regions: every form of entering and leaving."""

from __future__ import annotations

from textwrap import indent

import pytest

from pytest_amp_check import check_source

HEAD = """\
import contextlib
import functools

import torch
from torch import autocast
from contextlib import nullcontext

def chosen(flag):
    return torch.autocast("cuda") if flag else nullcontext()

@contextlib.contextmanager
def around(on=True):
    with torch.autocast("cuda", enabled=on):
        yield

@contextlib.contextmanager
def around_nothing():
    yield

class Around:
    def __init__(self, on=True):
        self.region = torch.autocast("cuda", enabled=on)

    def __enter__(self):
        self.region.__enter__()
        return self

    def __exit__(self, *error):
        self.region.__exit__(*error)

"""
TRAIN = """\
def train(model, loader, optimizer, flag, limits):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
{}
        scaler.step(optimizer)
        scaler.update()
"""
#: The expressions of a ``with``, and True if they may enter a region.
ENTERED: dict[str, bool] = {
    'with torch.autocast("cuda"):': True,
    'with autocast("cuda"):': True,
    'with torch.autocast(device_type="cuda", dtype=torch.float16):': True,
    'with torch.autocast("cuda", torch.float16, True):': True,
    'with torch.autocast("cuda", enabled=flag):': True,
    'with torch.autocast("cuda", enabled=not flag):': True,
    'with torch.autocast("cuda", enabled=False):': False,
    'with torch.autocast("cuda", torch.float16, False):': False,
    'with torch.autocast("cuda", enabled=flag and False):': False,
    "with nullcontext():": False,
    "with nullcontext() if flag else nullcontext():": False,
    'with torch.autocast("cuda") if flag else nullcontext():': True,
    'with nullcontext() if flag else torch.autocast("cuda"):': True,
    'with nullcontext() if True else torch.autocast("cuda"):': False,
    'with torch.autocast("cuda", enabled=False) if flag else nullcontext():': False,
    'with (torch.autocast if flag else nullcontext)("cuda"):': True,
    "with chosen(flag):": True,
    "with chosen(False):": False,
    'with functools.partial(torch.autocast, "cuda")():': True,
    'with functools.partial(torch.autocast, "cuda", enabled=False)():': False,
    "with around():": True,
    "with around(False):": False,
    "with around_nothing():": False,
    "with Around():": True,
    "with Around(False):": False,
    'with torch.autocast("cuda"), nullcontext():': True,
    'with nullcontext(), torch.autocast("cuda"):': True,
    'with torch.autocast("cuda"), torch.autocast("cuda", enabled=False):': False,
    'with torch.autocast("cuda", enabled=False), torch.autocast("cuda"):': True,
    'with around(), torch.autocast("cuda", enabled=False):': False,
    'with torch.autocast("cuda", enabled=False), around():': True,
    "with limits.context():": False,
    "with limits:": False,
}


def reported(*parts: str) -> list[int]:
    """Return the lines of the loop's body with a backward that is reported as inside a region."""
    source = HEAD + TRAIN.format(indent("\n".join(parts), "        "))
    first = len(HEAD.split("\n")) + 4
    return [found.line - first + 1 for found in check_source(source) if found.code == "AMP103"]


LOSS = "    loss = model(x).mean()"
BACKWARD = "scaler.scale(loss).backward()"


@pytest.mark.parametrize("entered", ENTERED)
def test_a_backward_runs_in_what_is_a_region(entered: str) -> None:
    assert reported(entered, LOSS, f"    {BACKWARD}") == ([3] if ENTERED[entered] else [])


@pytest.mark.parametrize("entered", ENTERED)
def test_behind_a_block_there_is_no_region(entered: str) -> None:
    assert reported(entered, LOSS, BACKWARD) == []


#: The parts of a loop's body, and the line of the backward that runs in a region.
PLACES: dict[str, tuple[str, list[int]]] = {
    "a context by its name": (
        f'region = torch.autocast("cuda")\nwith region:\n{LOSS}\n    {BACKWARD}',
        [4],
    ),
    "behind a context by its name": (f'region = torch.autocast("cuda")\nwith region:\n{LOSS}\n{BACKWARD}', []),
    "a context that is entered by hand": (
        (
            f'region = torch.autocast("cuda")\nregion.__enter__()\nloss = model(x).mean()\n{BACKWARD}\n'
            "region.__exit__(None, None, None)"
        ),
        [4],
    ),
    "a context that is left by hand": (
        (
            'region = torch.autocast("cuda")\nregion.__enter__()\nloss = model(x).mean()\n'
            f"region.__exit__(None, None, None)\n{BACKWARD}"
        ),
        [],
    ),
    "a stack": (
        f'with contextlib.ExitStack() as stack:\n    stack.enter_context(autocast("cuda"))\n{LOSS}\n    {BACKWARD}',
        [4],
    ),
    "behind a stack": (
        f'with contextlib.ExitStack() as stack:\n    stack.enter_context(torch.autocast("cuda"))\n{LOSS}\n{BACKWARD}',
        [],
    ),
    "a stack whose method has a name": (
        (
            'with contextlib.ExitStack() as stack:\n    enter = stack.enter_context\n    enter(autocast("cuda"))\n'
            f"{LOSS}\n    {BACKWARD}"
        ),
        [5],
    ),
    "a stack of nothing": (
        f"with contextlib.ExitStack() as stack:\n    stack.enter_context(nullcontext())\n{LOSS}\n    {BACKWARD}",
        [],
    ),
    "a stack that has a region sometimes": (
        (
            "with contextlib.ExitStack() as stack:\n    if flag:\n"
            f'        stack.enter_context(torch.autocast("cuda"))\n{LOSS}\n    {BACKWARD}'
        ),
        [5],
    ),
    "a block within one that is off": (
        f'with torch.autocast("cuda"):\n{LOSS}\n    with torch.autocast("cuda", enabled=False):\n        {BACKWARD}',
        [],
    ),
    "behind a block that is off": (
        (f'with torch.autocast("cuda"):\n    with torch.autocast("cuda", enabled=False):\n    {LOSS}\n    {BACKWARD}'),
        [4],
    ),
    "a function that is decorated": (
        f'@torch.autocast("cuda")\ndef run(loss):\n    {BACKWARD}\nloss = model(x).mean()\nrun(loss)',
        [3],
    ),
    "a function that is called in a region": (
        f'def run(loss):\n    {BACKWARD}\nwith torch.autocast("cuda"):\n{LOSS}\n    run(loss)',
        [2],
    ),
    "a function that leaves its own region": (
        f'def forward():\n    with autocast("cuda"):\n        return model(x).mean()\nloss = forward()\n{BACKWARD}',
        [],
    ),
    "a block that is left where something is raised": (
        (
            f'try:\n    with torch.autocast("cuda"):\n        loss = model(x).mean()\n        raise ValueError\n'
            f"except ValueError:\n    {BACKWARD}"
        ),
        [],
    ),
    "what a block does at last": (
        f'with torch.autocast("cuda"):\n    try:\n        loss = model(x).mean()\n    finally:\n        {BACKWARD}',
        [5],
    ),
    "what is done at last around a block": (
        f'try:\n    with torch.autocast("cuda"):\n        loss = model(x).mean()\nfinally:\n    {BACKWARD}',
        [],
    ),
}


@pytest.mark.parametrize("name", PLACES)
def test_where_a_region_begins_and_ends(name: str) -> None:
    body, lines = PLACES[name]
    assert reported(body) == lines


#: Code around a forward, and True if the loss may be computed in a region.
AROUND_A_FORWARD: dict[str, bool] = {
    "with around():\n    {}": True,
    "with Around():\n    {}": True,
    "with limits:\n    {}": True,
    "with profile() as profiled:\n    {}": False,
    "with limits if flag else nullcontext():\n    {}": True,
    "with Around() if flag else nullcontext():\n    {}": True,
    "with profile() if flag else nullcontext():\n    {}": False,
    "with mixed_precision() if flag else nullcontext():\n    {}": True,
    "with contextlib.ExitStack() as stack:\n    stack.enter_context(around())\n    {}": True,
    "with contextlib.ExitStack() as stack:\n    stack.enter_context(around() if flag else Around())\n    {}": True,
    "with contextlib.ExitStack() as stack:\n    stack.enter_context(Around())\n    {}": True,
    "with contextlib.ExitStack() as stack:\n    stack.enter_context(limits)\n    {}": True,
    "with contextlib.ExitStack() as stack:\n    stack.enter_context(profile())\n    {}": False,
    "with contextlib.ExitStack() as stack:\n    stack.enter_context(limits)\n{}": False,
    "with contextlib.ExitStack() as stack:\n    stack.enter_context(around())\n{}": False,
    "@around()\ndef run():\n    {}\n    return loss\nloss = run()": True,
    "@around()\ndef run():\n    pass\nrun()\n{}": False,
}


@pytest.mark.parametrize("code", AROUND_A_FORWARD)
def test_a_forward_in_what_may_be_a_region(code: str) -> None:
    forward = "loss = torch.nn.functional.mse_loss(net(x), x)"
    head = HEAD + "from tools import mixed_precision, profile\n\nnet = torch.nn.Linear(4, 4)\n\n"
    body = indent(code.format(forward) + f"\n{BACKWARD}", "        ")
    found = [finding.code for finding in check_source(head + TRAIN.format(body)) if finding.code == "AMP110"]
    assert found == ([] if AROUND_A_FORWARD[code] else ["AMP110"])
