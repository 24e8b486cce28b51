"""Runs with the sparse gradients of an embedding."""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pytest_amp_check import record

pytestmark = pytest.mark.usefixtures("patched_once")


def _divide_by_scale(embedding: Any) -> None:
    embedding.weight.grad.div_(2.0**8)


def _clamp_values(embedding: Any) -> None:
    embedding.weight.grad._values().clamp_(-1e-3, 1e-3)


def _read_norm(embedding: Any) -> None:
    embedding.weight.grad._values().norm().item()


def _average(embedding: Any) -> None:
    embedding.weight.grad.mul_(0.5)


def _sum_up(embedding: Any) -> None:
    embedding.weight.grad = embedding.weight.grad.coalesce()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (_divide_by_scale, ["step@divided"]),
        (_clamp_values, ["edit@scaled"]),
        (_read_norm, ["read@scaled"]),
        (_average, []),
        (_sum_up, []),
    ],
)
def test_changes_of_scaled_gradients(change: Callable[[Any], None], expected: list[str]) -> None:
    torch.manual_seed(0)
    embedding = nn.Embedding(8, 4, sparse=True)
    optimizer = torch.optim.SGD(embedding.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    with record() as run:
        for _ in range(2):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = embedding(torch.arange(4)).square().sum()
            scaler.scale(loss).backward()
            change(embedding)
            scaler.step(optimizer)
            scaler.update()
    assert run.failure is None
    assert [finding.label for finding in run.findings] == expected


@pytest.mark.parametrize("has_dense", [False, True], ids=["sparse gradients", "sparse and dense gradients"])
@pytest.mark.parametrize(("power", "labels"), [(2.0, []), (0.5, ["not-finite:gradient"])])
def test_gradients_without_a_scaler_that_may_not_be_finite(power: float, labels: list[str], *, has_dense: bool) -> None:
    embedding, bias = nn.Embedding(8, 4, sparse=True), nn.Parameter(torch.ones(4))
    # The derivative of the square root is infinite at zero.
    nn.init.zeros_(embedding.weight)
    with record() as run:
        params = [*embedding.parameters(), *([bias] if has_dense else [])]
        optimizer = torch.optim.SGD(params, lr=0.1)
        loss = embedding(torch.arange(4)).pow(power).sum() + bias.sum()
        loss.backward()
        optimizer.step()
    assert run.failure is None
    assert [finding.label for finding in run.findings] == labels
