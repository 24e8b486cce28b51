"""First windows of an epoch that are shorter than the others, by the number at which the count begins."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

LOOP = """\
import torch
from torch import nn

model = nn.Linear(4, 1).cuda()
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cuda")


def train(loader, k, done=0):
    for step, x in enumerate(loader{start}):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).mean() / k
        scaler.scale(loss).backward()
        if {window}:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""


def found(start: str, window: str) -> list[tuple[str, str, int]]:
    findings = check_source(LOOP.format(start=start, window=window))
    return [(each.code, each.label, each.line) for each in findings]


@pytest.mark.parametrize(
    ("start", "window"),
    [
        (", start=1", "(step + 1) % k == 0"),
        (", 1", "(step + 1) % k == 0"),
        (", start=done + 1", "(step + 1) % k == 0"),
        (", 1 + done", "not (step + 1) % k"),
        (", start=2", "step % k == 0"),
    ],
)
def test_a_count_that_begins_one_too_high_shortens_the_first_window(start: str, window: str) -> None:
    assert found(start, window) == [("AMP304", "window:one-short", 14)]


@pytest.mark.parametrize(
    ("start", "window"),
    [
        ("", "(step + 1) % k == 0"),
        (", start=1", "step % k == 0"),
        (", start=done + 1", "step % k == 0"),
        (", start=done", "(step + 1) % k == 0"),
        (", start=first(loader)", "(step + 1) % k == 0"),
    ],
)
def test_right_counts_are_silent(start: str, window: str) -> None:
    assert found(start, window) == []


RESUMED = """\
import torch


class Trainer:
    def __init__(self, model, loader, k):
        self.model, self.loader, self.k = model, loader, k
        self.optimizer = torch.optim.AdamW(model.parameters())
        self.scaler = torch.amp.GradScaler("cuda")
        self.seen = {first}

    def load(self, path):
        state = torch.load(path)
        self.seen = state["seen"]
        self.scaler.load_state_dict(state["scaler"])

    def micro_batch(self, x):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = self.model(x).mean() / self.k
        self.scaler.scale(loss).backward()
        {before}
        if {window}:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
        {after}

    def train(self):
        for x in self.loader:
            {each}
            self.micro_batch(x)
"""
COUNT = "self.seen += 1"


@pytest.mark.parametrize(
    ("first", "before", "window", "after", "each", "expected"),
    [
        ("0", "pass", "self.seen % self.k == 0", COUNT, "pass", True),
        ("0", COUNT, "self.seen % self.k == 0", "pass", "pass", False),
        ("0", "pass", "(self.seen + 1) % self.k == 0", COUNT, "pass", False),
        ("1", "pass", "self.seen % self.k == 0", COUNT, "pass", False),
        ("0", "pass", "self.seen > 0 and self.seen % self.k == 0", COUNT, "pass", False),
        ("0", "pass", "self.seen % self.k == 0 and self.seen != 0", COUNT, "pass", False),
        # Another method counts, before the test or after it.
        ("0", "pass", "self.seen % self.k == 0", "pass", COUNT, False),
        ("0", COUNT, "self.seen % self.k == 0", "pass", COUNT, False),
        ("read_position()", "pass", "self.seen % self.k == 0", COUNT, "pass", False),
    ],
)
def test_an_attribute_that_counts_begins_as_in_the_constructor(
    first: str, before: str, window: str, after: str, each: str, *, expected: bool
) -> None:
    source = RESUMED.format(first=first, before=before, window=window, after=after, each=each)
    findings = [(one.code, one.label, one.line) for one in check_source(source)]
    assert findings == ([("AMP304", "window:off-by-one", 21)] if expected else [])


LOCAL = """\
import itertools

import torch


def train(model, loader, k, path=None):
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    start = {first}
    if path is not None:
        state = torch.load(path)
        start = {resumed}
        scaler.load_state_dict(state["scaler"])
    {loop}:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).mean() / k
        scaler.scale(loss).backward()
        if {window}:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        {after}
"""


@pytest.mark.parametrize(
    ("first", "resumed", "loop", "window", "after", "expected"),
    [
        ("0", "state['step']", "for i, x in zip(range(start, 900), loader)", "i % k == 0", "pass", True),
        ("0", "state['step'] + 1", "for i, x in enumerate(loader, start)", "i % k == 0", "pass", True),
        ("0", "state['step']", "for x, i in zip(loader, itertools.count(start))", "i % k == 0", "pass", True),
        ("0", "int(state['step'])", "for x in loader", "start % k == 0", "start += 1", True),
        ("0", "state['step']", "for i, x in enumerate(loader, start)", "(i + 1) % k == 0", "pass", False),
        ("1", "state['step'] + 1", "for i, x in enumerate(loader, start)", "i % k == 0", "pass", False),
        ("1", "state['step'] + 1", "for i, x in zip(range(start, 900), loader)", "i % k == 0", "pass", False),
        ("0", "state['step']", "for x in loader", "(start + 1) % k == 0", "start += 1", False),
        ("0", "state['step']", "for i, x in enumerate(loader, start)", "i and i % k == 0", "pass", False),
        ("first(loader)", "state['step']", "for x in loader", "start % k == 0", "start += 1", False),
    ],
)
def test_a_count_that_may_resume_begins_as_in_a_new_training(
    first: str, resumed: str, loop: str, window: str, after: str, *, expected: bool
) -> None:
    source = LOCAL.format(first=first, resumed=resumed, loop=loop, window=window, after=after)
    findings = [(one.code, one.label, one.line) for one in check_source(source)]
    assert findings == ([("AMP304", "window:off-by-one", 18)] if expected else [])
