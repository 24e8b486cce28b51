"""AMP501 and optimizers of the project: some update float32 copies of low-precision parameters."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

TRAINING = """\
import torch
from torch import nn


class Project(torch.optim.{base}):
{methods}

def train(loader):
    model = nn.Linear(8, 8).cuda()
    model.{cast}()
    optimizer = Project(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x).float(), y)
        loss.backward()
        optimizer.step()
"""
KEEPS = {
    "a list that the constructor fills": """\
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
        self.masters = [[p.detach().clone().float() for p in group["params"]] for group in self.param_groups]

    def step(self, closure=None):
        update(self.masters)
""",
    "a list that a method fills later": """\
    def prepare(self):
        for group in self.param_groups:
            for p in group["params"]:
                self.wide.append(torch.nn.Parameter(p.detach().to(torch.float32)))

    def step(self, closure=None):
        update(self.wide)
""",
    "an entry of the state": """\
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if "master" not in state:
                    state["master"] = p.detach().to(dtype=torch.float32)
                p.copy_(state["master"].add_(p.grad.float(), alpha=-group["lr"]))
""",
    "an entry that a method of the step makes": """\
    def start(self, p):
        self.state[p]["copy"] = p.detach().double()

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                self.start(p)
""",
}
LOSES = {
    "a conversion for one step": """\
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                wide = p.float()
                wide.add_(p.grad.float(), alpha=-group["lr"])
                p.copy_(wide)
""",
    "a conversion in a method of the step": """\
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                self.update(p, group["lr"])

    def update(self, p, rate):
        grad = p.grad.to(torch.float32)
        p.copy_(p.float() - rate * grad)
""",
    "averages in float32": """\
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p, dtype=torch.float32)
                p.sub_(state["exp_avg"].lerp_(p.grad.to(torch.float32), 0.1), alpha=group["lr"])

    def limit(self, value):
        return float(value)
""",
}


def lines_of(methods: str, *, base: str = "Optimizer", cast: str = "bfloat16") -> list[int]:
    source = TRAINING.format(methods=methods, base=base, cast=cast)
    cast_line = source[: source.index("    model.")].count("\n") + 1
    return [f.site.line - cast_line for f in check_source(source, "train.py") if f.code == "AMP501"]


@pytest.mark.parametrize("base", ["Optimizer", "SGD"])
@pytest.mark.parametrize("cast", ["half", "bfloat16"])
@pytest.mark.parametrize("methods", KEEPS.values(), ids=KEEPS)
def test_copies_in_float32_lose_no_update(methods: str, base: str, cast: str) -> None:
    assert lines_of(methods, base=base, cast=cast) == []


@pytest.mark.parametrize("base", ["Optimizer", "SGD"])
@pytest.mark.parametrize("cast", ["half", "bfloat16"])
@pytest.mark.parametrize("methods", LOSES.values(), ids=LOSES)
def test_updates_of_low_parameters_are_lost(methods: str, base: str, cast: str) -> None:
    assert lines_of(methods, base=base, cast=cast) == [0]


def test_a_base_class_of_the_project_keeps_the_copies() -> None:
    keeps = KEEPS["an entry of the state"]
    base = f"class Wide(torch.optim.Optimizer):\n{keeps}\n\n"
    source = TRAINING.format(methods="    pass\n", base="Optimizer", cast="half").replace(
        "torch.optim.Optimizer", "Wide"
    )
    assert [f.code for f in check_source(source.replace("class Project", base + "class Project"), "train.py")] == []
