"""Clips of the parameters of two optimizers, joined in each form, after an unscale of one of them."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

PROGRAM = """\
import itertools

import torch
from torch import nn


class ActorCritic:
    def __init__(self):
        self.actor, self.critic = nn.Linear(4, 2).cuda(), nn.Linear(4, 1).cuda()
        self.first = torch.optim.Adam(self.actor.parameters(), 1e-3)
        self.second = torch.optim.Adam(self.critic.parameters(), 3e-3)
        self.scaler = torch.amp.GradScaler("cuda")

    def update(self, x, y):
        self.first.zero_grad()
        self.second.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(self.critic(x), y) - self.actor(x).mean()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.first)
        {unscale}
        {made}
        nn.utils.clip_grad_norm_({joined}, 0.5)
        self.scaler.step(self.first)
        self.scaler.step(self.second)
        self.scaler.update()
"""
NETS = "(self.actor, self.critic)"
FORMS = {
    "a sum of lists": ("pass", "list(self.actor.parameters()) + list(self.critic.parameters())"),
    "a list of stars": ("pass", "[*self.actor.parameters(), *self.critic.parameters()]"),
    "an augmented list": (
        "params = list(self.actor.parameters()); params += list(self.critic.parameters())",
        "params",
    ),
    "an extended list": (
        "params = list(self.actor.parameters()); params.extend(self.critic.parameters())",
        "params",
    ),
    "a comprehension": ("pass", f"[p for net in {NETS} for p in net.parameters()]"),
    "a generator with a test": ("pass", f"(p for net in {NETS} for p in net.parameters() if p.requires_grad)"),
    "groups of optimizers": (
        "pass",
        "[p for o in (self.first, self.second) for group in o.param_groups for p in group['params']]",
    ),
    "a chain": ("pass", "itertools.chain(self.actor.parameters(), self.critic.parameters())"),
    "a chain of a star": ("pass", f"itertools.chain(*[net.parameters() for net in {NETS}])"),
    "a chain of an iterable": ("pass", f"itertools.chain.from_iterable(net.parameters() for net in {NETS})"),
    "a sum with a start": ("pass", f"sum((list(net.parameters()) for net in {NETS}), [])"),
    "a list of modules": ("pass", f"nn.ModuleList({NETS}).parameters()"),
    "a dict of modules": ("pass", 'nn.ModuleDict({"a": self.actor, "c": self.critic}).parameters()'),
}


@pytest.mark.parametrize("form", FORMS)
def test_joined_parameters(form: str) -> None:
    made, joined = FORMS[form]
    for unscale, expected in (("pass", [("AMP212", 23)]), ("self.scaler.unscale_(self.second)", [])):
        source = PROGRAM.format(unscale=unscale, made=made, joined=joined)
        assert [(each.code, each.line) for each in check_source(source)] == expected


@pytest.mark.parametrize(
    "made",
    [
        "opts = [torch.optim.Adam(net.parameters()) for net in (a, b)]",
        "opts = []\n    for net in (a, b):\n        opts.append(torch.optim.Adam(net.parameters()))",
        'opts = {n: torch.optim.Adam(net.parameters()) for n, net in {"a": a, "b": b}.items()}.values()',
    ],
)
def test_each_iteration_constructs_an_optimizer_of_its_own(made: str) -> None:
    source = f"""\
import torch
from torch import nn

def main(loader):
    a, b = nn.Linear(4, 4).cuda(), nn.Linear(4, 4).cuda()
    {made}
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        for opt in opts:
            opt.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(b(a(x)), y)
        scaler.scale(loss).backward()
        for opt in opts:
            scaler.step(opt)
        scaler.update()
"""
    assert check_source(source) == []
