"""Advice of a run, and the evidence for the advice."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pytest_amp_check import Run, record


def trained(model: nn.Module, x: torch.Tensor, scale: float, steps: int, factor: float = 1.0, **parts: Any) -> Run:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    with record(model, **parts) as run:
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = model(x).float().mean() * factor
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return run


def one_weight(value: float) -> nn.Module:
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(value)
    return model


def test_an_initial_scale_that_spares_the_first_skips() -> None:
    # The gradient in float16 is the scale times 4, which is infinite from 2**14 on.
    run = trained(one_weight(1.0), torch.ones(1, 1), 2.0**16, 6, factor=4.0)
    assert [step.skipped for step in run.steps] == [True, True, True, False, False, False]
    (advice,) = run.advice()
    assert (advice.about, advice.what) == ("initial scale", "construct scaler with init_scale=2.0**13")
    assert advice.evidence == (
        "steps 0 to 2 were skipped while the scale fell from 65536 to 8192, where step 3 was taken"
    )
    # The advice is correct: a run from this scale skips nothing, and has no advice.
    again = trained(one_weight(1.0), torch.ones(1, 1), 2.0**13, 6, factor=4.0)
    assert (again.skipped_total, again.advice()) == (0, [])


def test_no_scale_is_known_where_no_step_is_taken() -> None:
    assert trained(one_weight(1.0), torch.ones(1, 1), 2.0**16, 2, factor=4.0).advice() == []


def test_modules_that_underflow() -> None:
    model = nn.ModuleDict({"large": nn.Linear(1, 1), "small": nn.Linear(1, 3)})
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    with record(model, numerics=True) as run:
        x = torch.ones(1, 1)
        # The weights of the second have scaled gradients of 2**-29, which float16 rounds to zero.
        scaler.scale(model["large"](x).sum() + model["small"](x).sum() * 2.0**-30).backward()
        scaler.step(optimizer)
        scaler.update()
    (advice,) = run.advice()
    assert advice.about == "underflow"
    assert advice.what == "run `small` in an autocast region that is off, or let the scale grow"
    assert advice.evidence == "float16 rounds 100.0% of its gradients to zero at a loss scale of 2"


@pytest.mark.parametrize(("size", "reported"), [(32000.0, ["0", "1"]), (8000.0, [])])
def test_modules_that_lack_headroom(size: float, reported: list[str]) -> None:
    run = trained(one_weight(1.0), torch.full((1, 1), size), 2.0**-8, 2, numerics=True, dtypes=True)
    advice = [each for each in run.advice() if each.about == "headroom"]
    # The advice about the whole model equals the advice about its last module.
    assert sorted({each.what.split("`")[1] for each in advice} & {"0", "1"}) == reported
    if reported:
        assert advice[0].evidence == "its outputs reach 3.2e+04, and float16 ends at 65504, 2.0 times as much"


def test_what_a_budget_is_spent_on() -> None:
    model = nn.Linear(256, 256, bias=False)
    run = trained(model, torch.ones(1, 256), 1.0, 2, memory=True)
    assert run.memory is not None
    (cost,) = run.advice()
    assert cost.evidence == (
        "mixed precision needs more memory than float32 here, because autocast keeps copies of the weights of "
        "128.00 KiB for the backward pass, more than the 0 B of activations that it saves"
    )
    run.assert_memory(peak=run.memory.peak)
    first, *advice = run.advice()
    assert str(first) == str(cost)
    largest = run.memory.contributors(most=1)[0]
    assert {each.about for each in advice} == {"memory"}
    assert advice[0].evidence.startswith("the peak is 100% of the budget of ")
    assert f"the largest are {largest[1]} ({largest[0]}) 256.00 KiB, " in advice[0].evidence
    assert len(advice[0].evidence.split("; ")) == 6
    # A batch of one has no half, SGD has no implementation that needs less, and all memory is in weights.
    low = next(each for each in run.memory.what_if() if each.kind == "weights")
    assert low.peak is not None
    assert [each.what for each in advice[1:]] == [low.how]
    share = low.peak / run.memory.peak
    assert f", {share:.0%} of the budget, " in advice[1].evidence
    assert advice[1].evidence.endswith(f" less ({1 - share:.0%})")
    run.assert_memory(peak="1 GiB")
    assert [str(each) for each in run.advice()] == [str(cost)]


class Row(nn.Module):
    """Equal layers whose activations dominate the memory: 32 activations of 12 KiB each for a batch of 192."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 8)) for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).sigmoid()
        return x


@pytest.fixture(scope="module")
def measured_row() -> Run:
    """A run whose memory is measured, for several budgets: most of their work is the recording."""
    return trained(Row(), torch.randn(192, 8), 1.0, 2, memory=True)


@pytest.mark.parametrize(
    ("part", "reported"),
    [
        # The smallest change that suffices for nine tenths of the budget.
        (1.0, ["checkpoint every second of layers (8 modules)", "2 parts"]),
        (0.6, ["checkpoint layers (8 modules)", "4 parts"]),
        # No change suffices: the change that saves most.
        (0.01, ["checkpoint layers (8 modules)", "4 parts"]),
    ],
)
def test_what_would_make_a_budget_do(part: float, reported: list[str], measured_row: Run) -> None:
    run = measured_row
    memory = run.memory
    assert memory is not None
    memory.budget = int(memory.peak * part)
    kinds = {each.change if each.kind == "checkpoint" else each.how: each for each in memory.what_if()}
    whats = [each.what for each in run.advice()[1:]]
    assert len(whats) == len({kinds[what].kind for what in whats})
    for words in reported:
        assert any(words in what for what in whats), whats
    # A smaller batch would change the training.
    assert "batch" not in {kinds[what].kind for what in whats}
    saved = [kinds[what].saved or 0 for what in whats]
    assert saved == sorted(saved, reverse=True)


def test_it_is_plain_data_too() -> None:
    run = trained(one_weight(1.0), torch.ones(1, 1), 2.0**16, 6, factor=4.0)
    assert run.as_dict()["advice"] == [each.as_dict() for each in run.advice()]
    assert str(run.advice()[0]).startswith("construct scaler with init_scale=2.0**13: steps 0 to 2 were skipped")
