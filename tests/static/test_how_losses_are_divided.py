"""Divisions of the loss by the micro-batches of a window, in all spellings, and similar expressions that are none."""

from __future__ import annotations

from textwrap import indent

import pytest

from pytest_amp_check import check_source

PROGRAM = """\
import torch

def train(model, loader, optimizer, k, n, flag):
    scaler = torch.amp.GradScaler("cuda")
    criterion = torch.nn.CrossEntropyLoss()
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda"):
            loss = criterion(model(x), y)
            other = criterion(model(x), y)
{}
        scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""
#: Operations on the loss before its backward, and True if the loss may be divided then.
DIVIDED: dict[str, bool] = {
    "pass": False,
    "loss = loss / k": True,
    "loss /= k": True,
    "loss = loss * (1 / k)": True,
    "loss *= 1 / k": True,
    "loss = (1 / k) * loss": True,
    "part = 1.0 / k\nloss = part * loss": True,
    "loss = loss.div(k)": True,
    "loss.div_(k)": True,
    "loss = torch.div(loss, k)": True,
    "loss = torch.true_divide(loss, k)": True,
    "loss = loss / float(k)": True,
    "loss = loss / max(k, 1)": True,
    "loss = loss / n": True,
    "loss = loss / 4": True,
    "loss = loss / k / 2": True,
    "loss = loss * 2": False,
    "loss = loss / k * n": True,
    "loss = loss + 1": False,
    "loss = -loss": False,
    "loss = -loss / k": True,
    "loss = loss.mean()": False,
    "loss = loss.mean() / k": True,
    "loss = loss + other": False,
    "loss = loss / k + other": False,
    "loss = loss + other / k": False,
    "loss = loss / k + other / k": True,
    "loss = (loss + other) / k": True,
    "loss = sum([loss, other]) / k": True,
    "parts = {'a': loss, 'b': other}\nloss = sum(parts[p] * flag[p] for p in parts)": False,
    "loss = sum(w * part for part, w in zip([loss, other], flag))": False,
    "loss = sum([one * flag[j] for j, one in enumerate([loss, other])])": False,
    "loss = sum(part * flag for part in [loss, other])": True,
    "parts = {'a': loss, 'b': other}\nloss = sum(parts[p] * flag[p] for p in parts) / k": True,
    "loss = torch.stack([loss, other]).mean()": False,
    "loss = torch.stack([loss, other]).mean() / k": True,
    "if k > 1:\n    loss = loss / k": True,
    "if flag:\n    loss = loss / k": True,
    "if flag:\n    loss = loss / k\nelse:\n    loss = loss / n": True,
    "if flag:\n    loss = other\nelse:\n    loss = loss * 2": False,
    "loss = loss / k if flag else loss": True,
    "loss = loss / (k if flag else n)": True,
    "loss = loss if flag else other": False,
    "losses = {'loss': loss / k}\nloss = losses['loss']": True,
    "losses = {'loss': loss}\nloss = losses['loss']": False,
    "losses = {'loss': loss / k, 'other': other}\nloss = losses['other']": False,
    "losses = [loss, other / k]\nloss = losses[0]": False,
    "losses = [loss, other / k]\nloss = losses[-1]": True,
    "loss, other = other / k, loss": True,
    "loss, other = other, loss / k": False,
    "(loss := loss / k)": True,
    "shown = loss / k": False,
    "print(loss.item() / k)": False,
    "divide = lambda value: value / k\nloss = divide(loss)": True,
    "def divide(value):\n    return value / k\nloss = divide(loss)": True,
    "def keep(value):\n    shown = value / k\n    return value\nloss = keep(loss)": False,
    "for each in (loss,):\n    loss = each / k": True,
    "try:\n    loss = loss / k\nfinally:\n    pass": True,
    "with torch.autocast('cuda'):\n    loss = loss / k": True,
    "loss = abs(loss / k)": True,
    "loss = abs(loss)": False,
    "loss = round(loss / k, 3)": True,
    "loss = torch.mul(loss, 1 / k)": True,
    "loss = torch.multiply(1 / k, loss)": True,
    "loss = torch.mul(loss, 2)": False,
    "loss = torch.divide(loss, k)": True,
    "loss = loss.divide(k)": True,
    "loss = loss.divide_(k)": True,
    "loss.divide_(k)": True,
    "loss = loss.__truediv__(k)": True,
    "loss = loss.multiply(1 / k)": True,
    "loss = loss.multiply(2)": False,
    "import operator\nloss = operator.truediv(loss, k)": True,
    "import operator\nloss = operator.mul(loss, 1 / k)": True,
    # A single weight may be one divided by the number of micro-batches; weights of several terms are not.
    "loss = n * loss": True,
    "loss = n * loss + n * other": True,
    "loss = n * (loss + other)": True,
    "loss = n * loss + flag * other": False,
    "loss = flag.a * loss + flag.b * other": False,
    "loss = n * loss + (1 - n) * other": False,
    "loss = n * loss - flag * other": False,
    "loss = n * loss + flag * other + n * flag * other": False,
    "loss = 0.8 * loss + 0.2 * other": False,
    "loss = (n * loss + flag * other) / k": True,
    "loss = n * loss / k + flag * other / k": True,
    "loss = (n / k) * loss + (flag / k) * other": True,
    "a, b = n / k, flag / k\nloss = a * loss + b * other": True,
    "weights = [w / k for w in (n, flag)]\nloss = weights[0] * loss + weights[1] * other": True,
    "loss = n * (loss / k) + flag * (other / k)": True,
    "loss *= n\nother *= flag\nloss = loss + other": False,
    "loss *= n\nother *= flag\nloss = loss / k + other / k": True,
    "def weigh(a, b):\n    return n * a + flag * b\nloss = weigh(loss, other)": False,
    "def weigh(a, b):\n    return (n * a + flag * b) / k\nloss = weigh(loss, other)": True,
    # A term of other code has a weight as well.
    "loss = n * loss + (1 - n) * model.penalty": False,
    "loss = (1 - n) * model.penalty + n * loss": False,
    "loss = n * loss + flag * model.penalty": False,
    "loss = n * loss - model.penalty * flag": False,
    "loss = n * loss + n * model.penalty": True,
    "loss = n * loss + model.penalty * n": True,
    "loss = n * (loss + model.penalty)": True,
    "loss = (n * loss + flag * model.penalty) / k": True,
    "loss = n * loss / k + flag * model.penalty / k": True,
    "w = 1 / k\nloss = w * loss + w * model.penalty": True,
    "w = 1 / k\nloss = w * loss + w * 0.1 * model.penalty": True,
    # Operations on a quotient that are no divisions.
    "loss = torch.log(loss / k)": False,
    "loss = -torch.log(loss / other).mean()": False,
    "loss = -torch.log(loss / other).mean() / k": True,
    "loss = (loss / other).log()": False,
    "loss = torch.exp(loss / n)": False,
    "loss = (loss / n).sqrt()": False,
    "loss = (loss / n) ** 2": False,
    "loss = (loss / n).pow(2).mean()": False,
    "loss = torch.nn.functional.softplus(loss / n)": False,
    "loss = torch.sqrt(loss) / k": True,
    "loss = torch.abs(loss / k)": True,
    "loss = torch.relu(loss / k)": True,
    "loss = torch.clamp(loss / k, max=10)": True,
}


@pytest.mark.parametrize("body", DIVIDED)
def test_a_loss_is_divided(body: str) -> None:
    found = [finding.code for finding in check_source(PROGRAM.format(indent(body, "        ")))]
    assert found == ([] if DIVIDED[body] else ["AMP301"])


LOSSES_BY_NAME = """\
import torch

