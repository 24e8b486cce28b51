"""Checkpoints with the states of a collection of models: the collection holds no scaler."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

PROGRAM = """\
import torch

class Driver:
    def __init__(self, {name}, optimizer, loader):
        self.{name}, self.optimizer, self.loader = {name}, optimizer, loader
        self.scaler = torch.amp.GradScaler("cuda")

    def epoch(self):
        {use}
        for batch in self.loader:
            self.optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = self.objective(batch)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def save(self, path):
        state = {{"optimizer": self.optimizer.state_dict(), "steps": 3}}
        state["weights"] = {{{states}}}
        {more}
        torch.save(state, path)

    def load(self, path):
        self.optimizer.load_state_dict(torch.load(path)["optimizer"])
"""
STATES = {
    "by key": "key: self.{name}[key].state_dict() for key in self.{name}",
    "items": "key: each.state_dict() for key, each in self.{name}.items()",
    "numbered": "n: each.state_dict() for n, each in enumerate(self.{name}.values())",
}
USES = {
    "trained by key": "_ = [self.nets[k].train() for k in self.nets]",
    "trained by items": "for k, net in self.nets.items(): net.train()",
    "evaluated": "for net in self.nets.values(): net.eval()",
    "parameters": "weights = [p for k in self.nets for p in self.nets[k].parameters()]",
}


def found(name: str, states: str, use: str = "pass", more: str = "pass") -> list[str]:
    source = PROGRAM.format(name=name, states=states.format(name=name), use=use, more=more)
    return [finding.code for finding in check_source(source, "driver.py") if finding.code in ("AMP401", "AMP402")]


@pytest.mark.parametrize("states", ["by key", "items"])
@pytest.mark.parametrize("use", USES)
def test_a_collection_whose_items_are_trained_holds_models(states: str, use: str) -> None:
    assert found("nets", STATES[states], USES[use]) == ["AMP401"]


@pytest.mark.parametrize("states", ["by key", "items"])
@pytest.mark.parametrize("name", ["models", "model", "model_ema"])
def test_a_collection_that_is_named_so_holds_models(states: str, name: str) -> None:
    assert found(name, STATES[states]) == ["AMP401"]


@pytest.mark.parametrize("states", STATES)
def test_an_unknown_collection_may_hold_the_scaler(states: str) -> None:
    assert found("nets", STATES[states]) == []
    assert found("parts", STATES[states]) == []


@pytest.mark.parametrize("states", ["by key", "items"])
def test_other_objects_that_are_trained_say_nothing(states: str) -> None:
    assert found("nets", STATES[states], "for net in self.others: net.train()") == []


@pytest.mark.parametrize("states", ["by key", "items"])
def test_a_saved_scaler_is_enough(states: str) -> None:
    assert found("models", STATES[states], more="state['scaler'] = self.scaler.state_dict()") in ([], ["AMP402"])


RECORDS = {
    "dicts": "name: dict(values) for name, values in self.sums.items()",
    "dicts or not": "n: dict(v) if isinstance(v, defaultdict) else v for n, v in self.sums.items()",
    "lists": "name: list(values) for name, values in self.sums.items()",
}


@pytest.mark.parametrize("records", RECORDS)
def test_records_of_the_training_hold_no_state(records: str) -> None:
    more = f"state['sums'] = {{{RECORDS[records]}}}"
    assert found("models", STATES["by key"], more=more) == ["AMP401"]


@pytest.mark.parametrize("key", ["scaling", "amp", "loss_scaler"])
def test_records_that_may_be_those_of_the_scaler(key: str) -> None:
    more = f"state['{key}'] = {{{RECORDS['dicts']}}}"
    assert found("models", STATES["by key"], more=more) == []
