"""Averages of weights in low precision: a run reports averages that no longer change."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from marks import marks, places, shown

torch = pytest.importorskip("torch")

from agreement import recorded  # noqa: E402 - needs torch
from torch.utils._pytree import tree_map  # noqa: E402

pytestmark = pytest.mark.usefixtures("patched_once")

PROGRAM = """\
import copy
import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
average = copy.deepcopy(model).to({dtype})
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
first = [p.detach().clone() for p in average.parameters()]
for _ in range({iterations}):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.randn(4, 8)).float().square().mean()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for kept, p in zip(average.parameters(), model.parameters()):
            {step}
stands = all(torch.equal(p, q) for p, q in zip(average.parameters(), first))
"""
ADDED = "kept.mul_(0.9999).add_(p.detach().to(kept.dtype), alpha=1e-4)"
MOVED = "kept.lerp_(p.detach().to(kept.dtype), 1e-4)"


def found(tmp_path: Path, dtype: str, step: str, iterations: int = 5) -> tuple[str, bool]:
    """Return the findings of a run as text, and True if the average stopped changing."""
    script = tmp_path / "train.py"
    script.write_text(PROGRAM.format(dtype=dtype, step=step, iterations=iterations), encoding="utf-8")
    left = {}
    run = recorded(lambda: left.update(runpy.run_path(str(script), run_name="__main__")))
    assert (run.failure, run.error) == (None, None)
    assert {finding.filename for finding in run.findings} <= {str(script)}
    assert places(run.findings) == marks(script.read_text(encoding="utf-8"), "runtime"), shown(run.findings)
    return shown(run.findings), bool(left["stands"])


@pytest.mark.parametrize("step", [ADDED, MOVED])
@pytest.mark.parametrize("dtype", ["torch.bfloat16", "torch.float16"])
def test_an_average_that_stands_still_is_reported(tmp_path: Path, step: str, dtype: str) -> None:
    message, stands = found(tmp_path, dtype, step + "  # AMP508")
    assert stands or dtype == "torch.float16", "in float16 some small weights move"
    assert f"no longer changes, because the added values are too small for {dtype.removeprefix('torch.')}" in message


#: In float16, a decay of 0.9995 moves half of the weights by one gap, and the term moves them back.
ROUNDED = "kept.mul_(0.9995).add_(p.detach().to(kept.dtype), alpha=5e-4)"
MANY = """\
import copy
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(40)])
average = copy.deepcopy(model).half()
for _ in range(5):
    with torch.no_grad():
        for kept, p in zip(average.parameters(), model.parameters()):
            p.add_(torch.randn_like(p), alpha=1e-3)
            kept{step}
