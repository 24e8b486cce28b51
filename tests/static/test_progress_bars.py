"""Loops over progress bars, which yield the items of an iterable in the same order."""

from __future__ import annotations

import pytest

from pytest_amp_check import check_source

PROGRAM = """\
import itertools
import random
import torch
import tqdm.auto
from rich.progress import track
from tqdm import tqdm as bar
from tqdm import trange


def show(items):
    return bar(items, total=3)


def train(model, loader, optimizer, k, logger, rank):
    scaler = torch.amp.GradScaler()
    for epoch in range(10):
{loop}
            with torch.autocast("cuda"):
                loss = model(x) / k
            scaler.scale(loss).backward()
            if {test}:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
"""
#: Loops that count from zero.
LOOPS = {
    "without a bar": "        for i, x in enumerate(loader):",
    "tqdm": "        for i, x in bar(enumerate(loader)):",
    "a module": "        for i, x in tqdm.auto.tqdm(enumerate(loader), total=len(loader)):",
    "a keyword": "        for i, x in bar(desc='train', iterable=enumerate(loader)):",
    "a name": "        items = enumerate(loader)\n        items = bar(items, total=3)\n        for i, x in items:",
    "one rank": (
        "        items = enumerate(loader)\n        if rank in (-1, 0):\n            items = bar(items)\n"
        "        for i, x in items:"
    ),
    "either": "        for i, x in bar(enumerate(loader)) if rank == 0 else enumerate(loader):",
    "with": "        with bar(enumerate(loader)) as items:\n         for i, x in items:",
    "rich": "        for i, x in track(enumerate(loader), description='train'):",
    "a function of the file": "        for i, x in show(enumerate(loader)):",
    "an unknown method": "        for i, x in logger.log_every(enumerate(loader), 10):",
    "pairs": "        for i, (x, y) in bar(enumerate(zip(loader, loader))):",
    "numbers beside": "        for i, x in bar(zip(range(100), loader)):",
    "numbers": "        for i in bar(range(100)):\n            x = next(loader)",
    "trange": "        for i in trange(100):\n            x = next(loader)",
}
#: Loops whose first number the code does not show, or that count from one.
OTHER_LOOPS = {
    "from one": "        for i, x in bar(enumerate(loader, 1)):",
    "a shuffled range": "        for i in bar(random.sample(range(100), 100)):\n            x = next(loader)",
    "an unknown start": "        for i in bar(range(rank, 100)):\n            x = next(loader)",
    "a later item": "        for i, x in bar(itertools.islice(enumerate(loader), rank, None)):",
    "an unknown bar over numbers": "        for i in logger.shuffle(range(100)):\n            x = next(loader)",
}


def first_windows(loop: str, test: str) -> list[str]:
    findings = check_source(PROGRAM.format(loop=loop, test=test))
    return [finding.label for finding in findings if finding.code == "AMP304" and "first" in finding.message]


@pytest.mark.parametrize("loop", LOOPS.values(), ids=list(LOOPS))
class TestLoopsThatCountFromZero:
    def test_the_short_first_window_is_found(self, loop: str) -> None:
        assert len(first_windows(loop, "i % k == 0")) == 1

    def test_whole_windows_are_right(self, loop: str) -> None:
        assert first_windows(loop, "(i + 1) % k == 0") == []


@pytest.mark.parametrize(
    "parts", ["x.chunk(4)", "bar(x.chunk(4))", "bar(x.split(8), total=4)", "bar(list(x.chunk(4)))"]
)
def test_losses_of_parts_of_a_batch_are_not_divided(parts: str) -> None:
    text = f"""\
import torch
from tqdm import tqdm as bar

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler()
    for x in loader:
        for part in {parts}:
            with torch.autocast("cuda"):
                loss = model(part).mean()
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""
    assert [finding.code for finding in check_source(text)] == ["AMP301"]


@pytest.mark.parametrize("loop", OTHER_LOOPS.values(), ids=list(OTHER_LOOPS))
def test_other_loops_have_no_known_first_number(loop: str) -> None:
    assert first_windows(loop, "i % k == 0") == []
