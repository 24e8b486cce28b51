"""Low-precision parameters in a run: line of creation, check at the step, and optimizers that may train them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from marks import marks, places, shown

pytest.importorskip("torch")

import torch

from pytest_amp_check import record

pytestmark = pytest.mark.usefixtures("patched_once")

SETUP = """\
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(4, 8).bfloat16()


def train(model, optimizer):
    for _ in range(3):
        optimizer.zero_grad()
        model(x).float().square().mean().backward()
        optimizer.step()


"""
LOW = {
    "a layer with a dtype": """
model = nn.Linear(8, 1, dtype=torch.bfloat16)  # AMP501
train(model, torch.optim.AdamW(model.parameters()))
""",
    "a parameter of a module's own": """
class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, dtype=torch.bfloat16))  # AMP501

    def forward(self, x):
        return x * self.weight

model = Scale()
train(model, torch.optim.SGD(model.parameters(), lr=0.1))
""",
    "what loads a model": """
def from_pretrained(dtype):
    return nn.Sequential(nn.Linear(8, 8, dtype=dtype), nn.Linear(8, 1, dtype=dtype))  # AMP501

model = from_pretrained(torch.bfloat16)
train(model, torch.optim.SGD(model.parameters(), lr=0.1))
""",
    "a default": """
torch.set_default_dtype(torch.bfloat16)  # AMP501
model = nn.Linear(8, 1)
torch.set_default_dtype(torch.float32)
train(model, torch.optim.SGD(model.parameters(), lr=0.1))
""",
    "a cast after some steps": """
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(x.float()).mean().backward()
optimizer.step()
model.to(torch.bfloat16)  # AMP501
optimizer.zero_grad(set_to_none=True)
train(model, optimizer)
""",
    "a layer with another dtype than the default": """
torch.set_default_dtype(torch.float16)
model = nn.Linear(8, 1, dtype=torch.bfloat16)  # AMP501
torch.set_default_dtype(torch.float32)
train(model, torch.optim.SGD(model.parameters(), lr=0.1))
""",
    "a layer after a default that has ended": """
torch.set_default_dtype(torch.bfloat16)
torch.set_default_dtype(torch.float32)
model = nn.Linear(8, 1, dtype=torch.bfloat16)  # AMP501
train(model, torch.optim.SGD(model.parameters(), lr=0.1))
""",
    "layers of two places": """
model = nn.Sequential(
    nn.Linear(8, 8, dtype=torch.bfloat16),  # AMP501
    nn.Linear(8, 1, dtype=torch.bfloat16),  # AMP501
)
train(model, torch.optim.SGD(model.parameters(), lr=0.1))
""",
    "values of a parameter": """
model = nn.Linear(8, 1)
for p in model.parameters():
    p.data = p.data.bfloat16()  # AMP501
train(model, torch.optim.SGD(model.parameters(), lr=0.1))
""",
    "values of low parameters that are replaced": """
model = nn.Linear(8, 1, dtype=torch.bfloat16)  # AMP501
for p in model.parameters():
    p.data = p.data.clone()
train(model, torch.optim.SGD(model.parameters(), lr=0.1))
""",
    "values of a parameter and of another tensor": """
model, other = nn.Linear(8, 1), torch.ones(8)
other.data = other.data.bfloat16()
model.weight.data, model.bias.data = (p.data.bfloat16() for p in model.parameters())  # AMP501
train(model, torch.optim.SGD(model.parameters(), lr=0.1))
""",
    "a cast by a dtype among other arguments": """
model = nn.Linear(8, 1)
model.to("cpu", torch.bfloat16, non_blocking=True)  # AMP501
train(model, torch.optim.SGD(model.parameters(), lr=0.1))
""",
    "a cast by a dtype with a name": """
model = nn.Linear(8, 1)
model.to(device="cpu", dtype=torch.bfloat16)  # AMP501
train(model, torch.optim.SGD(model.parameters(), lr=0.1))
""",
    "one of two layers": """
first = nn.Linear(8, 8, dtype=torch.bfloat16)  # AMP501
second = nn.Linear(8, 1)
train(lambda x: second(first(x).float()), torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1))
""",
    "a second optimizer": """
model = nn.Linear(8, 1)
train(lambda x: model(x.float()), torch.optim.SGD(model.parameters(), lr=0.1))
low = nn.Linear(8, 1, dtype=torch.bfloat16)  # AMP501
train(low, torch.optim.SGD(low.parameters(), lr=0.1))
""",
    "an option that is off": """
class Rounded(torch.optim.SGD):
    def __init__(self, params):
        super().__init__(params, lr=0.1)
        self.bf16_stochastic_round = False
        self.rounding = True

model = nn.Linear(8, 1, dtype=torch.bfloat16)  # AMP501
train(model, Rounded(model.parameters()))
""",
    "state in float32 that is no copy": """
class WithMomentum(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})
        self.norms = [torch.ones(3, 3)]

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            momentum = self.state[p].setdefault("momentum", torch.zeros(p.shape))
            momentum += p.grad.float()
            p -= 0.1 * momentum.bfloat16()

