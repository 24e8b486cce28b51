"""Runs in which the loss of a generator leaves gradients in the discriminator."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_amp_check import record

pytestmark = pytest.mark.usefixtures("patched_once")


@pytest.mark.parametrize("is_cleared_late", [True, False])
def test_gradients_of_the_generators_loss(*, is_cleared_late: bool) -> None:
    torch.manual_seed(0)
    gen, disc = nn.Linear(4, 4), nn.Linear(4, 1)
    opt_g, opt_d = torch.optim.SGD(gen.parameters(), lr=0.1), torch.optim.SGD(disc.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    with record() as run:
        for _ in range(2):
            x = torch.randn(8, 4)
            opt_g.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                fake = gen(x)
                loss_g = -disc(fake).mean()
            scaler.scale(loss_g).backward()
            scaler.step(opt_g)
            if not is_cleared_late:
                opt_d.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss_d = disc(fake.detach()).mean() - disc(x).mean()
            scaler.scale(loss_d).backward()
            scaler.step(opt_d)
            scaler.update()
            if is_cleared_late:
                opt_d.zero_grad()
    assert {finding.label for finding in run.findings} == ({"backward@leftover"} if is_cleared_late else set())
