"""Custom Functions, compiled modules and captures: conditions under which each breaks in a region or works."""

from __future__ import annotations

from textwrap import indent

import pytest

from pytest_amp_check.static.engine import check_source

FUNCTION = """\
import numpy as np
import torch
from kernels import fused_scan
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.amp import custom_bwd, custom_fwd


class Mix(Function):
    @staticmethod
{fwd}
    def forward(ctx, frames, filters):
        {forward}

    @staticmethod
{bwd}
    def backward(ctx, slope):
        frames, filters = ctx.saved_tensors
        {backward}


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.filters = nn.Parameter({weight})
        self.inner = nn.Linear(8, 8)

    def forward(self, frames):
        {applied}


layer = Layer().cuda()
with torch.autocast("cuda", dtype=torch.float16):
    out = layer(frames).sum()
out.backward()
"""
CUDA, CPU = 'device_type="cuda"', 'device_type="cpu"'
PRODUCT = "ctx.save_for_backward(frames, filters); return frames @ filters"
ALIKE = "ctx.save_for_backward(frames, filters); return frames * filters"
GRADIENTS = "return slope @ filters.t(), frames.t() @ slope"
APPLIED = "return Mix.apply(frames, self.filters)"
RANDOM = "torch.randn(8, 8)"
KERNEL = "ctx.save_for_backward(frames, filters); return fused_scan(frames, filters)"
UNDECORATED, ALONE, BACKWARD = "function:undecorated", "function:forward-alone", "function:backward-alone"
DEVICES, FOREIGN, OUTPUT = "function:devices", "function:foreign", "function:foreign-output"
#: Decorators of forward and backward, their bodies, the weight, the call of the layer, and the violation.
FUNCTIONS = [
    ("", "", PRODUCT, GRADIENTS, RANDOM, APPLIED, UNDECORATED),
    (f"@custom_fwd({CUDA})", f"@custom_bwd({CUDA})", PRODUCT, GRADIENTS, RANDOM, APPLIED, ""),
    (f"@custom_fwd({CUDA})", "", PRODUCT, GRADIENTS, RANDOM, APPLIED, ALONE),
    ("", f"@custom_bwd({CUDA})", PRODUCT, GRADIENTS, RANDOM, APPLIED, BACKWARD),
    ("", f"@custom_bwd({CUDA})", ALIKE, "return slope, slope", RANDOM, APPLIED, BACKWARD),
    (f"@custom_fwd({CUDA})", f"@custom_bwd({CPU})", PRODUCT, GRADIENTS, RANDOM, APPLIED, DEVICES),
    (f"@custom_fwd({CPU})", f"@custom_bwd({CUDA})", PRODUCT, GRADIENTS, RANDOM, APPLIED, DEVICES),
    (f"@custom_fwd({CUDA})", '@custom_bwd(device_type="cuda:0")', PRODUCT, GRADIENTS, RANDOM, APPLIED, ""),
    (f"@custom_fwd({CUDA})", "@custom_bwd(device_type=kind)", PRODUCT, GRADIENTS, RANDOM, APPLIED, ""),
    (f"@custom_fwd({CUDA}, cast_inputs=torch.float32)", "", PRODUCT, GRADIENTS, RANDOM, APPLIED, ""),
    ("@other", "", PRODUCT, GRADIENTS, RANDOM, APPLIED, ""),
    ("", "@once_differentiable", PRODUCT, GRADIENTS, RANDOM, APPLIED, UNDECORATED),
    ("", "", PRODUCT, "return slope @ filters.to(slope.dtype).t(), None", RANDOM, APPLIED, ""),
    ("", "", PRODUCT, "return slope @ filters.half().t(), None", RANDOM, APPLIED, ""),
    ("", "", PRODUCT, "return slope.float() @ filters.t(), None", RANDOM, APPLIED, ""),
    ("", "", PRODUCT, "return slope @ filters.t(), None", RANDOM, APPLIED, UNDECORATED),
    ("", "", PRODUCT, "return None, frames.t() @ slope", RANDOM, APPLIED, ""),
    ("", "", PRODUCT, "return torch.mm(slope, filters.t()), None", RANDOM, APPLIED, UNDECORATED),
    ("", "", PRODUCT, "return slope.matmul(filters.t()), None", RANDOM, APPLIED, UNDECORATED),
    ("", "", PRODUCT, "return slope * filters, None", RANDOM, APPLIED, ""),
    ("", "", PRODUCT, "return slope, slope", RANDOM, APPLIED, ""),
    (
        "",
        "",
        "ctx.save_for_backward(frames, filters); return torch.mm(frames, filters)",
        GRADIENTS,
        RANDOM,
        APPLIED,
        UNDECORATED,
    ),
    ("", "", ALIKE, GRADIENTS, RANDOM, APPLIED, ""),
    (
        "",
        "",
        "filters = filters * 2; ctx.save_for_backward(frames, filters); return frames @ filters",
        GRADIENTS,
        RANDOM,
        APPLIED,
        "",
    ),
    (
        "",
        "",
        "ctx.save_for_backward(filters, frames); return frames @ filters",
        "return slope @ frames.t(), None",
        RANDOM,
        APPLIED,
        UNDECORATED,
    ),
    ("", "", PRODUCT, GRADIENTS, "torch.zeros(8, 8)", APPLIED, UNDECORATED),
    ("", "", PRODUCT, GRADIENTS, "torch.randn(8, 8, dtype=torch.float16)", APPLIED, ""),
    ("", "", PRODUCT, GRADIENTS, "torch.randn(8, 8).half()", APPLIED, ""),
    ("", "", PRODUCT, GRADIENTS, "load()", APPLIED, ""),
    ("", "", PRODUCT, GRADIENTS, RANDOM, "return Mix.apply(frames, frames)", ""),
    ("", "", PRODUCT, GRADIENTS, RANDOM, "return Mix.apply(frames, self.filters.half())", ""),
    # Code outside of torch takes one dtype.
    ("", "", KERNEL, "return slope, slope", RANDOM, "return Mix.apply(self.inner(frames), self.filters)", FOREIGN),
    ("", "", KERNEL, "return slope, slope", RANDOM, "return Mix.apply(self.filters, self.filters)", ""),
    (
        f"@custom_fwd({CUDA})",
        f"@custom_bwd({CUDA})",
        KERNEL,
        "return slope, slope",
        RANDOM,
        "return Mix.apply(self.inner(frames), self.filters)",
        FOREIGN,
    ),
    (
        f"@custom_fwd({CUDA}, cast_inputs=torch.float16)",
        f"@custom_bwd({CUDA})",
        KERNEL,
        "return slope, slope",
        RANDOM,
        "return Mix.apply(self.inner(frames), self.filters)",
        "",
    ),
    (
        "",
        "",
        "ctx.save_for_backward(frames, filters); return np.dot(frames, filters)",
        "return slope, slope",
        RANDOM,
        "return Mix.apply(self.inner(frames), self.filters)",
        "",
    ),
    (
        "",
        "",
        "made = torch.zeros(8, 8); ctx.save_for_backward(frames, filters); fused_scan(frames, made)",
        "return slope, slope",
        RANDOM,
        "return Mix.apply(self.inner(frames), self.filters)",
        OUTPUT,
    ),
    (
        "",
        "",
        "made = torch.zeros_like(frames); ctx.save_for_backward(frames, filters); fused_scan(frames, made)",
        "return slope, slope",
        RANDOM,
        "return Mix.apply(self.inner(frames), self.filters)",
        "",
    ),
    (
        "",
        "",
        "made = torch.ones(8, dtype=frames.dtype); ctx.save_for_backward(frames, filters); fused_scan(frames, made)",
        "return slope, slope",
        RANDOM,
        "return Mix.apply(self.inner(frames), self.filters)",
        "",
    ),
]