"""


@pytest.mark.parametrize("step", [ROUNDED, "kept *= 0.9995; kept.add_(p.detach().half(), alpha=5e-4)"])
def test_an_average_in_which_rounding_outweighs_the_steps_is_reported(tmp_path: Path, step: str) -> None:
    message, _ = found(tmp_path, "torch.float16", step + "  # AMP508")
    assert "keeps a moving average in float16, where small updates round to nothing" in message


def test_an_average_of_many_parameters_is_reported(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(MANY.format(step=".lerp_(p.half(), 1e-4)  # AMP508"), encoding="utf-8")
    run = recorded(lambda: runpy.run_path(str(script), run_name="__main__"))
    assert places(run.findings) == marks(script.read_text(encoding="utf-8"), "runtime"), shown(run.findings)


@pytest.mark.parametrize("step", [".mul_(0.9).add_(p.half(), alpha=0.1)", ".mul_(0.5).add_(p.half(), alpha=1e-4)"])
def test_decays_that_float16_follows_are_right(tmp_path: Path, step: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(MANY.format(step=step), encoding="utf-8")
    run = recorded(lambda: runpy.run_path(str(script), run_name="__main__"))
    assert run.findings == [], shown(run.findings)


@pytest.mark.parametrize(
    ("dtype", "step", "iterations"),
    [
        ("torch.float32", ADDED, 5),
        ("torch.float32", MOVED, 5),
        ("torch.bfloat16", "kept.mul_(0.5).add_(p.detach(), alpha=0.5)", 5),
        ("torch.bfloat16", ADDED, 2),
    ],
    ids=["added in float32", "moved in float32", "large steps", "too few steps to tell"],
)
def test_an_average_that_moves_is_right(tmp_path: Path, dtype: str, step: str, iterations: int) -> None:
    found(tmp_path, dtype, step, iterations)


def test_a_slow_average_that_begins_at_zero_is_right() -> None:
    def average() -> None:
        kept = torch.zeros(4, dtype=torch.bfloat16)
        for _ in range(8):
            kept.mul_(1.0 - 2.0**-7)
            kept.add_(torch.ones(4), alpha=2.0**-7)
        # Near zero bfloat16 is fine enough.
        assert kept.float() == pytest.approx([1.0 - (1.0 - 2.0**-7) ** 8] * 4, rel=0.02)

    run = recorded(average)
    assert (run.failure, run.error, run.findings) == (None, None, [])


Step = Callable[[Any], None]


def lerp_to(value: float, weight: float = 1e-4) -> Step:
    return lambda kept: kept.lerp_(torch.full_like(kept, value), weight)


def average_to(distance: float, factor: float, times: float = 1.0) -> Step:
    """Return a step of an average to weights that are always this many times the average, and this far beyond."""

    def step(kept: Any) -> None:
        target = kept.float() * times + distance
        kept.mul_(1.0 - factor)
        kept.add_(target, alpha=factor)

    return step


HALF = torch.float16


@pytest.mark.parametrize(
    ("start", "steps", "expected"),
    [
        ([1.0] * 4, [lerp_to(2.0)] * 3, ["sum:still"]),
        ([1.0], [lerp_to(2.0)] * 3, ["sum:still"]),
        ([1.0] * 4, [lerp_to(2.0)] * 2, []),
        # A step that changes the average starts the count again.
        ([1.0] * 4, [lerp_to(2.0, 0.5), lerp_to(2.0), lerp_to(2.0)], []),
        ([1.0] * 4, [lerp_to(2.0), lerp_to(2.0), lerp_to(2.0, 0.5), lerp_to(2.0)], []),
        ([1.0] * 4, [lerp_to(2.0, 0.5), lerp_to(2.0), lerp_to(2.0), lerp_to(2.0)], ["sum:still"]),
        # One element of ten changes, or two.
        ([2.0**-8, *[1.0] * 9], [lerp_to(2.0)] * 3, ["sum:still"]),
        ([2.0**-8, 2.0**-8, *[1.0] * 8], [lerp_to(2.0)] * 3, []),
        # Weights of zero add nothing that could be lost.
        ([1.0] * 4, [lambda kept: kept.add_(torch.zeros(4), alpha=1e-4)] * 3, []),
        ([0.0] * 4, [average_to(0.0, 2.0**-7)] * 3, []),
        # Each step is as wanted, or a gap between numbers where a twentieth of a gap is wanted.
        ([1.0] * 4, [average_to(0.0, 2.0**-7, times=2.0)] * 3, []),
        ([1.9] * 4, [average_to(0.2, 2.0**-12)] * 3, ["sum:average"]),
        ([1.9] * 4, [average_to(0.2, 2.0**-12)] * 2, []),
        # Factors of more than a hundredth.
        ([1.9] * 4, [average_to(0.02, 0.01)] * 3, ["sum:average"]),
        ([1.9] * 4, [average_to(0.02, 0.011)] * 3, []),
    ],
)
def test_the_steps_of_an_average(start: list[float], steps: list[Step], expected: list[str]) -> None:
    def average() -> None:
        kept = torch.tensor(start, dtype=HALF)
        for step in steps:
            step(kept)

    run = recorded(average)
    assert (run.failure, run.error) == (None, None)
    assert [(finding.label, finding.certain) for finding in run.findings] == [(label, True) for label in expected]


@pytest.mark.parametrize(("others", "is_kept", "is_found"), [(15, True, True), (16, True, False), (16, False, True)])
def test_averages_are_followed_up_to_a_number_while_they_live(others: int, is_kept: bool, is_found: bool) -> None:
    def average() -> None:
        kept = [torch.ones(4, dtype=HALF) for _ in range(others)]
        for i in range(others):
            lerp_to(2.0, 0.5)(kept[i])
        if not is_kept:
            kept.clear()
        last = torch.ones(4, dtype=HALF)
        for _ in range(3):
            lerp_to(2.0)(last)

    run = recorded(average)
    assert (run.failure, run.error) == (None, None)
    assert [finding.label for finding in run.findings] == ["sum:still"] * is_found


@pytest.mark.parametrize(
    ("start", "step", "expected"),
    [
        ([1.0] * 4, lerp_to(2.0), ["sum:still"]),
        ([1.0] * 4, lambda kept: kept.add_(torch.ones(4), alpha=1e-4), ["sum:still"]),
        ([1.9] * 4, average_to(0.2, 2.0**-12), ["sum:average"]),
        ([1.0] * 4, lerp_to(2.0, 0.5), []),
    ],
)
def test_the_steps_of_an_average_in_a_function_that_torch_calls(
    start: list[float], step: Step, expected: list[str]
) -> None:
    def average() -> None:
        kept = torch.tensor(start, dtype=HALF)
        tree_map(step, [kept] * 3)

    run = recorded(average)
    assert (run.failure, run.error) == (None, None)
    assert [finding.label for finding in run.findings] == expected


def test_an_average_that_torch_updates_is_not_the_program_s() -> None:
    def average() -> None:
        model = torch.nn.Linear(4, 4).half()
        updates = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9999)
        averaged = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=updates)
        for _ in range(4):
            averaged.update_parameters(model)

    run = recorded(average)
    assert (run.failure, run.error, run.findings) == (None, None, [])
