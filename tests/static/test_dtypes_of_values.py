"""Dtypes that code reads from tensors, weights and settings, and modules in containers: AMP507, AMP508, AMP509."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn
from mine import MasterAdam


"""


def found(source: str) -> list[tuple[str, str]]:
    """Code and line text of each finding about low precision, except stored weights."""
    lines = source.splitlines()
    findings = [f for f in check_source(source) if f.code in ("AMP505", "AMP507", "AMP508", "AMP509")]
    return [(f.code, lines[f.line - 1].strip()) for f in findings]


SUM = """\
def evaluate(loader):
    model = nn.Linear(4, 4).to({dtype})
    first = model(next(loader))
    dtype = first.dtype
    totals = {zeros}
    for x in loader:
        with torch.no_grad():
            loss = model(x)
        for k in range(3):
            {add}
    return totals
"""


@pytest.mark.parametrize(
    "zeros",
    [
        "torch.zeros(3, 2, dtype=torch.bfloat16)",
        "torch.zeros(3, 2, dtype=first.dtype)",
        "torch.zeros(3, 2, dtype=dtype)",
        "torch.zeros(3, 2, dtype=next(model.parameters()).dtype)",
        "torch.zeros(3, 2, dtype=model.weight.dtype)",
        "torch.zeros_like(first)",
    ],
)
@pytest.mark.parametrize(
    "add", ["totals += loss.mean()", "totals[0] += loss.mean()", "totals[k] += loss.mean()", "totals[k, 0] += loss[k]"]
)
def test_a_sum_in_the_dtype_of_the_model(zeros: str, add: str) -> None:
    source = HEAD + SUM.format(zeros=zeros, add=add, dtype="torch.bfloat16")
    assert found(source) == [("AMP508", add)]
    assert found(HEAD + SUM.format(zeros=zeros, add=add, dtype="torch.float32").replace("torch.bfloat16", "None")) == []


@pytest.mark.parametrize(
    "zeros", ["torch.zeros(3, 2)", "torch.zeros(3, 2, dtype=torch.float64)", "torch.zeros(3, 2, dtype=x_dtype)"]
)
def test_a_sum_in_a_wide_or_unknown_dtype(zeros: str) -> None:
    assert found(HEAD + SUM.format(zeros=zeros, add="totals[k] += loss.mean().float()", dtype="torch.bfloat16")) == []


def test_an_index_of_the_outer_loop_selects_an_element_once() -> None:
    source = HEAD + SUM.format(zeros="torch.zeros(3, dtype=dtype)", add="totals[i] += loss[k]", dtype="torch.bfloat16")
    assert found(source.replace("for x in loader", "for i, x in enumerate(loader)")) == []


