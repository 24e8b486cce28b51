"""Averages of weights kept in a low dtype: forms of the copy and of the update."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_amp_check.static.engine import check_paths, check_source

UPDATES = {
    "a difference taken away": "s.sub_((1 - self.decay) * (s - p.to(s.dtype)))",
    "a difference added": "s.add_((p.to(s.dtype) - s) * (1 - self.decay))",
    "a difference added by an operator": "s += (1 - self.decay) * (p.to(s.dtype) - s)",
    "lerp, copied": "s.copy_(torch.lerp(s, p.to(s.dtype), 1 - self.decay))",
    "a sum, copied": "s.copy_(self.decay * s + (1 - self.decay) * p.to(s.dtype))",
    "a sum, assigned": "s.data = s.data * self.decay + p.data.to(s.dtype) * (1 - self.decay)",
    "in place": "s.mul_(self.decay).add_(p.to(s.dtype) * (1 - self.decay))",
}
A_LIST = """\
import torch

class Average:
    def __init__(self, model, decay):
        self.shadow = [p.detach().clone().{cast} for p in model.parameters()]
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for s, p in zip(self.shadow, model.parameters()):
            {update}
"""
A_DICT = """\
import torch

class Average:
    def __init__(self, model, decay):
        self.decay, self.shadow = decay, {{}}
        for name, p in model.named_parameters():
            self.shadow[name] = p.data.clone().{cast}

    @torch.no_grad()
    def update(self, model):
        for name, p in model.named_parameters():
            s = self.shadow[name]
            {update}
"""
A_DEFAULT = """\
import copy
import torch

class Average:
    def __init__(self, model, decay, dtype=torch.{dtype}):
        self.model = copy.deepcopy(model).to(dtype)
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for s, p in zip(self.model.parameters(), model.parameters()):
            {update}
"""


def codes(text: str) -> list[str]:
    return [finding.code for finding in check_source(text, "average.py")]


@pytest.mark.parametrize("update", UPDATES.values(), ids=UPDATES)
def test_forms_of_the_update(update: str) -> None:
    for form in (A_LIST, A_DICT):
        assert codes(form.format(cast="bfloat16()", update=update)) == ["AMP508"]
        assert codes(form.format(cast="float()", update=update)) == []
    assert codes(A_DEFAULT.format(dtype="bfloat16", update=update)) == ["AMP508"]
    assert codes(A_DEFAULT.format(dtype="float32", update=update)) == []


LISTS = A_LIST.replace(
    "for s, p in zip(self.shadow, model.parameters()):\n            {update}",
    "given = [p.detach() for p in model.parameters()]\n        {update}",
)


@pytest.mark.parametrize(
    ("update", "is_average"),
    [
        ("torch._foreach_lerp_(self.shadow, given, 1 - self.decay)", True),
        ("torch._foreach_mul_(self.shadow, self.decay); torch._foreach_add_(self.shadow, given, alpha=0.1)", True),
        ("torch._foreach_copy_(self.shadow, given)", False),
    ],
)
def test_lists_of_weights(update: str, is_average: bool) -> None:
    expected = ["AMP508"] if is_average else []
    assert codes(LISTS.format(cast="bfloat16()", update=update)) == expected
    assert codes(LISTS.format(cast="float()", update=update)) == []


def test_a_low_copy_that_is_no_average() -> None:
    assert codes(A_LIST.format(cast="bfloat16()", update="s.copy_(p)")) == []
    assert codes(A_DICT.format(cast="bfloat16()", update="s.add_(p)")) == []


CLASS = """\
import torch

class Average:
    def __init__(self, model, decay):
        self.model = {kept}
        self.decay = decay

    def to(self, device, dtype):
        self.model.to(device, dtype=dtype)
        return self

    @torch.no_grad()
    def step(self, model):
        for s, p in zip(self.model.parameters(), model.parameters()):
            s.mul_(self.decay).add_(p.to(s.dtype), alpha=1 - self.decay)
"""
USE = """\
import copy
import torch
from average import Average

def main(args, model, loader):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    dtype = torch.float32
    if args.precision == "bf16":
        dtype = torch.{low}
    {make}
    for x in loader:
        model(x).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        average.step(model)
"""
CAST_BEFORE = "copied = copy.deepcopy(model)\n    copied.to('cuda', dtype=dtype)\n    average = Average(copied, 0.999)"
CAST_AFTER = "average = Average(model, 0.999)\n    average.to('cuda', dtype=dtype)"


@pytest.mark.parametrize(
    ("kept", "make"),
    [("model.eval().requires_grad_(False)", CAST_BEFORE), ("copy.deepcopy(model).eval()", CAST_AFTER)],
    ids=["given a low copy", "cast by its method"],
)
def test_averages_of_a_class_in_another_file(tmp_path: Path, kept: str, make: str) -> None:
    (tmp_path / "average.py").write_text("import copy\n" + CLASS.format(kept=kept))
    for low, expected in (("bfloat16", ["AMP508"]), ("float32", [])):
        (tmp_path / "main.py").write_text(USE.format(make=make, low=low))
        assert [each.code for each in check_paths([str(tmp_path)]).findings] == expected


def test_a_low_copy_that_an_object_keeps_without_averaging(tmp_path: Path) -> None:
    (tmp_path / "average.py").write_text(CLASS.format(kept="model").replace("s.mul_(self.decay).add_", "s.copy_"))
    (tmp_path / "main.py").write_text(USE.format(make=CAST_BEFORE, low="bfloat16"))
    assert check_paths([str(tmp_path)]).findings == []


TARGET = """\
import torch
from torch import nn
from models import build


def train(loader, args, decay):
    online = {online}
    target = {target}
    optimizer = torch.optim.SGD(online.parameters(), lr=0.1)
    for x, y in loader:
        loss = nn.functional.mse_loss(online(x).float(), target(x).float())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for p, t in zip(online.parameters(), target.parameters()):
                {update}
"""
LOW, WIDE = "nn.Linear(8, 8).to(torch.bfloat16)", "nn.Linear(8, 8)"
FOLLOWS = {
    "in place": "t.data.mul_(decay).add_(p.data, alpha=1 - decay)",
    "without data": "t.mul_(decay).add_(p * (1 - decay))",
    "lerp": "t.lerp_(p, 1 - decay)",
    "copied": "t.data.copy_(decay * t.data + (1 - decay) * p.data)",
    "assigned": "t.data = p.data * (1 - decay) + t.data * decay",
    "interpolated": "t.data = torch.lerp(t.data, p.data, 1 - decay)",
}


def lines_of_averages(online: str, target: str, update: str) -> list[str]:
    source = TARGET.format(online=online, target=target, update=update)
    return [source.splitlines()[f.line - 1].strip() for f in check_source(source) if f.code == "AMP508"]


@pytest.mark.parametrize("update", FOLLOWS.values(), ids=FOLLOWS)
def test_a_network_of_its_own_that_follows_another_one(update: str) -> None:
    assert lines_of_averages(LOW, LOW, update) == [update]
    assert lines_of_averages("build(args.online).half()", "build(args.target).half()", update) == [update]
    assert lines_of_averages(LOW, WIDE, update) == []
    assert lines_of_averages(WIDE, WIDE, update) == []


@pytest.mark.parametrize(
    "update", ["t.data.copy_(p.data)", "t.data = p.data", "t.lerp_(p, 0.5)", "t.data.copy_(p.data + p.grad * 0.1)"]
)
def test_a_network_that_is_copied_or_moves_far(update: str) -> None:
    assert lines_of_averages(LOW, LOW, update) == []
