"""Clears by an engine that receives the optimizer: ``strategy.zero_grad(optimizer)``."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from marks import marks, places
from trees import found, write
from trees import marks as tree_marks

from pytest_amp_check.static.engine import check_source

TRAINER = """\
import torch


class Trainer:
    def __init__(self, model, strategy, batches):
        self.strategy = strategy
        self.model = model
        self.batches = batches
        self.scaler = torch.amp.GradScaler("cuda")
        {made}

    {prepare}

    def train(self):
        {before}
        {loop}:
            {inside}
            with torch.autocast("cuda", dtype=torch.float16):
                loss = self.model(batch).mean()
            self.scaler.scale(loss).backward(){mark}
            self.scaler.step(self.optimizer)
            self.scaler.update()
            {after}
"""
CLEAR = "self.strategy.zero_grad(self.optimizer)"
#: Origins of the optimizer: set by other code, prepared by the engine alone or with the model, or made here.
ORIGINS = {
    "set by other code": ("self.optimizer = None", ""),
    "prepared alone": (
        "self.optimizer = None",
        "def prepare(self, optimizer):\n        self.optimizer = self.strategy.prepare(optimizer)",
    ),
    "prepared with the model": (
        "self.optimizer = None",
        "def prepare(self, optimizer):\n        self.model, self.optimizer = self.strategy.prepare(optimizer)",
    ),
    "made here": ("self.optimizer = torch.optim.AdamW(model.parameters())", ""),
}
LOOPS = {
    "for": ("for batch in self.batches", "pass"),
    "while": ("while not self.batches.is_done()", "batch = self.batches.draw()"),
}


def _program(origin: str, loop: str, **parts: str) -> str:
    made, prepare = ORIGINS[origin]
    head, inside = LOOPS[loop]
    given = {"before": "pass", "after": "pass", "mark": "", **parts}
    return TRAINER.format(made=made, prepare=prepare, loop=head, inside=inside, **given)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("origin", ORIGINS)
def test_a_clear_before_the_loop_alone_leaves_the_gradients_of_each_step(origin: str, loop: str) -> None:
    text = _program(origin, loop, before=CLEAR, mark="  # AMP215")
    assert places(check_source(text)) == marks(text)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("origin", ORIGINS)
def test_a_clear_in_each_iteration_is_right(origin: str, loop: str) -> None:
    assert check_source(_program(origin, loop, before=CLEAR, after=CLEAR)) == []


BASE = """
    === base.py
    import torch

    class Trainer:
        def __init__(self, model, strategy):
            self.strategy = strategy
            self.model = model
            self.scaler = torch.amp.GradScaler("cuda")
            self.optimizer = None

        def prepare(self, optimizer):
            self.model, self.optimizer = self.strategy.prepare(self.model, optimizer)

        def train_step(self, batch):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = self.model(batch).mean()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.strategy.zero_grad(self.optimizer)

        def train(self, batches):
            self.strategy.zero_grad(self.optimizer)
            while not batches.is_done():
                self.train_step(batches.draw())
    """
SUBCLASS = """
    === dpo.py
    import torch

    from base import Trainer

    class PreferenceTrainer(Trainer):
        def train_step(self, batch):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = self.model.compare(batch).mean()
            self.scaler.scale(loss).backward(){mark}
            self.scaler.step(self.optimizer)
            self.scaler.update()
            {after}
    """
#: The engine's class in another file. Its method only passes the clear on.
ENGINE = """
    === strategy.py
    class Strategy:
        def prepare(self, model, optimizer):
            return model, optimizer

        def zero_grad(self, optimizer):
            optimizer.zero_grad()
    """


@pytest.mark.parametrize("engine", ["", ENGINE])
def test_an_override_without_the_clear_of_its_base(engine: str, tmp_path: Path) -> None:
    tree = _join(BASE, SUBCLASS.format(mark="  # AMP215", after="return loss"), engine)
    write(tmp_path, tree)
    assert found(tmp_path) == tree_marks(tmp_path)


@pytest.mark.parametrize("engine", ["", ENGINE])
def test_an_override_with_the_clear_of_its_base(engine: str, tmp_path: Path) -> None:
    tree = _join(BASE, SUBCLASS.format(mark="", after=CLEAR), engine)
    write(tmp_path, tree)
    assert found(tmp_path) == tree_marks(tmp_path)


def _join(*parts: str) -> str:
    return "\n".join(textwrap.dedent(part) for part in parts)


#: A trainer whose engine takes the optimizer in each of its methods, with AMP or without.
WITH_FLAG = """\
import torch


class Trainer:
    def __init__(self, model, strategy, use_amp):
        self.strategy = strategy
        self.use_amp = use_amp
        self.scaler = torch.amp.GradScaler("cuda") if use_amp else None
        self.model, self.optimizer = self.strategy.prepare(model)

    def step(self, batch):
        with torch.autocast("cuda", dtype=torch.float16, enabled=self.use_amp):
            loss = self.model(batch).mean()
        if self.use_amp:
            self.scaler.scale(loss).backward(){mark}
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.strategy.backward(loss, self.model)
            self.strategy.step(self.optimizer)
        {after}

    def train(self, batches):
        self.strategy.zero_grad(self.optimizer)
        for batch in batches:
            self.step(batch)
"""


@pytest.mark.parametrize(("after", "mark"), [(CLEAR, ""), ("pass", "  # AMP215")])
def test_an_engine_that_steps_and_clears_what_it_receives_is_no_optimizer(after: str, mark: str) -> None:
    text = WITH_FLAG.format(after=after, mark=mark)
    assert places(check_source(text)) == marks(text)


#: A base class that clears through a helper of its own, and a file with a subclass that names no clear.
CLEARED_IN_BASE = """
=== unit.py
import torch
from checks import given, timed


class Unit:
    def __init__(self, module, make, clears_late=False):
        self.module, self.clears_late, self.has_stepped = module, clears_late, False
        self.optimizer = make(module)
        self.scaler = torch.amp.GradScaler("cuda")

    def clear(self, state):
        optimizer = given(self.optimizer)
        with timed(state):
            optimizer.{cleared}

    def train_step(self, state, batch):
        if self.has_stepped and self.clears_late:
            self.{called}(state)
        with torch.autocast("cuda"):
            loss = self.compute_loss(state, batch)
        self.scaler.scale(loss).backward(){mark}
        optimizer = given(self.optimizer)
        self.scaler.step(optimizer)
        self.scaler.update()
        if self.clears_late:
            self.has_stepped = True
        else:
            self.{called}(state)

    def log(self, state):
        pass

=== child.py
from unit import Unit


class Child(Unit):
    def compute_loss(self, state, batch):
        return self.module(batch).mean()
"""


def test_a_base_class_in_another_file_clears(tmp_path: Path) -> None:
    write(tmp_path, CLEARED_IN_BASE.format(cleared="zero_grad()", called="clear", mark=""))
    assert found(tmp_path) == tree_marks(tmp_path)
