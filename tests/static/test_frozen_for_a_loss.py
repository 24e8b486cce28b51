"""Modules that are frozen during one forward: the loss of this forward leaves their gradients as they are."""

from __future__ import annotations

import pytest
from marks import marks, places

from pytest_amp_check import check_source

#: The discriminator's gradients are cleared before the generator's backward, which adds to them unless it is frozen.
PROGRAM = """\
import torch

def set_trainable(net, on):
    for p in net.parameters():
        p.requires_grad = on

def toggle(net, on):
    for p in net.parameters():
        p.requires_grad_(on)

def train(gen, disc, loader):
    opt_g = torch.optim.Adam(gen.parameters())
    opt_d = torch.optim.Adam(disc.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        with torch.autocast("cuda"):
            fake = gen(x)
            loss_d = disc(fake.detach()).mean() - disc(x).mean()
        scaler.scale(loss_d).backward()
        scaler.step(opt_d)
        opt_d.zero_grad()
        {before}
        with torch.autocast("cuda"):
            loss_g = disc(fake).mean()
        {after}
        scaler.scale(loss_g).backward()
        scaler.step(opt_g)
        opt_g.zero_grad()
        scaler.update()  # AMP207
"""
FROZEN = {
    "the method": ("disc.requires_grad_(False)", "disc.requires_grad_()"),
    "the method by name": ("disc.requires_grad_(requires_grad=False)", "disc.requires_grad_(requires_grad=True)"),
    "a helper that assigns": ("set_trainable(disc, False)", "set_trainable(disc, True)"),
    "a helper that calls": ("toggle(disc, on=False)", "toggle(disc, on=True)"),
    "a loop": ("for p in disc.parameters(): p.requires_grad = False", "toggle(disc, True)"),
}
TRAINED = {
    "nothing": ("pass", "pass"),
    "after the forward": ("pass", "disc.requires_grad_(False); disc.requires_grad_(True)"),
    "the other module": ("set_trainable(opt_g, False)", "pass"),
    "trained again before the forward": ("toggle(disc, False); toggle(disc, True)", "pass"),
    "some parameters": (
        "for n, p in disc.named_parameters():\n            if 'norm' in n: p.requires_grad = False",
        "pass",
    ),
}


@pytest.mark.parametrize(("before", "after"), FROZEN.values(), ids=FROZEN)
def test_a_frozen_module_gets_no_gradients(before: str, after: str) -> None:
    assert places(check_source(PROGRAM.format(before=before, after=after))) == set()


@pytest.mark.parametrize(("before", "after"), TRAINED.values(), ids=TRAINED)
def test_a_trained_module_gets_gradients(before: str, after: str) -> None:
    program = PROGRAM.format(before=before, after=after)
    assert places(check_source(program)) == marks(program)


#: Models of other code, in a loop over batches that other code runs.
UNKNOWN = """\
import torch

class Trainer:
    def __init__(self, parts):
        self.parts = parts
        if torch.cuda.is_available():
            self.scaler = torch.amp.GradScaler("cuda", enabled=parts.fast)
        else:
            self.scaler = torch.amp.GradScaler("cpu", enabled=parts.fast_on_cpu)

    def prepare(self, kind):
        self.opt_g = kind(self.parts.gen.parameters())
        self.opt_d = kind(self.parts.disc.parameters())

    def fit(self, loader):
        for x in loader:
            self.step(x)

    def adversarial(self, fake):
        self.parts.disc.requires_grad_(False)
        return self.parts.disc(fake).mean()

    def step(self, x):
        with torch.autocast("cuda"):
            fake = self.parts.gen(x)
            loss_d = self.parts.disc(fake.detach()).mean() - self.parts.disc(x).mean()
        self.scaler.scale(loss_d).backward()
        self.scaler.step(self.opt_d)
        self.opt_d.zero_grad()
        with torch.autocast("cuda"):
            loss_g = self.adversarial(fake)
        self.scaler.scale(loss_g).backward()
        self.scaler.step(self.opt_g)
        self.opt_g.zero_grad()
        self.scaler.update()
"""


def test_unknown_models_may_be_frozen() -> None:
    assert places(check_source(UNKNOWN)) == set()


def test_gradients_that_wait_for_their_step_are_old_after_an_update() -> None:
    early = UNKNOWN.replace("        self.scaler.step(self.opt_d)\n        self.opt_d.zero_grad()\n", "").replace(
        "        self.scaler.update()\n",
        """\
        self.scaler.update()  # AMP207
        self.scaler.step(self.opt_d)
        self.opt_d.zero_grad()
""",
    )
    assert places(check_source(early)) == marks(early)
