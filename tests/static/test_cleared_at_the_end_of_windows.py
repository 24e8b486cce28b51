"""Gradients that are cleared in the iteration that ends their window, before its backward."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

PLAIN = """
import torch
def train(model, loader, optimizer, other, k):
    for i, x in enumerate(loader):
        if FIRST:
            optimizer.zero_grad()
        loss = model(x).mean() / k
        loss.backward()
        if (i + 1) % k == 0:
            optimizer.step()
            LAST
"""


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        ("(i + 1) % k == 0", "pass", [6]),
        ("not (i + 1) % k", "other.step()", [6]),
        ("i % k == 0", "pass", []),
        ("(i + 1) % k == 1", "pass", []),
        ("(i + 1) % k == 0", "optimizer.zero_grad()", [6]),
        ("False", "optimizer.zero_grad()", []),
    ],
)
def test_a_clear_under_the_condition_of_the_step_comes_after_it(first: str, last: str, expected: list[int]) -> None:
    assert found(PLAIN.replace("FIRST", first).replace("LAST", last)) == expected


ACCELERATE = """
import torch
from accelerate import Accelerator
def train(model, loader, args):
    accelerator = Accelerator(MADE)
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x in loader:
        with AROUND:
            FIRST
            loss = model(x).mean()
            accelerator.backward(loss)
            optimizer.step()
            LAST
"""
ACCUMULATE = "accelerator.accumulate(model)"


def found(source: str) -> list[int]:
    return [finding.site.line for finding in check_source(source) if finding.code == "AMP304"]


def with_accelerate(
    *,
    made: str = "gradient_accumulation_steps=4",
    around: str = ACCUMULATE,
    first: str = "optimizer.zero_grad()",
    last: str = "pass",
) -> str:
    places = {"MADE": made, "AROUND": around, "FIRST": first, "LAST": last}
    source = ACCELERATE
    for place, text in places.items():
        source = source.replace(place, text)
    return source


@pytest.mark.parametrize(
    ("made", "certain"),
    [
        ("gradient_accumulation_steps=4", True),
        ('gradient_accumulation_steps=4, mixed_precision="bf16"', True),
        ('gradient_accumulation_steps=4, mixed_precision="fp16"', True),
        ("gradient_accumulation_steps=2", True),
        ("gradient_accumulation_steps=args.steps", False),
        ("gradient_accumulation_plugin=args.plugin", False),
    ],
)
def test_accelerate_clears_in_the_microbatch_that_synchronizes(made: str, certain: bool) -> None:
    (finding,) = check_source(with_accelerate(made=made))
    assert (finding.code, finding.site.line, finding.certain) == ("AMP304", 10, certain)


@pytest.mark.parametrize("made", ["gradient_accumulation_steps=4", "gradient_accumulation_steps=args.steps"])
def test_a_clear_before_the_region_acts_after_the_end_of_a_window(made: str) -> None:
    source = with_accelerate(made=made, first="pass")
    assert check_source(source.replace("        with", "        optimizer.zero_grad()\n        with")) == []


@pytest.mark.parametrize(
    "right",
    [
        with_accelerate(first="pass", last="optimizer.zero_grad()"),
        with_accelerate(made="gradient_accumulation_steps=1"),
        with_accelerate(made=""),
        with_accelerate(made="gradient_accumulation_steps=1", around="accelerator.autocast()"),
    ],
)
def test_a_clear_after_the_step_or_without_a_window_loses_nothing(right: str) -> None:
    assert found(right) == []


IN_A_CLASS = """
import torch
from accelerate import Accelerator
class Trainer:
    def __init__(self, model):
        self.accelerator = Accelerator(gradient_accumulation_steps=8)
        optimizer = torch.optim.AdamW(model.parameters())
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
    def train_step(self, x):
        with self.accelerator.accumulate(self.model):
            FIRST
            loss = self.model(x).mean()
            self.accelerator.backward(loss)
            self.optimizer.step()
            LAST
        return loss
    def fit(self, loader):
        for x in loader:
            self.train_step(x)
"""


def test_an_accelerator_kept_in_an_object() -> None:
    clear = "self.optimizer.zero_grad()"
    assert found(IN_A_CLASS.replace("FIRST", clear).replace("LAST", "pass")) == [11]
    after = IN_A_CLASS.replace("FIRST", "pass")
    assert found(after.replace("LAST", clear)) == []
    before = after.replace("LAST", "pass").replace("        with", "        self.optimizer.zero_grad()\n        with")
    assert found(before) == []


def test_a_clear_before_the_region_of_one_phase_is_right_for_every_caller() -> None:
    clear = "if (i // 4) % 2 == 0:\n            optimizer.zero_grad()\n        "
    source = with_accelerate(first="pass").replace("for x in loader", "for i, x in enumerate(loader)")
    source = source.replace("with accel", clear + "with accel")
    assert check_source(source + "if __name__ == '__main__':\n    train(model, loader, args)\n") == []


def test_two_phases_that_alternate_clear_before_the_region() -> None:
    source = """
from accelerate import Accelerator
def train(model, critic, optimizer, other, loader, args):
    accelerator = Accelerator(gradient_accumulation_steps=args.steps)
    model, critic, optimizer, other = accelerator.prepare(model, critic, optimizer, other)
    for i, x in enumerate(loader):
        first = (i // args.steps) % 2 == 0
        if first:
            optimizer.zero_grad()
        else:
            other.zero_grad()
        if first:
            with accelerator.accumulate(model):
                accelerator.backward(model(x).mean())
                optimizer.step()
        else:
            with accelerator.accumulate(critic):
                accelerator.backward(critic(x).mean())
                other.step()
"""
    assert found(source) == []


def test_a_path_without_the_accelerator_has_a_window_of_its_own() -> None:
    source = """
class Trainer:
    def step(self, model, optimizer, x, ends):
        if self.with_accelerate:
            with self.accelerator.accumulate(model):
                self.accelerator.backward(model(x))
                optimizer.step()
                optimizer.zero_grad()
        else:
            self.amp.start(model(x)).backward()
            if ends and self.steps:
                optimizer.step()
            if ends:
                optimizer.zero_grad()
    def fit(self, model, optimizer, loader, k):
        for i, x in enumerate(loader):
            self.step(model, optimizer, x, (i + 1) % k == 0)
"""
    assert found(source) == []


def test_the_last_microbatch_of_all_ends_a_window_too() -> None:
    source = """
def fit(model, optimizer, loader, k, amp):
    for i, x in enumerate(loader):
        ends = (i + 1) % k == 0 or i + 1 == len(loader)
        model(x).mean().backward()
        if ends and amp:
            optimizer.step()
        if ends:
            optimizer.zero_grad()
"""
    assert found(source) == []


def test_an_optimizer_that_other_code_prepared_clears_in_the_same_microbatch() -> None:
    source = """
def train(accelerator, model, optimizer, loader):
    for x in loader:
        with accelerator.accumulate(model):
            loss = model(x).mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
"""
    assert found(source) == []
    late = source.replace("            optimizer.zero_grad()\n", "")
    assert found(late.replace("            loss =", "            optimizer.zero_grad()\n            loss =")) == [5]
