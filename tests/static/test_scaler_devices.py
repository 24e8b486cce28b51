"""Scalers of one type of device beside autocast for another type."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

PROGRAM = """\
import torch
from contextlib import nullcontext

device = DEVICE
device_type = "cuda" if "cuda" in device else "mps" if "mps" in device else "cpu"
context = nullcontext() if device_type == "cpu" else torch.autocast(device_type, dtype=torch.float16)
scaler = SCALER
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters())
for x in loader:
    optimizer.zero_grad()
    with context:
        loss = model(x).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


@pytest.mark.parametrize(
    ("device", "scaler", "found"),
    [
        ('"mps"', "torch.cuda.amp.GradScaler()", True),
        ('"mps"', "torch.amp.GradScaler('cuda')", True),
        ('"mps"', "torch.amp.GradScaler()", True),
        ('"mps:0"', "torch.amp.GradScaler('cuda', enabled=flag)", True),
        ('"mps"', "torch.amp.GradScaler('mps')", False),
        ('"mps"', "torch.amp.GradScaler(device_type)", False),
        ('"cuda"', "torch.amp.GradScaler('cuda')", False),
        ("args.device", "torch.amp.GradScaler('cuda')", False),
        ('"mps"', "torch.amp.GradScaler('cuda', enabled=False)", False),
        ('"mps"', "torch.amp.GradScaler('cpu')", False),
    ],
)
def test_the_device_of_a_scaler_is_that_of_the_regions(device: str, scaler: str, found: bool) -> None:
    findings = check_source(PROGRAM.replace("DEVICE", device).replace("SCALER", scaler))
    reported = [f for f in findings if f.label == "scaler:other-device"]
    assert len(reported) == found
    assert all((f.names["device"], f.names["other"]) == ("cuda", "mps") for f in reported)


@pytest.mark.parametrize(
    ("regions", "found"),
    [(("xpu",), True), (("cuda",), False), (("xpu", "cuda"), False), (("cpu",), False), ((), False)],
)
def test_regions_of_several_devices_are_no_others(regions: tuple[str, ...], found: bool) -> None:
    entered = "".join(f"    with torch.autocast({device!r}):\n        loss = model(x).mean()\n" for device in regions)
    source = f"""\
import torch

def train(model, optimizer, x):
    scaler = torch.amp.GradScaler("cuda")
    loss = model(x).mean()
{entered}    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
    reported = [(f.names["device"], f.names["other"]) for f in check_source(source) if f.label == "scaler:other-device"]
    assert reported == [("cuda", "xpu")] * found


@pytest.mark.parametrize("none", ["nullcontext()", "nullcontext() if flag else torch.autocast('xpu')"])
def test_a_place_where_no_region_is_entered_is_of_no_device(none: str) -> None:
    source = f"""\
import torch
from contextlib import nullcontext

def train(model, optimizer, x, flag):
    scaler = torch.amp.GradScaler("cuda")
    with {none}:
        loss = model(x).mean()
    with torch.autocast("xpu"):
        loss = loss + model(x).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
    assert [f.names["other"] for f in check_source(source) if f.label == "scaler:other-device"] == ["xpu"]