def train(model, criterion: torch.nn.Module, loader, optimizer, k, weight):
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda"):
            losses = criterion(model(x), y)
            loss = sum({} for name in losses)
        scaler.scale(loss).backward()
        if (i + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("term", "codes"),
    [
        ("losses[name] * criterion.weights[name]", ["AMP301"]),
        ("criterion.weights[name] * losses[name]", ["AMP301"]),
        # The weight may be 1 / k.
        ("losses[name] * weight", []),
        ("losses[name] * criterion.weights[name] * weight", []),
        ("losses[name] * criterion.weights[name] / k", []),
    ],
)
def test_a_weight_for_each_loss_divides_no_window(term: str, codes: list[str]) -> None:
    assert [finding.code for finding in check_source(LOSSES_BY_NAME.format(term))] == codes


#: The terms of a loss are added to what the code begins with.
TERMS = """\
import torch


def train(loader, opt, k, first, second):
    net = torch.nn.Linear(8, 8)
    amp = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            out = net(x)
            total = {start}
            total += {first}
            if second is not None:
                total = total + second(out, y) / k
        amp.scale(total).backward()
        if (i + 1) % k == 0:
            amp.step(opt)
            amp.update()
            opt.zero_grad()
"""
TERM = "first(out, y) / k"


@pytest.mark.parametrize(
    "start",
    [
        "0",
        "0.0",
        "torch.tensor(0.0)",
        "torch.tensor(0.0, device=x.device)",
        "torch.tensor([0.0])",
        "torch.zeros(1)",
        'torch.zeros((), device="cuda")',
        "torch.zeros([], dtype=torch.float32)",
        "torch.zeros_like(x[0])",
        "torch.zeros(1, device=out.device)",
        "torch.tensor(0.0, device=out.device)",
        "torch.zeros_like(out.sum())",
        "out.new_zeros(1)",
        "torch.tensor(0.0).cuda()",
        "torch.tensor(0.0).to(x.device)",
        "x.new_zeros(1)",
        "x.new_tensor(0.0)",
    ],
)
def test_terms_are_added_to_zeros(start: str) -> None:
    assert check_source(TERMS.format(start=start, first=TERM), "train.py") == []
    found = check_source(TERMS.format(start=start, first="first(out, y)"), "train.py")
    assert [(each.line, each.code) for each in found] == [(14, "AMP301")]


