"""AMP304 for two optimizers from elsewhere, of which one is cleared in every micro-batch of its window."""

from __future__ import annotations

import pytest

from pytest_amp_check import check_source

LOOP = """\
import torch

def train(gen, disc, data, k, optimizers):
    g_opt, d_opt = optimizers
    for i, x in enumerate(data):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            g_loss, d_loss = gen(x).mean() / k, disc(x).mean() / k
        {clear_g}
        g_loss.backward()
        if (i + 1) % k == 0:
            g_opt.step()
            {after_g}
        {clear_d}
        d_loss.backward()
        if (i + 1) % k == 0:
            d_opt.step()
            {after_d}
"""
LIGHTNING = """\
import torch
import lightning as L

class Model(L.LightningModule):
    def __init__(self, gen, disc, k):
        super().__init__()
        self.automatic_optimization = False
        self.gen, self.disc, self.k = gen, disc, k

    def training_step(self, batch, batch_idx):
        g_opt, d_opt = self.optimizers()
        g_opt.zero_grad()
        self.manual_backward(self.gen(batch).mean() / self.k)
        if (batch_idx + 1) % self.k == 0:
            g_opt.step()
        d_opt.zero_grad()
        self.manual_backward(self.disc(batch).mean() / self.k)
        if (batch_idx + 1) % self.k == 0:
            d_opt.step()
"""
CRITICS = """\
import torch

def train(gen, disc, data, k, optimizers):
    g_opt, d_opt = optimizers
    for i, x in enumerate(data):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            d_loss = disc(gen(x).detach()).mean()
        d_opt.zero_grad()
        g_opt.zero_grad()
        d_loss.backward()
        d_opt.step()
        if (i + 1) % k == 0:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                g_loss = disc(gen(x)).mean()
            g_loss.backward()
            g_opt.step()
"""


def cleared(text: str) -> list[str]:
    rows = text.splitlines()
    return [rows[each.line - 1].strip() for each in check_source(text) if each.label == "zero@window"]


def loop(**parts: str) -> str:
    return LOOP.format(**{"clear_g": "", "after_g": "", "clear_d": "", "after_d": ""} | parts)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"clear_g": "g_opt.zero_grad()", "after_d": "d_opt.zero_grad()"}, ["g_opt.zero_grad()"]),
        ({"after_g": "g_opt.zero_grad()", "clear_d": "d_opt.zero_grad()"}, ["d_opt.zero_grad()"]),
        (
            {"clear_g": "g_opt.zero_grad()", "clear_d": "d_opt.zero_grad()"},
            ["g_opt.zero_grad()", "d_opt.zero_grad()"],
        ),
        ({"after_g": "g_opt.zero_grad()", "after_d": "d_opt.zero_grad()"}, []),
        ({"clear_g": "if i % k == 0: g_opt.zero_grad()", "after_d": "d_opt.zero_grad()"}, []),
    ],
)
def test_the_clear_in_every_micro_batch_is_found(parts: dict[str, str], expected: list[str]) -> None:
    assert cleared(loop(**parts)) == expected


def test_both_clears_of_a_manual_optimization_are_found() -> None:
    assert cleared(LIGHTNING) == ["g_opt.zero_grad()", "d_opt.zero_grad()"]


def test_a_generator_with_several_steps_of_its_critic_has_no_window() -> None:
    assert cleared(CRITICS) == []
