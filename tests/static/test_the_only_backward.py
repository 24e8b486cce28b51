"""Backwards whose targets are unknown: the only one of a loop reaches all optimizers that step in the loop."""

from __future__ import annotations

from textwrap import indent

import pytest

from pytest_amp_check.static.engine import check_source

HEAD = """\
import torch
from torch.nn import functional as F

def train(k, net, encoder, decoder, loader, scaler: torch.amp.GradScaler, flag):
    a = torch.optim.AdamW(encoder)
    b = torch.optim.AdamW(decoder)
    both = [a, b]
"""
WINDOW = """\
for i, (x, y) in enumerate(loader):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.mse_loss(net(x), y){divided}
    scaler.scale(loss).backward()
    if (i + 1) % k == 0:
        {step}
        scaler.update()
        {clear}
"""
STEPS = {
    "one by one": ("scaler.step(a); scaler.step(b)", "a.zero_grad(); b.zero_grad()"),
    "a list": ("for o in both: scaler.step(o)", "for o in both: o.zero_grad()"),
    "a literal": ("for o in (a, b): scaler.step(o)", "for o in [a, b]: o.zero_grad()"),
}


def codes(body: str) -> set[str]:
    source = HEAD + indent(body, "    ")
    return {finding.code for finding in check_source(source, "train.py") if finding.severity != "info"}


@pytest.mark.parametrize("way", STEPS)
def test_one_loss_for_two_optimizers(way: str) -> None:
    step, clear = STEPS[way]
    assert codes(WINDOW.format(step=step, clear=clear, divided="")) == {"AMP301"}
    assert codes(WINDOW.format(step=step, clear=clear, divided=" / k")) == set()


BRANCHES = """\
for i, (x, y) in enumerate(loader):
    loss = F.mse_loss(net(x), y){divided}
    if flag:
        scaler.scale(loss).backward()
    else:
        loss.backward()
    if (i + 1) % k == 0:
        if flag:
            scaler.step(a)
            scaler.step(b)
            scaler.update()
        else:
            a.step()
            b.step()
        a.zero_grad()
        b.zero_grad()
"""


def test_the_branch_without_a_scaler() -> None:
    assert "AMP301" in codes(BRANCHES.format(divided=""))
    assert "AMP301" not in codes(BRANCHES.format(divided=" / k"))


PHASES = """\
step = {first}
for x in loader:
    loss = net(x).mean() / k
    loss.backward()
    if step % k == 0:
        a.step()
        a.zero_grad()
    step += 1
for x in loader:
    loss = net(x).mean()
    loss.backward()
    b.step()
    b.zero_grad()
with torch.autocast("cuda"):
    net(x)
"""


def test_optimizers_trained_one_after_the_other() -> None:
    assert codes(PHASES.format(first=0)) == {"AMP304"}
    assert codes(PHASES.format(first=1)) == set()


ALTERNATING = """\
for i, (x, y) in enumerate(loader):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.mse_loss(net(x), y)
    scaler.scale(loss).backward()
    if {test}:
        scaler.step(a)
        a.zero_grad()
    else:
        scaler.step(b)
        b.zero_grad()
    scaler.update()
"""


@pytest.mark.parametrize("test", ["i % 2 == 0", "flag", "y.sum() > 0"])
def test_optimizers_that_alternate(test: str) -> None:
    assert codes(ALTERNATING.format(test=test)) == set()


GAN = """\
for i, (x, y) in enumerate(loader):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.mse_loss(net(x), y) / k
        other = F.l1_loss(net(x), y) / k
    scaler.scale(loss).backward()
    if (i + 1) % k == 0:
        scaler.step(a)
    a.zero_grad()
    scaler.scale(other).backward()
    if (i + 1) % k == 0:
        scaler.step(b)
        scaler.update()
        b.zero_grad()
"""


def test_two_backwards_of_a_loop_may_reach_one_optimizer_each() -> None:
    """Which of the losses reaches ``a`` is unknown, so that nothing is known about its window."""
    assert "AMP301" not in codes(GAN)


ESCAPED = """\
for i, (x, y) in enumerate(loader):
    loss = F.mse_loss(net(x), y)
    loss.backward()
    driver.improve(a, loader)
    a.step()
    scaler.scale(F.l1_loss(net(x), y)).backward()
    scaler.step(b)
    scaler.update()
    a.zero_grad()
    b.zero_grad()
"""


def test_a_plain_step_beside_a_scaled_one() -> None:
    assert "AMP204" not in codes(ESCAPED)
