"""Numbers and operations that low precision spoils, in each form of the call, and the code that a finding names."""

from __future__ import annotations

import ast
import re

import pytest

from pytest_amp_check.static.engine import check_source
from pytest_amp_check.static.settings import Settings

PROGRAM = """\
import torch
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    def forward(self, x, y, mask):
        return {}
"""


def reported(expression: str, dtype: str) -> list[tuple[str, str]]:
    """Return the label of each finding and the first code that its message quotes."""
    found = check_source(PROGRAM.format(expression), "layers.py", Settings(assumed_dtype=dtype))
    assert {finding.line for finding in found} <= {8}
    return [(finding.label, re.findall("`([^`]*)`", finding.message)[0]) for finding in found]


#: Expressions, the part that the finding names ("" for all of it), and the labels in float16 and in bfloat16.
FORMS = [
    # The divisor, or the argument of a logarithm or a root, becomes zero.
    ("x / (y + 1e-8)", "y + 1e-8", "epsilon:added", ""),
    ("x / (1e-8 + y)", "1e-8 + y", "epsilon:added", ""),
    ("x / y.add(1e-8)", "y.add(1e-8)", "epsilon:added", ""),
    ("x / torch.add(y, 1e-8)", "torch.add(y, 1e-8)", "epsilon:added", ""),
    ("torch.div(x, y + 1e-8)", "y + 1e-8", "epsilon:added", ""),
    ("x.div(y + 1e-8)", "y + 1e-8", "epsilon:added", ""),
    ("x // (y + 1e-8)", "y + 1e-8", "epsilon:added", ""),
    ("torch.log(x + 1e-8)", "x + 1e-8", "epsilon:added", ""),
    ("(x + 1e-8).log()", "x + 1e-8", "epsilon:added", ""),
    ("torch.sqrt(x + 1e-8)", "x + 1e-8", "epsilon:added", ""),
    ("(x + 1e-8).rsqrt()", "x + 1e-8", "epsilon:added", ""),
    # The norm of a zero vector is zero.
    ("F.normalize(x)", "", "epsilon:normalized", ""),
    ("F.normalize(x, 2.0, -1)", "", "epsilon:normalized", ""),
    ("F.normalize(x, 2.0, -1, 1e-12)", "", "epsilon:normalized", ""),
    ("F.normalize(x, 2.0, -1, eps=1e-12)", "", "epsilon:normalized", ""),
    ("F.normalize(x, eps=1e-9)", "", "epsilon:normalized", ""),
    ("F.normalize(input=x)", "", "epsilon:normalized", ""),
    # The bound becomes zero.
    ("x.clamp(min=1e-8)", "", "epsilon:clamped", ""),
    ("x.clamp(1e-8)", "", "epsilon:clamped", ""),
    ("torch.clamp(x, 1e-8)", "", "epsilon:clamped", ""),
    ("x.clamp_min(1e-8)", "", "epsilon:clamped", ""),
    ("torch.clamp_min(x, 1e-8)", "", "epsilon:clamped", ""),
    ("x.clamp(min=1e-8).log()", "x.clamp(min=1e-8)", "epsilon:clamped", ""),
    ("torch.log(x.clamp(1e-8))", "x.clamp(1e-8)", "epsilon:clamped", ""),
    ("y / x.clamp(min=1e-8)", "x.clamp(min=1e-8)", "epsilon:clamped", ""),
    ("y / x.clamp_min(1e-8)", "x.clamp_min(1e-8)", "epsilon:clamped", ""),
    # The bound becomes one.
    ("x.clamp(max=1 - 1e-8)", "", "epsilon:to-one", "epsilon:to-one"),
    ("x.clamp(1e-4, 1 - 1e-8)", "", "epsilon:to-one", "epsilon:to-one"),
    ("x.clamp_max(1 - 1e-8)", "", "epsilon:to-one", "epsilon:to-one"),
    ("torch.clamp(x, max=0.99999)", "", "epsilon:to-one", "epsilon:to-one"),
    # The number becomes infinite.
    ("x.clamp(-1e9, 1e9)", "", "fill:bound", ""),
    ("x.clamp(min=-1e9)", "", "fill:bound", ""),
    ("x.clamp(max=1e9)", "", "fill:bound", ""),
    ("x.masked_fill(mask, -1e9)", "", "fill:overflow", ""),
    ("x.masked_fill_(mask, -1e9)", "", "fill:overflow", ""),
    ("x.masked_fill(mask, value=-1e9)", "", "fill:overflow", ""),
    ("x.fill_(1e9)", "", "fill:overflow", ""),
    ("x.index_fill(0, mask, 1e9)", "", "fill:overflow", ""),
    # Squares overflow, and logarithms of small numbers are lost.
    ("(x * x).sum()", "", "fragile:squares", ""),
    ("x.square().sum()", "", "fragile:squares", ""),
    ("x.pow(2).sum(-1)", "", "fragile:squares", ""),
    ("torch.sum(x**2)", "", "fragile:squares", ""),
    ("x.var()", "", "fragile:variance", ""),
    ("x.var(-1)", "", "fragile:variance", ""),
    ("torch.var(x)", "", "fragile:variance", ""),
    ("torch.log(F.softmax(x, -1))", "", "fragile:log-softmax", ""),
    ("F.softmax(x, -1).log()", "", "fragile:log-softmax", ""),
    ("torch.log(torch.sigmoid(x))", "", "fragile:log-sigmoid", ""),
    ("torch.log(1 - torch.sigmoid(x))", "", "fragile:log-complement", "fragile:log-complement"),
    ("torch.log1p(-torch.sigmoid(x))", "", "fragile:log-complement", "fragile:log-complement"),
    ("torch.exp(x).sum().log()", "", "fragile:logsumexp", ""),
    ("torch.log(torch.exp(x).sum(-1))", "", "fragile:logsumexp", ""),
    # No kernel.
    ("torch.linalg.inv(x)", "", "op:refused", "op:refused"),
    ("torch.fft.fft(x)", "", "op:lengths", "op:refused"),
    ("torch.linalg.svd(x)", "", "op:refused", "op:refused"),
    ("torch.linalg.cholesky(x)", "", "op:refused", "op:refused"),
    # Numbers that float16 has, and sums of small numbers.
    ("F.normalize(x, 2.0, -1, 1e-4)", "", "", ""),
    ("F.normalize(x, eps=0.0)", "", "", ""),
    ("F.normalize(x, eps=y)", "", "", ""),
    ("x / (y + 1e-3)", "", "", ""),
    ("x / (y + 1)", "", "", ""),
    ("x / (y + 0.0)", "", "", ""),
    ("x.clamp(1e-4, 1 - 1e-3)", "", "", "epsilon:to-one"),
    ("x.clamp(-65504, 65504)", "", "", ""),
    ("x.clamp(min=float('-inf'))", "", "", ""),
    ("x.mean(dtype=torch.float32)", "", "", ""),
    ("x.tanh().var()", "", "", ""),
    ("(x - x.max()).exp().sum()", "", "", ""),
]


@pytest.mark.parametrize(("expression", "part", "half", "bfloat"), FORMS, ids=[form[0] for form in FORMS])
def test_what_low_precision_makes_of_an_expression(expression: str, part: str, half: str, bfloat: str) -> None:
    named = ast.unparse(ast.parse(part or expression))
    assert reported(expression, "float16") == ([(half, named)] if half else [])
    assert reported(expression, "bfloat16") == ([(bfloat, named)] if bfloat else [])
    assert reported(expression, "") == []