@pytest.mark.parametrize("start", ["out.mean()", "first(out, x)"])
def test_terms_are_added_to_an_undivided_loss(start: str) -> None:
    found = check_source(TERMS.format(start=start, first=TERM), "train.py")
    assert [(each.line, each.code) for each in found] == [(14, "AMP301")]


@pytest.mark.parametrize(
    "zeros",
    [
        "torch.tensor(0.0, device=loss.device, requires_grad=True)",
        "torch.zeros((), requires_grad=True)",
        "torch.zeros_like(loss)",
        "loss.new_zeros(())",
    ],
)
def test_zeros_in_the_place_of_a_bad_loss_divide_nothing(zeros: str) -> None:
    replaced = f"if not torch.isfinite(loss):\n    loss = {zeros}\n"
    for division, count in (("", 1), ("loss = loss / k\n", 0)):
        for operations in (division + replaced, replaced + division):
            found = check_source(PROGRAM.format(indent(operations, "        ")), "train.py")
            assert [each.code for each in found] == ["AMP301"] * count


OF_WINDOWS = """\
import torch
from torch import nn
from torch.nn import functional as F

N = 4
model = nn.Linear(5, 1)
optimizer = torch.optim.SGD({arguments})
for i, (u, v) in enumerate(loader):
    loss = F.mse_loss(model(u), v)
    ({loss}).backward()
    if (i + 1) % N == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("arguments", "loss", "is_divided"),
    [
        ("model.parameters(), lr=0.2", "loss", False),
        # The learning rate may be divided in place of the loss.
        ("model.parameters(), lr=0.2 / N", "loss", True),
        ("model.parameters(), 0.2 / N", "loss", True),
        ("params=model.parameters(), lr=0.2 / N", "loss", True),
        ("[{'params': model.parameters(), 'lr': 0.2 / N}], lr=0.2", "loss", True),
        ("model.parameters(), lr=0.2, momentum=0.9 / N", "loss", False),
        ("model.parameters(), lr=0.2", "loss * 0.25", True),
        ("model.parameters(), lr=0.2", "loss * (1 / N)", True),
        # The weight of a term is no share of a window.
        ("model.parameters(), lr=0.2", "loss * 0.3", False),
        ("model.parameters(), lr=0.2", "loss * 0.75", False),
        ("model.parameters(), lr=0.2", "loss * 1.0", False),
    ],
)
def test_the_learning_rate_or_the_loss_is_divided(arguments: str, loss: str, is_divided: bool) -> None:
    findings = check_source(OF_WINDOWS.format(arguments=arguments, loss=loss), "train.py")
    assert [(finding.label, finding.line) for finding in findings] == [("step@undivided", 10)] * (not is_divided)


IN_ANY_FORM = """\
import copy
import operator
import typing

import torch
from torch import nn
from torch.nn import functional as F

N = 4
model = nn.Linear(5, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for i, (u, v) in enumerate(loader):
    loss = {loss}
    loss.backward()
    if (i + 1) % N == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("loss", "is_divided"),
    [
        # Divisions, in any form.
        ("operator.truediv(LOSS, N)", True),
        ("operator.mul(LOSS, 1 / N)", True),
        ("torch.div(LOSS, N)", True),
        ("torch.true_divide(LOSS, N)", True),
        ("torch.mul(LOSS, 0.25)", True),
        ("(LOSS).div(N)", True),
        ("(LOSS).mul(0.25)", True),
        ("(LOSS).div_(N)", True),
        ("sum([LOSS, LOSS]) / N", True),
        # What keeps a division.
        ("typing.cast(torch.Tensor, LOSS / N)", True),
        ("torch.mean(LOSS / N)", True),
        ("torch.stack([LOSS / N]).sum()", True),
        ("torch.clone(LOSS / N)", True),
        ("torch.nan_to_num(LOSS / N)", True),
        ("abs(LOSS / N)", True),
        ("torch.abs(LOSS / N)", True),
        ("(LOSS / N).clone()", True),
        # The same without a division.
        ("operator.mul(LOSS, 2)", False),
        ("typing.cast(torch.Tensor, LOSS)", False),
        ("copy.copy(LOSS)", False),
        ("torch.sum(LOSS)", False),
        ("torch.stack([LOSS]).mean()", False),
        ("torch.add(LOSS, LOSS)", False),
        ("torch.squeeze(LOSS)", False),
        ("torch.nan_to_num(LOSS)", False),
        ("torch.where(u, LOSS, 0.0)", False),
        ("abs(LOSS)", False),
        ("max(LOSS, LOSS)", False),
        ("(LOSS).clone()", False),
    ],
)
def test_a_loss_of_a_window_in_any_form(loss: str, is_divided: bool) -> None:
    program = IN_ANY_FORM.format(loss=loss.replace("LOSS", "F.mse_loss(model(u), v)"))
    findings = check_source(program, "train.py")
    assert [(finding.label, finding.line) for finding in findings] == [("step@undivided", 14)] * (not is_divided)
