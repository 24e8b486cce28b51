"""Calls of functions that cannot affect the training: the analysis does not enter such functions."""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from pytest_amp_check import check_source

#: A training that calls ``load`` once. The body of ``load`` has 60 further statements.
PROGRAM = """\
import inspect
import torch


class Store:
    names = {}

    def fetch(self, path):
        return open(path).read()

    @classmethod
    def find(cls, path):
        return cls.names[path]

    @classmethod
    def make(cls, path):
        return cls.build(path)

    @classmethod
    def build(cls, path):
        return cls(path)

    def cast(self, model):
        return model.half()


def load(path):
    CALL
LINES
    return found


def train(model, loader, optimizer, scaler):
    state = load("a")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
LINES = "\n".join(f"    x{n} = path.part{n}(path, size={n}) + path.size" for n in range(60))


def work(call: str) -> int:
    """Return the number of Python functions that the analysis of the program calls."""
    text = PROGRAM.replace("LINES", LINES).replace("CALL", call)
    count = 0

    def hear(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    check_source(text)
    before = sys.getprofile()
    sys.setprofile(hear)
    try:
        assert check_source(text) == []
    finally:
        sys.setprofile(before)
    return count


ENTERED = work("found = Store('b')")


@pytest.mark.parametrize(
    ("call", "enters"),
    [
        ("found = Store('b')", True),
        ("found = Store('b').fetch(path)", True),
        ("found = Store.find(path)", False),
        # The result may be an instance, and then any method may follow.
        ("found = Store.make(path)", True),
        ("found = Store.build(path)", True),
        ("found = [Store]", True),
        ("found = path.parameters()", True),
        ("given = inspect.signature(path).parameters\n    found = list(given)", False),
    ],
)
def test_only_a_call_that_may_matter_is_entered(call: str, *, enters: bool) -> None:
    assert (work(call) > ENTERED * 0.7) is enters


FACTORY = """\
import torch


class Trainer:
    def __init__(self, model):
        self.scaler = torch.amp.GradScaler("cuda")
        self.optimizer = torch.optim.SGD(model.parameters(), 0.1)

    @classmethod
    def create(cls, model):
        return cls(model)

    def step(self, loss):
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)


def build(model, options):
LINES
    return Trainer.create(model)


def main(model, loader, options):
    trainer = build(model, options)
    for x in loader:
        trainer.optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x)
        trainer.step(loss)
"""


def test_a_class_method_that_makes_the_object_is_entered() -> None:
    text = FACTORY.replace("LINES", LINES.replace("path", "options"))
    assert [(finding.code, finding.certain) for finding in check_source(text)] == [("AMP206", True)]
    updated = text.replace(
        "self.scaler.step(self.optimizer)", "self.scaler.step(self.optimizer)\n        self.scaler.update()"
    )
    assert check_source(updated) == []
