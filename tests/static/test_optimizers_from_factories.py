"""Optimizers that a factory of another file creates by a name in the configuration, or through unanalyzed code."""

from __future__ import annotations

from pathlib import Path

import pytest
from trees import write

from pytest_amp_check import check_paths, check_source

TRAINER = """\
import torch
from parts.factory import build


class Trainer:
    def __init__(self, settings):
        self.net = assemble(settings["net"])
        {assigned}
        self.scaler = torch.amp.GradScaler()

    def fit(self, batches):
        for batch in batches:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = self.net(batch)
            self.scaler.scale(loss).backward()
            {unscale}
            torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
"""
FACTORY = """\
import torch
from torch import optim


def build(settings, net):
    names = net.names_without_decay()
    {made}
    return {result}
"""
UNSCALE = "self.scaler.unscale_(self.optimizer)"
PAIR = "self.optimizer, self.schedule = build(settings, self.net)"


@pytest.mark.parametrize(
    ("assigned", "made", "result"),
    [
        (PAIR, "made = getattr(torch.optim, settings.pop('kind'))(params=split(net, names))", "made, None"),
        (PAIR, "made = getattr(optim, settings['kind'])(split(net, names), **settings)", "made, None"),
        (PAIR, "made = assembled(names)", "made, None"),
        (PAIR, "made = assembled(names)", "[made, schedule_of(made)]"),
        ("self.optimizer = build(settings, self.net)[0]", "made = assembled(names)", "made, None"),
        ("self.optimizer = build(settings, self.net)", "made = assembled(names)", "made"),
        ("self.optimizer: object = build(settings, self.net)", "made = assembled(names)", "made"),
        ("(self.optimizer, _), self.rate = build(settings, self.net), 3", "made = assembled(names)", "made, None"),
    ],
)
def test_an_optimizer_that_a_factory_creates_is_stepped(tmp_path: Path, assigned: str, made: str, result: str) -> None:
    factory = FACTORY.format(made=made, result=result)
    for unscale, expected in ((f"{UNSCALE}; {UNSCALE}", {"AMP209"}), (UNSCALE, set()), ("", {"AMP201"})):
        trainer = TRAINER.format(assigned=assigned, unscale=unscale)
        write(tmp_path, f"=== parts/factory.py\n{factory}=== trainer.py\n{trainer}")
        assert {finding.code for finding in check_paths([str(tmp_path)]).findings} == expected


@pytest.mark.parametrize("kind", ["name", "settings.kind", "'Ad' + name", "names[0]"])
def test_an_optimizer_by_a_name_that_is_not_known(kind: str) -> None:
    text = f"""\
import torch


def train(net, batches, name, names, settings):
    optimizer = getattr(torch.optim, {kind})(net.parameters(), lr=0.1)
    schedule = getattr(torch.optim.lr_scheduler, {kind})(optimizer)
    scaler = torch.amp.GradScaler()
    for batch in batches:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = net(batch).mean()
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
"""
    assert [(finding.code, finding.line) for finding in check_source(text, "a.py")] == [("AMP201", 13)]
    right = text.replace("        torch.nn", "        scaler.unscale_(optimizer)\n        torch.nn")
    assert check_source(right, "a.py") == []
