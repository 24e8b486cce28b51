"""Checkpoints with the states of a collection of optimizers, of which no single optimizer is known."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

PROGRAM = """\
import torch

class Driver:
    def __init__(self, model, optimizers, fp16):
        self.model, self.optimizers, self.others = model, optimizers, optimizers
        self.scaler = torch.amp.GradScaler("cuda", enabled=fp16)

    def backward(self, loss):
        self.scaler.scale(loss).backward()

    def step(self):
        for optimizer in self.optimizers:
            self.scaler.step(optimizer)
        self.scaler.update()

    def save(self, path):
        states, schedules = {{}}, {{}}
        {collect}
        {more}
        torch.save({{"epoch": 3, "model": self.model.state_dict(), "states": states}}, path)

    def load(self, path):
        states = torch.load(path)["states"]
        for number, optimizer in enumerate(self.optimizers):
            optimizer.load_state_dict(states[number])
"""
COLLECTED = {
    "by an index": "for i in range(2): states[f'opt{i}'] = self.optimizers[i].state_dict()",
    "by an index in a list": "states = [self.optimizers[i].state_dict() for i in range(2)]",
    "a list": "states = [each.state_dict() for each in self.optimizers]",
    "a numbered dict": "states = {n: each.state_dict() for n, each in enumerate(self.optimizers)}",
    "items of a dict": "states = {name: o.state_dict() for name, o in self.optimizers.items()}",
    "values of a dict": "states = list(o.state_dict() for o in self.optimizers.values())",
    "a loop": "for name, o in self.optimizers.items(): states[name] = o.state_dict()",
    "in a pair": "states = [(o.state_dict(), 1) for o in self.optimizers]",
}


def lines_found(collect: str, more: str = "pass") -> list[int]:
    findings = check_source(PROGRAM.format(collect=collect, more=more))
    assert all("`self.optimizers`" in finding.message for finding in findings if finding.code == "AMP401")
    return [finding.line for finding in findings if finding.code == "AMP401"]


@pytest.mark.parametrize("collect", COLLECTED.values(), ids=COLLECTED)
def test_states_of_several_optimizers_need_the_scalers_state(collect: str) -> None:
    assert lines_found(collect) == [18]


@pytest.mark.parametrize("collect", COLLECTED.values(), ids=COLLECTED)
@pytest.mark.parametrize(
    "more",
    [
        "torch.save(self.scaler.state_dict(), 'scaler.pt')",
        "states = {'all': states, 'scaler': self.scaler.state_dict()}",
    ],
)
def test_the_scalers_state_is_there(collect: str, more: str) -> None:
    assert lines_found(collect, more) == []


@pytest.mark.parametrize(
    "collect",
    [
        # These may be anything.
        "states = [each.state_dict() for each in self.others]",
        "for i in range(2): states[f'opt{i}'] = self.others[i].state_dict()",
        "states = [make_state(each) for each in self.optimizers]",
    ],
)
def test_states_of_unknown_objects(collect: str) -> None:
    assert lines_found(collect) == []
