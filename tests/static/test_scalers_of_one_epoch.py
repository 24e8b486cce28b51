"""Scalers that a function constructs for one epoch, which a loop of another file calls."""

from __future__ import annotations

from pathlib import Path

import pytest
from trees import found, write

CLASS = """
=== engine.py
import torch

class Engine:
    def __init__(self, model, optimizer, loader):
        self.model, self.optimizer, self.loader = model, optimizer, loader
        {early}

    def {name}(self):
        {made}
        for batch in self.loader:
            self.optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = self.model(batch)
            scaler.scale(loss).backward()
            scaler.step(self.optimizer)
            scaler.update()
        {after}
=== main.py
from engine import Engine
from build import model, optimizer, loader

engine = Engine(model, optimizer, loader)
{drive}
"""
FUNCTION = """
=== engine.py
import torch

def {name}(model, optimizer, loader):
    {made}
    for batch in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
=== main.py
from engine import {name}
from build import model, optimizer, loader

{drive}
"""
NEW = 'scaler = torch.amp.GradScaler("cuda")'


def codes(root: Path, source: str) -> list[str]:
    write(root, source)
    return sorted(code for _, _, code in found(root))


def of_class(name: str, drive: str, made: str = NEW, early: str = "pass", after: str = "pass") -> str:
    return CLASS.format(name=name, drive=drive.format(call=f"engine.{name}()"), made=made, early=early, after=after)


@pytest.mark.parametrize("name", ["train_epoch", "_train_epoch", "run_one_epoch", "epochStep"])
@pytest.mark.parametrize("drive", ["for epoch in range(9): {call}", "while True:\n    result = {call}"])
def test_a_method_for_one_epoch(tmp_path: Path, name: str, drive: str) -> None:
    assert codes(tmp_path, of_class(name, drive)) == ["AMP208"]


@pytest.mark.parametrize("name", ["train_epoch", "train_one_epoch"])
def test_a_function_for_one_epoch(tmp_path: Path, name: str) -> None:
    call = f"{name}(model, optimizer, loader)"
    assert codes(tmp_path, FUNCTION.format(name=name, made=NEW, drive=f"for _ in range(9): {call}")) == ["AMP208"]
    assert codes(tmp_path, FUNCTION.format(name=name, made=NEW, drive=call)) == []


@pytest.mark.parametrize("name", ["train", "fit", "train_epochs", "run_fold"])
def test_a_whole_training_needs_a_scaler_of_its_own(tmp_path: Path, name: str) -> None:
    assert codes(tmp_path, of_class(name, "for fold in range(5): {call}")) == []


def test_a_single_call(tmp_path: Path) -> None:
    assert codes(tmp_path, of_class("train_epoch", "{call}")) == []


@pytest.mark.parametrize(
    ("made", "early", "after"),
    [
        ("scaler = self.scaler", 'self.scaler = torch.amp.GradScaler("cuda")', "pass"),
        (f"{NEW}; scaler.load_state_dict(self.kept)", "self.kept = {}", "self.kept = scaler.state_dict()"),
    ],
)
def test_the_scale_is_kept(tmp_path: Path, made: str, early: str, after: str) -> None:
    assert codes(tmp_path, of_class("train_epoch", "for epoch in range(9): {call}", made, early, after)) == []


ONE_STEP = """
=== steps.py
import torch

class Agent:
    def minimize(self, optimizer, loss):
        scaler = torch.amp.GradScaler("cuda")
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
OWN_OPTIMIZER = "        optimizer = torch.optim.SGD(self.model.parameters(), 0.1)\n        optimizer.zero_grad()\n"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (ONE_STEP, ["AMP208"]),
        (ONE_STEP + "=== main.py\nfor loss in losses: agent.minimize(optimizer, loss)\n", ["AMP208"]),
        (ONE_STEP + "=== main.py\nagent.minimize(optimizer, loss)\n", []),
        (ONE_STEP.replace("        optimizer.zero_grad()\n", OWN_OPTIMIZER), []),
    ],
)
def test_a_step_of_an_optimizer_that_is_given_is_one_of_many(tmp_path: Path, source: str, expected: list[str]) -> None:
    assert codes(tmp_path, source) == expected