MASK = """\
def decay_mask(n, gammas, dtype):
    index = torch.arange(n, device=gammas.device, dtype=dtype)
    return gammas ** (index[:, None] - index[None, :]).abs()


class Retention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        {layers}

    def forward(self, x):
        {project}
        mask = decay_mask(x.shape[1], torch.linspace(0, 1, 8), {dtype})
        return q @ k.transpose(-1, -2) * mask


class Net(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.embed = nn.Embedding(10, dim)
        {parts}

    def forward(self, ids):
        x = self.embed(ids)
        {run}
        return x


def main(loader):
    net = Net(8).cuda()
    optimizer = torch.optim.AdamW(net.parameters(), lr=6e-4)
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
PLAIN = {
    "layers": "self.q, self.k = nn.Linear(dim, dim), nn.Linear(dim, dim)",
    "project": "q, k = self.q(x), self.k(x)",
    "dtype": "q.dtype",
    "parts": "self.part = Retention(dim)",
    "run": "x = x + self.part(x)",
}
INDEX = ("AMP509", "index = torch.arange(n, device=gammas.device, dtype=dtype)")


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"layers": "self.q, self.k = (nn.Linear(dim, dim) for _ in range(2))"},
        {"project": "q, k = (part(x).unflatten(-1, (2, -1)) for part in (self.q, self.k))"},
        {"layers": "self.both = nn.Linear(dim, 2 * dim)", "project": "q, k = self.both(x).chunk(2, -1)"},
        {
            "parts": "self.parts = nn.ModuleList([Retention(dim) for _ in range(3)])",
            "run": "for part in self.parts:\n            x = x + part(x)",
        },
        {
            "parts": "self.parts = nn.ModuleList(Retention(dim) for _ in range(3))",
            "run": "for i, part in enumerate(self.parts):\n            x = part(x)",
        },
        {
            "parts": "self.parts = nn.ModuleList()\n        for _ in range(3):\n            "
            "self.parts.append(Retention(dim))",
            "run": "for part in self.parts:\n            x = part(x)",
        },
        {
            "parts": "self.parts = nn.ModuleList()\n        for _ in range(3):\n            "
            "self.parts.append(nn.ModuleList([nn.LayerNorm(dim), Retention(dim)]))",
            "run": "for norm, part in self.parts:\n            x = x + part(norm(x))",
        },
        {
            "parts": "self.norms, self.parts = nn.ModuleList([nn.LayerNorm(dim)]), nn.ModuleList([Retention(dim)])",
            "run": "for norm, part in zip(self.norms, self.parts):\n            x = x + part(norm(x))",
        },
        {"parts": "self.body = nn.Sequential(nn.LayerNorm(dim), Retention(dim))", "run": "x = self.body(x)"},
        {"parts": "self.body = nn.Sequential(*[Retention(dim) for _ in range(3)])", "run": "x = self.body(x)"},
    ],
)
def test_positions_in_the_dtype_of_a_region(change: dict[str, str]) -> None:
    assert found(HEAD + MASK.format(**{**PLAIN, **change})) == [INDEX]
    assert found(HEAD + MASK.format(**{**PLAIN, **change, "dtype": "torch.float32"})) == []


def test_positions_without_a_region() -> None:
    source = HEAD + MASK.format(**PLAIN)
    assert found(source.replace('with torch.autocast("cuda", dtype=torch.bfloat16)', "if True")) == []


PART = """\
class Part(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.project = nn.Linear(n, n)
        self.rate = nn.Parameter(torch.log(torch.rand(n)))
        self.register_buffer("load", torch.zeros(n))

    def forward(self, x):
        {line}
        return self.project(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = Part(8)

    def forward(self, x):
        return self.part(x)


model = Net().cuda(){cast}
optimizer = MasterAdam(model.parameters(), lr=1e-4)
for x in loader:
    model(x).float().mean().backward()
    {after}
    optimizer.step()
    optimizer.zero_grad()
"""
NORM = "norms = torch.stack([p.grad.norm() for p in model.parameters()])"


@pytest.mark.parametrize(
    ("line", "after", "code", "right"),
    [
        ("x = x * -torch.exp(self.rate)", "", "AMP507", "x = x * -torch.exp(self.rate.float())"),
        ("rate = self.rate.exp()", "", "AMP507", "rate = self.rate.float().exp()"),
        ("self.load += torch.bincount(x.argmax(-1))", "", "AMP508", "self.seen = torch.bincount(x.argmax(-1))"),
        ("pass", NORM, "AMP507", "norms = torch.stack([p.grad.float().norm() for p in model.parameters()])"),
    ],
)
def test_a_part_of_a_low_model(line: str, after: str, code: str, right: str) -> None:
    low = HEAD + PART.format(line=line, after=after or "pass", cast=".to(torch.bfloat16)")
    assert found(low) == [(code, after or line)]
    assert found(HEAD + PART.format(line=line, after=after or "pass", cast="")) == []
    mended = {"line": line, "after": right} if after else {"line": right, "after": "pass"}
    assert found(HEAD + PART.format(**mended, cast=".to(torch.bfloat16)")) == []
