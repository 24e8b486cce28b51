"""Several scalers in one training: in variables, lists and dicts. Each has its own steps and updates."""

from __future__ import annotations

import pytest

from pytest_amp_check import check_source

GAN = """\
import torch
from torch.amp import GradScaler, autocast


def train(g, d, opt_g, opt_d, loader):
    {made}
    for x in loader:
        opt_g.zero_grad()
        with autocast("cuda"):
            loss = g(x).mean()
        {g}.scale(loss).backward()
        {g}.unscale_(opt_g)
        torch.nn.utils.clip_grad_norm_(g.parameters(), 1.0)
        {g}.step(opt_g)
        {early}
        opt_d.zero_grad()
        with autocast("cuda"):
            loss = d(x).mean()
        {d}.scale(loss).backward()
        {d}.step(opt_d)
        {late}
"""
NAMES = [
    ('scaler_g, scaler_d = GradScaler("cuda"), GradScaler("cuda")', "scaler_g", "scaler_d"),
    ('scalers = [GradScaler("cuda"), GradScaler("cuda")]', "scalers[0]", "scalers[1]"),
    ('scalers = {"g": GradScaler("cuda"), "d": GradScaler("cuda")}', 'scalers["g"]', 'scalers["d"]'),
]


@pytest.mark.parametrize(("made", "g", "d"), NAMES)
@pytest.mark.parametrize(
    ("early", "late", "expected"),
    [
        ("{g}.update()", "{d}.update()", []),
        ("pass", "{g}.update(); {d}.update()", []),
        ("pass", "{d}.update(); {g}.update()", []),
        ("pass", "{d}.update()", [("AMP206", 14)]),
        ("{g}.update()", "pass", [("AMP206", 20)]),
        ("pass", "pass", [("AMP206", 14), ("AMP206", 20)]),
    ],
)
def test_each_scaler_needs_its_own_update(
    made: str, g: str, d: str, early: str, late: str, expected: list[tuple[str, int]]
) -> None:
    text = GAN.format(made=made, g=g, d=d, early=early.format(g=g), late=late.format(g=g, d=d))
    assert [(finding.code, finding.line) for finding in check_source(text, "train.py")] == expected


LOOP = """\
import torch
from torch.amp import GradScaler, autocast


def train(models, optimizers, loader):
    {made}
    for x in loader:
        for key in models:
            optimizers[key].zero_grad()
            with autocast("cuda"):
                loss = models[key](x).mean()
            {scaled}.backward()
            {unscale}
            torch.nn.utils.clip_grad_norm_(models[key].parameters(), 1.0)
            {step}
            {update}
"""
RIGHT = {
    "scaled": "scalers[key].scale(loss)",
    "unscale": "scalers[key].unscale_(optimizers[key])",
    "step": "scalers[key].step(optimizers[key])",
    "update": "scalers[key].update()",
}


@pytest.mark.parametrize(
    "made",
    [
        'scalers = {key: GradScaler("cuda") for key in models}',
        'scalers = [GradScaler("cuda") for _ in range(len(models))]',
        'scalers = []\n    for _ in models:\n        scalers.append(GradScaler("cuda"))',
    ],
)
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"scaled": "loss"}, ["AMP203"]),
        ({"unscale": "pass"}, ["AMP201"]),
        ({"step": "optimizers[key].step()"}, ["AMP204"]),
        ({"update": "pass"}, ["AMP206"]),
    ],
)
def test_scalers_of_a_container(made: str, change: dict[str, str], expected: list[str]) -> None:
    found = check_source(LOOP.format(made=made, **{**RIGHT, **change}), "train.py")
    assert [finding.code for finding in found] == expected


#: Two losses of unknown modules, accumulated for two unknown optimizers, which two scalers or one of them step.
WINDOWS = """\
import torch


def run(first, second, loader, one, two, k):
    a, b = torch.amp.GradScaler("cuda"), torch.amp.GradScaler("cuda")
    for i, x in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            left = {left}
            right = {right}
        a.scale(left).backward()
        b.scale(right).backward()
        if (i + 1) % k == 0:
            a.step(one)
            a.update()
            one.zero_grad()
            {step}
            b.update()
            two.zero_grad()
"""
PART, WHOLE = "{}(x).mean() / k", "{}(x).mean()"


@pytest.mark.parametrize(
    ("left", "right", "step", "lines"),
    [
        (PART, PART, "b.step(two)", []),
        (PART, WHOLE, "b.step(two)", [11]),
        (WHOLE, PART, "b.step(two)", [10]),
        (WHOLE, WHOLE, "b.step(two)", [10, 11]),
        # A scaler that steps both optimizers says nothing about whose loss it scales.
        (PART, WHOLE, "b.step(one)\n            b.step(two)", []),
    ],
)
def test_each_loss_of_a_window_belongs_to_the_optimizers_of_its_scaler(
    left: str, right: str, step: str, lines: list[int]
) -> None:
    source = WINDOWS.format(left=left.format("first"), right=right.format("second"), step=step)
    assert [each.line for each in check_source(source, "train.py") if each.code == "AMP301"] == lines
