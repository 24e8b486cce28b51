"""Events of traces without which a message cannot be believed."""

from __future__ import annotations

import pytest

from pytest_amp_check import check_source

HEAD = """\
import torch
from torch import nn

model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
"""


def traced(body: str, code: str, head: str = HEAD) -> list[str]:
    """Return the source lines of the trace of the only finding of a rule."""
    text = head + body
    (finding,) = (finding for finding in check_source(text) if finding.code == code)
    rows = text.splitlines()
    return [rows[step.site.line - 1].strip() for step in finding.trace]


@pytest.mark.parametrize("name", ["loss", "scaled"])
def test_the_line_that_scales_a_loss_is_shown_if_backward_stands_elsewhere(name: str) -> None:
    body = f"""
for x in batches:
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(x).mean()
    {name} = scaler.scale(loss)
    {name}.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    assert traced(body, "AMP204") == [f"{name} = scaler.scale(loss)", f"{name}.backward()", "optimizer.step()"]


def test_a_loss_that_is_scaled_in_the_line_of_its_backward_is_shown_once() -> None:
    body = """
for x in batches:
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(x).mean()
    scaler.scale(loss).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    assert traced(body, "AMP204") == ["scaler.scale(loss).backward()", "optimizer.step()"]


def test_a_loss_outside_shows_the_region_of_the_forward() -> None:
    body = """
for x, y in batches:
    with torch.autocast("cuda", dtype=torch.float16):
        output = model(x)
    with torch.autocast("cuda", dtype=torch.float16):
        other = y * 2
    loss = nn.functional.cross_entropy(output, y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
    shown = traced(body, "AMP104")
    assert shown[0] == 'with torch.autocast("cuda", dtype=torch.float16):'
    assert shown[1:] == ["output = model(x)", "loss = nn.functional.cross_entropy(output, y)"]


def test_a_clip_in_a_window_shows_its_step() -> None:
    body = """
for i, x in enumerate(batches):
    loss = model(x).mean() / 4
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
    assert traced(body, "AMP304")[-1] == "optimizer.step()"


def test_uncleared_gradients_show_the_step_before() -> None:
    body = """
for x in batches:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(x).mean()
    loss.backward()
    optimizer.step()
"""
    assert traced(body, "AMP215", HEAD.replace("scaler", "unused")) == ["optimizer.step()", "loss.backward()"]


def test_a_checkpoint_without_its_scaler_shows_where_the_scaler_is_constructed() -> None:
    body = """
for x in batches:
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(x).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
torch.save({"optimizer": optimizer.state_dict()}, "last.pt")
"""
    assert traced(body, "AMP401") == [
        'scaler = torch.amp.GradScaler("cuda")',
        'torch.save({"optimizer": optimizer.state_dict()}, "last.pt")',
    ]
