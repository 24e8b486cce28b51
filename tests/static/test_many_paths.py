"""Programs with more paths than can be enumerated: the analysis of each finishes, without false findings."""

from __future__ import annotations

import pytest
from marks import marks, places, shown

from pytest_amp_check import check_source


def program(size: int, *, last: str, step_mark: str = "") -> str:
    """Return a loop over parts of a model, with separate optimizers and flags that clear, accumulate and step."""
    each = range(size)
    lines = ["import torch", "", "def train(model, loader, flags, parts, losses_of):"]
    lines += ["    scaler = torch.amp.GradScaler('cuda')"]
    lines += [f"    optimizer{i} = torch.optim.SGD(parts[{i}].parameters(), lr=0.1)" for i in each]
    lines += ["    for x, y in loader:"]
    for i in each:
        lines += [f"        if flags.zero{i}:", f"            optimizer{i}.zero_grad()"]
    lines += ["        with torch.autocast('cuda'):", "            losses = losses_of(model, x, y)"]
    for i in each:
        lines += [f"        if flags.part{i}:", f"            scaler.scale(losses[{i}]).backward()"]
    for i in each:
        lines += [f"        if flags.step{i}:", f"            scaler.step(optimizer{i}){step_mark}"]
    return "\n".join([*lines, f"        {last}", ""])


@pytest.mark.parametrize("size", [4, 10, 40])
def test_what_only_an_update_mends_is_said_however_many_ways_there_are(size: int) -> None:
    source = program(size, last="model.eval()", step_mark="  # AMP206")
    findings = check_source(source, "train.py")
    found = places(findings)
    assert found, "a scaler that is never updated was not said"
    assert found <= marks(source), shown(findings)


@pytest.mark.parametrize("size", [4, 10, 40])
def test_right_code_with_very_many_ways_is_no_finding(size: int) -> None:
    assert not check_source(program(size, last="scaler.update()"), "train.py")
