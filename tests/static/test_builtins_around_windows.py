"""Builtins and standard-library functions with which a training loop counts, pairs and tests."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

HEAD = """\
import functools
import itertools
import math
import operator
import sys
import types
from argparse import Namespace

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

regressor = nn.Linear(5, 1)
rule = torch.optim.SGD(regressor.parameters(), lr=0.2)
N = 4
"""
#: Loops that count micro-batches, with the condition at the end of a window. N losses are accumulated.
WINDOWS = [
    ("for i, (u, v) in enumerate(loader)", "(i + 1) % N == 0"),
    ("for i, (u, v) in enumerate(loader, 1)", "i % N == 0"),
    ("for i, (u, v) in enumerate(loader, start=1)", "i % N == 0"),
    ("for i, (u, v) in enumerate(loader)", "i % N == N - 1"),
    ("for i, (u, v) in enumerate(loader)", "math.fmod(i + 1, N) == 0"),
    ("for i, (u, v) in enumerate(loader)", "operator.mod(i + 1, N) == 0"),
    ("for i, (u, v) in enumerate(loader)", "np.mod(i + 1, N) == 0"),
    ("for i, (u, v) in enumerate(loader)", "divmod(i + 1, N)[1] == 0"),
    ("for i, (u, v) in enumerate(loader)", "not (i + 1) % N"),
    ("for i, (u, v) in enumerate(loader)", "bool((i + 1) % N) is False"),
    ("for i in range(1, 101)", "i % N == 0"),
    ("for i in range(100)", "(i + 1) % N == 0"),
]
#: Losses of a micro-batch, and True if they are divided by the number of micro-batches.
LOSSES = [
    ("F.mse_loss(regressor(u), v)", False),
    ("F.mse_loss(regressor(u), v) / N", True),
]


@pytest.mark.parametrize(("loop", "test"), WINDOWS)
@pytest.mark.parametrize(("loss", "divided"), LOSSES)
def test_what_counts_micro_batches(loop: str, test: str, loss: str, *, divided: bool) -> None:
    unpack = "" if "(u, v)" in loop else "    u, v = draw()\n"
    source = (
        f"{HEAD}{loop}:\n{unpack}    loss = {loss}\n    loss.backward()\n"
        f"    if {test}:\n        rule.step()\n        rule.zero_grad()\n"
    )
    found = check_source(source, "train.py")
    assert [(each.code, source.split("\n")[each.line - 1].strip()) for each in found] == (
        [] if divided else [("AMP301", "loss.backward()")]
    )


#: Assignments of ``flag``, and its value: True, False, or None for unknown.
FLAGS: list[tuple[str, bool | None]] = [
    ("flag = True", True),
    ("flag = bool(1)", True),
    ("flag = bool(0)", False),
    ("flag = bool('')", False),
    ("flag = bool()", False),
    ("flag = float('1.5') > 1", True),
    ("flag = float('0.5') > 1", False),
    ("flag = float(2) > 1", True),
    ("flag = float('many') > 1", None),
    ("flag = float(text) > 1", None),
    ("flag = isinstance({}, dict)", True),
    ("flag = isinstance({}, list)", False),
    ("flag = isinstance([], list)", None),
    ("flag = isinstance([], (list, tuple))", True),
    ("flag = isinstance((), dict)", False),
    ("flag = isinstance({}, (str, list))", False),
    ("flag = isinstance(None, dict)", False),
    ("flag = isinstance(None, nn.Module)", False),
    ("flag = isinstance(regressor, nn.Module)", True),
    ("flag = isinstance(rule, torch.optim.Optimizer)", True),
    ("flag = isinstance(regressor, torch.optim.Optimizer)", False),
    ("flag = isinstance(rule, nn.Module)", False),
    ("flag = isinstance(rule, (dict, list))", False),
    ("flag = isinstance(thing, dict)", None),
    ("flag = hasattr(rule, 'step')", True),
    ("flag = hasattr(rule, 'sharpen')", None),
    ("flag = hasattr(regressor, 'parameters')", True),
    ("flag = hasattr(torch, 'compile')", True),
    ("flag = hasattr(torch, 'compile_all')", None),
    ("flag = hasattr(thing, 'step')", None),
    ("flag = dict(on=True)['on']", True),
    ("flag = dict({'on': False})['on']", False),
    ("flag = dict({'on': False}, on=True)['on']", True),
    ("flag = dict(**{'on': False})['on']", False),
    ("flag = dict(**kept)['on']", None),
    ("flag = vars(Namespace(on=True))['on']", None),
    ("flag = Namespace(on=True).on", True),
    ("flag = types.SimpleNamespace(on=False).on", False),
    ("flag = types.SimpleNamespace(kept).on", None),
    ("flag = getattr(Namespace(on=False), 'on')", False),
    ("flag = getattr(Namespace(on=True), name)", None),
    ("config = Namespace()\nconfig.on = True\nflag = config.on", True),
    ("flag = list((False, True))[0]", False),
    ("flag = tuple([True])[0]", True),
    ("flag = divmod(7, 2) == (3, 1)", None),
    ("flag = operator.mul(2, 3) == 6", True),
    ("flag = operator.truediv(3, 2) == 1.5", True),
    ("flag = operator.mul(2, 3) == 5", False),
    ("flag = round(amount) == 2", None),
    ("flag = bool(amount)", None),
    ("flag = functools.partial(bool, 1)()", True),
    ("flag = next(iter([False]))", False),
    ("flag = next(iter([False, amount]))", None),
]


@pytest.mark.parametrize(("statements", "value"), FLAGS)
def test_a_flag_that_a_builtin_makes(statements: str, value: bool | None) -> None:
    """A second step without an update is reported as definite, as possible, or not at all, depending on the flag."""
    source = (
        f'{HEAD}ups = torch.amp.GradScaler("cuda")\n{statements}\nfor u, v in loader:\n    rule.zero_grad()\n'
        '    with torch.autocast("cuda"):\n        loss = F.mse_loss(regressor(u), v)\n'
        "    ups.scale(loss).backward()\n    ups.step(rule)\n    if flag:\n        ups.step(rule)\n    ups.update()\n"
    )
    found = check_source(source, "train.py")
    assert [(each.label, each.certain) for each in found] == ([] if value is False else [("step@stepped", bool(value))])
