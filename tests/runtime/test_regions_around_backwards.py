"""Backward passes inside of autocast regions, with regions of their own."""

# mypy: allow-untyped-calls

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

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
