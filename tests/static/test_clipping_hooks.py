"""Hooks that a training calls on an object of an unknown class, and that clip gradients in a class of the project."""

from __future__ import annotations

from pathlib import Path

import pytest
from trees import found, marks, write

from pytest_amp_check.static.engine import check_paths

PROJECT = """
=== tasks/base.py
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

class Task(nn.Module):
    {setup}
    def {name}(self, number):
        {body}
=== engine.py
import torch

class Engine:
    def __init__(self, task_class):
        self.scaler = torch.amp.GradScaler("cuda")
        self.task = task_class()

    def fit(self, loader, optimizer):
        task = self.task
        for batch in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = task(batch)
            self.scaler.scale(loss).backward()
            {before}
            task.{name}(0){mark}
            self.scaler.step(optimizer)
            self.scaler.update()
"""
CLIP = "torch.nn.utils.clip_grad_norm_(self.parameters(), self.limit)"


def project(
    name: str = "on_before_step", body: str = CLIP, setup: str = "", before: str = "pass", mark: str = ""
) -> str:
    return PROJECT.format(name=name, body=body, setup=setup, before=before, mark=mark)


WRONG = "  # AMP201"
CASES = {
    "before the step": project(mark=WRONG),
    "after backward": project(name="after_backward", mark=WRONG),
    "before the optimization": project(name="on_before_optimization", mark=WRONG),
    "by value, under a condition": project(
        body="if self.limit > 0: nn.utils.clip_grad_value_(self.parameters(), self.limit)", mark=WRONG
    ),
    "an imported function": project(body="clip_grad_norm_(self.parameters(), self.limit)", mark=WRONG),
    "unscaled before": project(before="self.scaler.unscale_(optimizer)"),
    "the class knows the scale": project(
        setup="def bind(self, scaler, optimizer): self.scaler, self.optimizer = scaler, optimizer",
        body=f"self.scaler.unscale_(self.optimizer); {CLIP}",
    ),
    "an engine's own clip": project(body="self.fabric.clip_grad_norm_(self, self.limit)"),
    "a hook that logs": project(body="print(number, 'clip_grad_norm_')"),
    "no hook by its name": project(name="observe"),
    "no scaler": project()
    .replace("self.scaler.scale(loss).backward()", "loss.backward()")
    .replace("self.scaler.step(optimizer)", "optimizer.step()")
    .replace("self.scaler.update()", "pass")
    .replace('self.scaler = torch.amp.GradScaler("cuda")', "pass")
    .replace("float16", "bfloat16"),
}
# Of two tasks, one unscales.
CASES["another class knows the scale"] = project() + (
    "=== tasks/other.py\n"
    "import torch\n"
    "class Scaled:\n"
    "    def on_before_step(self, number):\n"
    "        self.scaler.unscale_(self.optimizer)\n"
    "        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)\n"
)
CASES["another class does nothing"] = project(mark=WRONG) + (
    "=== tasks/other.py\nclass Plain:\n    def on_before_step(self, number):\n        pass\n"
)

#: Ways to call a hook by its name.
BY_NAME = {
    "by its name": "getattr(task, name)(0)",
    "by its name, if there is one": "if hasattr(task, name): getattr(task, name)(0)",
    "by its name, if there is one, kept": "hook = getattr(task, name, None); hook and hook(0)",
}
for way, call in BY_NAME.items():
    body = project(mark="").replace("task.on_before_step(0)", 'self.call("on_before_step")')
    CASES[way] = f"{body}\n    def call(self, name):\n        task = self.task\n        {call}{WRONG}\n"


@pytest.mark.parametrize("name", CASES)
def test_hook(name: str, tmp_path: Path) -> None:
    write(tmp_path, CASES[name])
    assert found(tmp_path) == marks(tmp_path), CASES[name]


def test_a_hook_is_no_certain_clip(tmp_path: Path) -> None:
    write(tmp_path, CASES["before the step"])
    assert [finding.certain for finding in check_paths([str(tmp_path)]).findings] == [False]


FLAG = """\
import torch

def train(model, optimizer, loader, args):
    scaler = torch.amp.GradScaler("cuda")
    plain = getattr(args, "plain_on_step", False)
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        if plain:
            continue
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP201
        scaler.step(optimizer)
        scaler.update()
"""


def test_a_setting_with_the_name_of_a_hook_may_be_off(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FLAG)
    assert found(tmp_path) == marks(tmp_path)