@pytest.mark.parametrize(("fwd", "bwd", "forward", "backward", "weight", "applied", "label"), FUNCTIONS)
def test_a_custom_function(
    fwd: str, bwd: str, forward: str, backward: str, weight: str, applied: str, label: str
) -> None:
    forward = forward.replace("; ", "\n        ")
    source = FUNCTION.format(
        fwd=indent(fwd, "    "),
        bwd=indent(bwd, "    "),
        forward=forward,
        backward=backward,
        weight=weight,
        applied=applied,
    )
    found = check_source(source, "layers.py")
    assert [each.label for each in found] == ([label] if label else [])
    for each in found:
        lines = source.split("\n")
        method = next(line for line in lines[each.line - 1 :] if "def " in line)
        assert ("def backward" in method) == (label in (ALONE, BACKWARD, DEVICES))
        assert "Mix" in each.message


COMPILED = """\
import torch
from torch import nn


class Precise(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, 8))

    def forward(self, x):
        with torch.autocast("cuda", {context}):
            return {math}


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.held = {held}
        self.last = nn.Linear(8, 2)

    def forward(self, x):
        return self.last({run})


net = {made}
opt = torch.optim.SGD(net.parameters(), lr=0.1)
with torch.autocast("cuda", dtype=torch.bfloat16):
    loss = nn.functional.mse_loss(net(x), y)
{backward}
"""
OFF, PRODUCT32 = "enabled=False", "x.float() @ self.weight"
HELD, RUN, MADE, PLAIN = "Precise()", "self.held(x)", "torch.compile(Outer())", "loss.backward()"
#: Context and product of the island, its holder and call, use of its result, backward, and True if it breaks.
COMPILATIONS = [
    (OFF, PRODUCT32, HELD, RUN, MADE, PLAIN, True),
    ("dtype=torch.float32", PRODUCT32, HELD, RUN, MADE, PLAIN, True),
    ("dtype=torch.float", PRODUCT32, HELD, RUN, MADE, PLAIN, True),
    ("dtype=torch.bfloat16", PRODUCT32, HELD, RUN, MADE, PLAIN, False),
    ("enabled=True", PRODUCT32, HELD, RUN, MADE, PLAIN, False),
    ("enabled=flag", PRODUCT32, HELD, RUN, MADE, PLAIN, False),
    (OFF, "x.float() * self.weight", HELD, RUN, MADE, PLAIN, False),
    (OFF, "torch.mm(x.float(), self.weight)", HELD, RUN, MADE, PLAIN, True),
    (OFF, "nn.functional.linear(x.float(), self.weight)", HELD, RUN, MADE, PLAIN, True),
    (OFF, PRODUCT32, "nn.Sequential(Precise(), nn.ReLU())", RUN, MADE, PLAIN, True),
    (OFF, PRODUCT32, "nn.ModuleList([Precise()])", "self.held[0](x)", MADE, PLAIN, True),
    (OFF, PRODUCT32, "nn.Linear(8, 8)", RUN, MADE, PLAIN, False),
    (OFF, PRODUCT32, HELD, RUN, "Outer()", PLAIN, False),
    (OFF, PRODUCT32, HELD, RUN, "torch.compile(model=Outer())", PLAIN, True),
    (OFF, PRODUCT32, HELD, RUN, "torch.compile(nn.Linear(8, 2))", PLAIN, False),
    (OFF, PRODUCT32, HELD, RUN, MADE, "with torch.autocast('cuda', dtype=torch.bfloat16):\n    loss.backward()", False),
    (OFF, PRODUCT32, HELD, RUN, MADE, "loss.detach()", False),
]


@pytest.mark.parametrize(("context", "math", "held", "run", "made", "backward", "breaks"), COMPILATIONS)
def test_a_compiled_module_with_a_float32_island(
    context: str, math: str, held: str, run: str, made: str, backward: str, *, breaks: bool
) -> None:
    source = COMPILED.format(context=context, math=math, held=held, run=run, made=made, backward=backward)
    found = [each for each in check_source(source, "train.py") if each.code == "AMP601"]
    line = source.split("\n").index("    loss = nn.functional.mse_loss(net(x), y)") + 1
    assert [(each.line, each.message.split("`")[1]) for each in found] == [(line, "net")] * breaks
