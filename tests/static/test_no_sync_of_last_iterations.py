"""Loops whose last iteration alone averages gradients over processes, which are windows (AMP301, AMP305)."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

PROGRAM = """\
import contextlib

import torch


def train_step(model, batch, optimizer, scaler):
    n = len(batch)
    for i, (x, y) in enumerate(batch):
        {context}
            with torch.autocast("cuda", dtype=torch.float16):
                loss = torch.nn.functional.cross_entropy(model(x), y){divided}
            scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
TERNARIES = [
    "model.no_sync() if i < n - 1 else contextlib.nullcontext()",
    "model.no_sync() if i != n - 1 else contextlib.nullcontext()",
    "contextlib.nullcontext() if i == len(batch) - 1 else model.no_sync()",
    "contextlib.nullcontext() if i + 1 == n else model.no_sync()",
]
STACK = """with contextlib.ExitStack() as stack:
            {condition}stack.enter_context(model.no_sync())"""


def found(context: str, divided: str = "") -> list[str]:
    return [finding.code for finding in check_source(PROGRAM.format(context=context, divided=divided), "train.py")]


@pytest.mark.parametrize("context", [f"with {ternary}:" for ternary in TERNARIES])
def test_a_window_needs_a_division(context: str) -> None:
    assert found(context) == ["AMP301"]
    assert found(context, " / n") == []


@pytest.mark.parametrize("condition", ["if i < n - 1: ", "if i != n - 1: ", "if i != len(batch) - 1: "])
def test_a_stack_is_entered_on_some_paths(condition: str) -> None:
    context = STACK.format(condition=condition)
    assert found(context) == ["AMP301"]
    assert found(context, " / n") == []


def test_a_stack_without_a_block() -> None:
    assert found("stack = contextlib.ExitStack(); stack.enter_context(model.no_sync())\n        if True:", " / n")


def test_a_stack_that_is_entered_always() -> None:
    assert "AMP305" in found(STACK.format(condition=""), " / n")


@pytest.mark.parametrize("context", ["if i < n - 1:", "with contextlib.nullcontext():", "if True:"])
def test_other_loops_are_no_windows_for_sure(context: str) -> None:
    assert "AMP301" not in found(context)


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ("for part in micro_batches:", ["AMP301"]),
        ("for i, part in enumerate(self.micro_batches(batch)):", ["AMP301"]),
        ("for part in views:", []),
    ],
)
def test_a_step_function_loops_over_named_micro_batches(head: str, expected: list[str]) -> None:
    source = f"""\
import torch


def train_step(self, model, batch, micro_batches, views, optimizer, scaler):
    {head}
        with torch.autocast("cuda", dtype=torch.float16):
            loss = torch.nn.functional.cross_entropy(model(part[0]), part[1])
        scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
    assert [finding.code for finding in check_source(source, "train.py")] == expected