model = nn.Linear(8, 1, dtype=torch.bfloat16)  # AMP501
train(model, WithMomentum(model.parameters()))
""",
    "state that is no copy in float32": """
class WithState(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            p -= 0.1 * p.grad
            self.state[p].update(steps=1, previous=p.clone())

model = nn.Linear(8, 1, dtype=torch.bfloat16)  # AMP501
train(model, WithState(model.parameters()))
""",
}
RIGHT = {
    "a frozen base under an adapter in float32": """
class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(8, 1, dtype=torch.bfloat16).requires_grad_(False)
        self.adapter = nn.Linear(8, 1)

    def forward(self, x):
        return self.base(x) + self.adapter(x.float())

model = Adapted()
train(model, torch.optim.AdamW(model.parameters()))
""",
    "rounding by chance": """
class Rounded(torch.optim.SGD):
    def __init__(self, params):
        super().__init__(params, lr=0.1)
        self.bf16_stochastic_round = True

model = nn.Linear(8, 1, dtype=torch.bfloat16)
train(model, Rounded(model.parameters()))
""",
    "copies in float32": """
class WithCopies(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            master = self.state[p].setdefault("master", p.detach().float())
            master -= 0.1 * p.grad.float()
            p.copy_(master)

model = nn.Linear(8, 1, dtype=torch.bfloat16)
train(model, WithCopies(model.parameters()))
""",
    "copies in float32 that an attribute keeps": """
class WithCopies(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})
        self.masters = {p: p.detach().float() for p in self.param_groups[0]["params"]}

    @torch.no_grad()
    def step(self):
        for p, master in self.masters.items():
            master -= 0.1 * p.grad.float()
            p.copy_(master)

model = nn.Linear(8, 1, dtype=torch.bfloat16)
train(model, WithCopies(model.parameters()))
""",
    "copies in float32 in a list of groups": """
class WithCopies(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})
        self.groups = [[p.detach().float() for p in group["params"]] for group in self.param_groups]

    @torch.no_grad()
    def step(self):
        for p, master in zip(self.param_groups[0]["params"], self.groups[0]):
            master -= 0.1 * p.grad.float()
            p.copy_(master)

model = nn.Linear(8, 1, dtype=torch.bfloat16)
train(model, WithCopies(model.parameters()))
""",
    "an option of a group": """
class Compensated(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})
        self.param_groups[0]["kahan_sum"] = True

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            p -= 0.1 * p.grad

model = nn.Linear(8, 1, dtype=torch.bfloat16)
train(model, Compensated(model.parameters()))
""",
    "random numbers in each step": """
class Rounded(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            exact = p.float() - 0.1 * p.grad.float()
            noise = torch.randint(0, 1 << 16, exact.shape, dtype=torch.int32)
            p.copy_(((exact.view(torch.int32) + noise) & -65536).view(torch.float32))

model = nn.Linear(8, 1, dtype=torch.bfloat16)
train(model, Rounded(model.parameters()))
""",
    "a model that nobody trains": """
teacher = nn.Linear(8, 1, dtype=torch.bfloat16)
with torch.no_grad():
    teacher(x)
""",
    "values that are brought back to float32": """
model = nn.Linear(8, 1)
for p in model.parameters():
    p.data = p.data.bfloat16()
    p.data = p.data.double()
train(lambda x: model(x.double()), torch.optim.SGD(model.parameters(), lr=0.1))
""",
    "a module that is moved and not cast": """
model = nn.Linear(8, 1).to("cpu").to(torch.float64)
train(lambda x: model(x.double()), torch.optim.SGD(model.parameters(), lr=0.1))
""",
    "a model that is brought back to float32": """
model = nn.Linear(8, 1, dtype=torch.bfloat16).float()
x = x.float()
train(model, torch.optim.SGD(model.parameters(), lr=0.1))
""",
}


def findings(body: str, path: Path) -> tuple[list[Any], str]:
    source = SETUP + body
    path.write_text(source, encoding="utf-8")
    try:
        with record() as run:
            exec(compile(source, str(path), "exec"), {"__name__": "__main__"})  # noqa: S102 - our own programs
    finally:
        torch.set_default_dtype(torch.float32)
    assert run.failure is None, repr(run.failure)
    return run.findings, source


@pytest.mark.parametrize("body", LOW.values(), ids=LOW)
def test_parameters_created_in_low_precision_are_reported_where_they_are_created(body: str, tmp_path: Path) -> None:
    found, source = findings(body, tmp_path / "train.py")
    assert places(found) == marks(source, "runtime"), shown(found)
    assert all("bfloat16" in finding.message for finding in found)


@pytest.mark.parametrize("body", RIGHT.values(), ids=RIGHT)
def test_nothing_is_said_where_nothing_is_lost(body: str, tmp_path: Path) -> None:
    found, _ = findings(body, tmp_path / "train.py")
    assert found == [], shown(found)
