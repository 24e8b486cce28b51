"""Custom autograd Functions around ops outside of torch, which are on no list of autocast."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

PROGRAM = """\
import torch
import compiled_ops
from torch import nn


class Op(torch.autograd.Function):
    @staticmethod
    FWD
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        OUT
        return CALL

    @staticmethod
    BWD
    def backward(ctx, grad):
        return compiled_ops.backward(grad, *ctx.saved_tensors)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 3, 1)
        self.norm = nn.LayerNorm(8)
        self.weight = nn.Parameter(torch.randn(3, 1, 3, 3))

    def forward(self, x, other):
        return Op.apply(GIVEN)


def train(model, loader, optimizer):
    for x, other in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x, other).mean()
        loss.backward()
        optimizer.step()


model = Layer()
train(model, loader, torch.optim.SGD(model.parameters(), lr=0.1))
"""
MIXED = "self.first(x), self.weight"
FWD, BWD = "@torch.amp.custom_fwd(device_type='cuda')", "@torch.amp.custom_bwd(device_type='cuda')"


def found(call: str, given: str = MIXED, out: str = "pass", fwd: str = "", bwd: str = "") -> list[str]:
    source = PROGRAM.replace("CALL", call).replace("GIVEN", given).replace("OUT", out)
    source = source.replace("    FWD\n", f"    {fwd}\n").replace("    BWD\n", f"    {bwd}\n")
    return [finding.label for finding in check_source(source) if finding.code == "AMP107"]


@pytest.mark.parametrize(("fwd", "bwd"), [("", ""), (FWD, BWD)])
def test_inputs_of_two_dtypes(fwd: str, bwd: str) -> None:
    assert found("compiled_ops.op(x, weight)", fwd=fwd, bwd=bwd) == ["function:foreign"]


@pytest.mark.parametrize(("fwd", "bwd"), [("", ""), (FWD, BWD)])
def test_a_result_that_is_made_in_float32(fwd: str, bwd: str) -> None:
    call, out = "compiled_ops.op(x, out)", "out = torch.cuda.FloatTensor(4)"
    assert found(call, "self.first(x), other", out, fwd, bwd) == ["function:foreign-output"]


@pytest.mark.parametrize(
    ("call", "given", "out", "fwd", "bwd"),
    [
        ("compiled_ops.op(x, weight)", MIXED, "pass", FWD[:-1] + ", cast_inputs=torch.float32)", BWD),
        ("compiled_ops.op(x, weight.to(x.dtype))", MIXED, "pass", "", ""),
        ("compiled_ops.op(x, weight)", MIXED, "x = x.float()", "", ""),
        ("compiled_ops.op(x, weight)", "self.first(x), other", "pass", "", ""),
        ("compiled_ops.op(x)", MIXED, "pass", "", ""),
        ("torch.add(x, weight)", MIXED, "pass", "", ""),
        ("compiled_ops.op(x, out)", "other, x", "out = torch.zeros(4)", "", ""),
        ("compiled_ops.op(x, out)", "self.first(x), x", "out = torch.zeros(4, dtype=x.dtype)", "", ""),
        ("compiled_ops.op(x, out)", "self.norm(x), x", "out = torch.zeros(4)", "", ""),
    ],
)
def test_one_dtype_or_nobody_knows(call: str, given: str, out: str, fwd: str, bwd: str) -> None:
    assert found(call, given, out, fwd, bwd) == []
