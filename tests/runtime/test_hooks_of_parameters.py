"""Hooks that read a scaled gradient, on each of an optimizer's parameters."""

# mypy: allow-untyped-calls

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_amp_check import record

pytestmark = pytest.mark.usefixtures("patched_once")


@pytest.mark.parametrize("hooked", range(5))
def test_a_hook_on_any_of_a_few_parameters_is_seen(hooked: int) -> None:
    model = nn.ParameterList([torch.ones(2) for _ in range(5)])
    sizes = []

    def read_size(grad: torch.Tensor) -> None:
        sizes.append(grad.norm().item())

    model[hooked].register_hook(read_size)
    with record() as run:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
        for _ in range(2):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = torch.stack([(parameter * parameter).sum() for parameter in model]).sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert (run.failure, len(sizes)) == (None, 2)
    assert [finding.label for finding in run.findings] == ["read@scaled"]
    assert run.findings[0].line == read_size.__code__.co_firstlineno + 1
