"""Gradients that the loss of one optimizer leaves in the parameters of another optimizer, which steps them later."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

#: The generator's loss passes through the discriminator, which keeps its gradients unless something clears them.
PROGRAM = """\
import torch
from torch import nn

def freeze(net, on):
    for p in net.parameters():
        p.requires_grad_(not on)

def train(gen, disc, encoder, loader):
    opt_g = torch.optim.Adam(gen.parameters())
    opt_d = torch.optim.Adam(disc.parameters())
    opt_e = torch.optim.Adam(encoder.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        opt_g.zero_grad()
        {start}
        with torch.autocast("cuda"):
            fake = gen(x)
            loss_g = {loss_g}
        {generator}
        {between}
        with torch.autocast("cuda"):
            loss_d = {loss_d}
        {discriminator}
        {end}
"""
RIGHT = {
    "start": "pass",
    "loss_g": "-disc(fake).mean()",
    "generator": "scaler.scale(loss_g).backward(); scaler.step(opt_g)",
    "between": "opt_d.zero_grad()",
    "loss_d": "disc(fake.detach()).mean() - disc(x).mean()",
    "discriminator": "scaler.scale(loss_d).backward(); scaler.step(opt_d); scaler.update()",
    "end": "pass",
}
LATE = {"between": "pass", "end": "opt_d.zero_grad()"}
PLAIN = {"generator": "loss_g.backward(); opt_g.step()", "discriminator": "loss_d.backward(); opt_d.step()"}
UNSCALED = (
    "scaler.scale(loss_d).backward(); scaler.unscale_(opt_d); "
    "nn.utils.clip_grad_norm_(disc.parameters(), 1.0); scaler.step(opt_d); scaler.update()"
)
TWICE = "scaler.scale(-disc(x).mean()).backward(); scaler.scale(loss_d).backward(); scaler.step(opt_d); scaler.update()"
SHARED = {
    # The encoder is trained by both losses on purpose.
    "start": "opt_e.zero_grad(); opt_d.zero_grad()",
    "between": "pass",
    "loss_g": "gen(encoder(x)).mean()",
    "loss_d": "disc(encoder(x)).mean()",
    "discriminator": ("scaler.scale(loss_d).backward(); scaler.step(opt_d); scaler.step(opt_e); scaler.update()"),
}


def found(**parts: str) -> list[str]:
    findings = check_source(PROGRAM.format(**{**RIGHT, **parts}), "train.py")
    return [finding.label for finding in findings if finding.code == "AMP215"]


@pytest.mark.parametrize(
    "parts",
    [
        LATE,
        {**LATE, **PLAIN},
        {**LATE, "discriminator": UNSCALED},
        {**LATE, "discriminator": TWICE},
        {**LATE, "loss_g": "-disc(fake).mean() + (fake - x).abs().mean()"},
        {**LATE, "end": "disc.zero_grad()"},
        {**LATE, "start": "freeze(disc, False)"},
    ],
)
def test_gradients_of_the_other_loss_are_stepped(parts: dict[str, str]) -> None:
    assert found(**parts) == ["backward@leftover"]


@pytest.mark.parametrize(
    "parts",
    [
        {},
        PLAIN,
        {"between": "disc.zero_grad(set_to_none=True)"},
        {"between": "for p in disc.parameters(): p.grad = None"},
        {**LATE, "start": "freeze(disc, True)", "between": "freeze(disc, False)"},
        # Neither loss reaches the parameters of the other optimizer.
        {**LATE, "loss_g": "-disc(fake).detach().mean() + fake.mean()"},
        # Both losses are meant.
        SHARED,
        {**LATE, "generator": "scaler.scale(loss_g).backward()", "end": "scaler.step(opt_g); opt_d.zero_grad()"},
    ],
)
def test_gradients_of_the_other_loss_are_cleared_or_meant(parts: dict[str, str]) -> None:
    assert found(**parts) == []


def test_the_finding_is_no_certain_one_and_names_the_optimizer() -> None:
    (finding,) = [x for x in check_source(PROGRAM.format(**{**RIGHT, **LATE})) if x.label == "backward@leftover"]
    assert finding.code == "AMP215"
    assert not finding.certain
    assert "`opt_d.zero_grad()`" in finding.message
    assert finding.line == 23
