"""Backward passes inside of autocast regions, with regions of their own."""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from pytest_amp_check import record

pytestmark = pytest.mark.usefixtures("patched_once")


class _InRegion(torch.autograd.Function):
    """A function whose backward enters autocast."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return grads[0] * 2


def test_a_region_inside_of_a_backward_does_not_end_the_region_around_the_backward() -> None:
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record() as run:
        for _ in range(2):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                _InRegion.apply(model(torch.ones(4, 8)).float()).square().mean().backward()
                # A finding only while the region is open: the second forward uses casts of the weights before the step.
                optimizer.step()
                model(torch.ones(4, 8))
    assert run.failure is None
    assert [finding.code for finding in run.findings] == ["AMP103", "AMP101"]


@pytest.mark.parametrize("has_product", [True, False])
@pytest.mark.parametrize(("before", "after"), [(True, False), (False, True), (True, True)])
def test_a_region_beside_that_of_the_loss_has_no_part_in_it(before: bool, after: bool, has_product: bool) -> None:
    weight, other = (torch.nn.Parameter(torch.ones(2, 2)) for _ in range(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    float16 = torch.autocast("cpu", dtype=torch.float16)
    with record() as run:
        for _ in range(2):
            optimizer.zero_grad()
            if before:
                with float16:
                    _ = other * 1.0
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = (torch.ones(2, 2) @ weight).sum() if has_product else weight.sum()
            if after:
                with float16:
                    _ = other * 1.0
            loss.backward()
            optimizer.step()
    assert (run.failure, run.findings) == (None, [])


def test_regions_without_a_graph_do_not_displace_that_of_the_loss() -> None:
    """A recording remembers 256 regions."""
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    region = torch.autocast("cpu", dtype=torch.float16)
    with record() as run:
        with region:
            loss = model(torch.ones(4, 8)).float().mean()
        for _ in range(300):
            with region:
                pass
        loss.backward()
        optimizer.step()
    assert run.failure is None
    assert [finding.code for finding in run.findings] == ["AMP502"]


BF16 = torch.bfloat16
LAYER = nn.Linear(2, 2)


def _add_ones() -> None:
    total = torch.tensor(256.0, dtype=BF16)
    for _ in range(20):
        total += 1.0


def _add_integers() -> None:
    total = torch.zeros(2, dtype=BF16)
    for _ in range(4):
        total += torch.full((2,), 300)


def _average() -> None:
    average = torch.ones(8, dtype=BF16)
    for _ in range(4):
        average.add_(torch.ones(8, dtype=BF16), alpha=1e-4)


def _loss_of_low_output() -> None:
    with torch.enable_grad():
        with torch.autocast("cpu", dtype=BF16):
            output = LAYER(torch.ones(4, 2))
        nn.functional.cross_entropy(output, torch.zeros(4, dtype=torch.int64))


def _losses_without_alignment() -> None:
    output = torch.randn(3, 2, 4, requires_grad=True)
    lengths = torch.full((2,), 3), torch.full((2,), 5)
    for _ in range(3):
        with torch.enable_grad():
            nn.functional.ctc_loss(
                output.log_softmax(-1), torch.ones(2, 5, dtype=torch.int64), *lengths, zero_infinity=True
            )


def _checkpoint() -> None:
    with torch.enable_grad():
        checkpoint(LAYER, torch.ones(4, 2), use_reentrant=True)


#: Calls that a run reports outside of a backward pass.
CALLS: dict[str, Callable[[], object]] = {
    "a sum": _add_ones,
    "a count": _add_integers,
    "an average": _average,
    "a range": lambda: torch.arange(300, dtype=BF16),
    "a loss of a low output": _loss_of_low_output,
    "losses without an alignment": _losses_without_alignment,
    "a checkpoint": _checkpoint,
}


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_calls_of_a_hook_inside_of_a_backward_are_no_calls_of_the_training(call: Callable[[], object]) -> None:
    def labels(*, in_hook: bool) -> list[str]:
        LAYER.zero_grad()
        optimizer = torch.optim.SGD(LAYER.parameters(), lr=0.0)
        x = torch.ones(2, requires_grad=True)
        if in_hook:
            x.register_hook(lambda grad: (call(), None)[1])
        with record() as run:
            if not in_hook:
                call()
            torch.autograd.backward(x.sum())
            optimizer.step()
        assert run.failure is None
        return [finding.label for finding in run.findings]

    assert len(labels(in_hook=False)) == 1
    assert labels(in_hook=True) == []
