"""Custom autograd Functions: backwards that raise on values from autocast, and backwards that handle dtypes."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

PROGRAM = """\
import other
import torch
from torch import nn


class Mul(torch.autograd.Function):
    @staticmethod
    {fd}
    def forward(ctx, x, w):
        {fwd}

    @staticmethod
    {bd}
    def backward(ctx, g):
        {bwd}


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = {weight}
        self.lin = nn.Linear(8, 8)

    def forward(self, x):
        return {use}


{rest}
"""
PARTS = {
    "fd": "",
    "bd": "",
    "fwd": "ctx.save_for_backward(x, w); return x @ w",
    "bwd": "x, w = ctx.saved_tensors; return g @ w.t(), x.t() @ g",
    "weight": "nn.Parameter(torch.randn(8, 8))",
    "use": "Mul.apply(x, self.w)",
    "rest": 'with torch.autocast("cuda"):\n    loss = Layer()(data).sum()\nloss.backward()',
}
#: A call of the Function itself in a region, with these arguments.
DIRECT = 'with torch.autocast("cuda"):\n    loss = Mul.apply({}).sum()\nloss.backward()'
#: The differences from a Function without decorators, and the findings: method, and label of the violation.
CASES: dict[str, tuple[dict[str, str], list[tuple[str, str]]]] = {
    "plain": ({}, [("forward", "function:undecorated")]),
    "both": (
        {"fd": '@torch.amp.custom_fwd(device_type="cuda")', "bd": '@torch.amp.custom_bwd(device_type="cuda")'},
        [],
    ),
    "fwd alone": ({"fd": '@torch.amp.custom_fwd(device_type="cuda")'}, [("backward", "function:forward-alone")]),
    "bwd alone": ({"bd": '@torch.amp.custom_bwd(device_type="cuda")'}, [("backward", "function:backward-alone")]),
    "devices": (
        {"fd": '@torch.amp.custom_fwd(device_type="cuda")', "bd": '@torch.amp.custom_bwd(device_type="cpu")'},
        [("backward", "function:devices")],
    ),
    "devices same with index": (
        {"fd": '@torch.amp.custom_fwd(device_type="cuda")', "bd": '@torch.amp.custom_bwd(device_type="cuda:0")'},
        [],
    ),
    "old": (
        {"fd": "@torch.cuda.amp.custom_fwd", "bd": "@torch.cuda.amp.custom_bwd"},
        [("@torch.cuda.amp.custom_fwd", "deprecated"), ("@torch.cuda.amp.custom_bwd", "deprecated")],
    ),
    "old and new": (
        {"fd": "@torch.cuda.amp.custom_fwd", "bd": '@torch.amp.custom_bwd(device_type="cpu")'},
        [("@torch.cuda.amp.custom_fwd", "deprecated"), ("backward", "function:devices")],
    ),
    "cast": ({"fd": '@torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)'}, []),
    "unknown deco": ({"fd": "@other.deco"}, []),
    "once": ({"bd": "@torch.autograd.function.once_differentiable"}, [("forward", "function:undecorated")]),
    "device var": (
        {"fd": "@torch.amp.custom_fwd(device_type=dev)", "bd": '@torch.amp.custom_bwd(device_type="cuda")'},
        [],
    ),
    "casts": ({"bwd": "x, w = ctx.saved_tensors; g = g.float(); return g @ w.t(), x.t() @ g"}, []),
    "to dtype": ({"bwd": "x, w = ctx.saved_tensors; return g @ w.t().to(g.dtype), x.t() @ g"}, []),
    "float number": (
        {"bwd": "x, w = ctx.saved_tensors; a = float(2); return g @ w.t() * a, x.t() @ g"},
        [("forward", "function:undecorated")],
    ),
    "no matmul fwd": ({"fwd": "ctx.save_for_backward(x, w); return x * w"}, []),
    "no matmul bwd": ({"bwd": "x, w = ctx.saved_tensors; return g * w, g * x"}, []),
    "functional": (
        {"fwd": "ctx.save_for_backward(x, w); return torch.matmul(x, w)"},
        [("forward", "function:undecorated")],
    ),
    "linear": (
        {
            "fwd": "ctx.save_for_backward(x, w); return nn.functional.linear(x, w)",
            "bwd": "x, w = ctx.saved_tensors; return torch.mm(g, w), torch.mm(g.t(), x)",
        },
        [("forward", "function:undecorated")],
    ),
    "attr": (
        {"fwd": "ctx.x = x; ctx.w = w; return x @ w", "bwd": "return g @ ctx.w.t(), ctx.x.t() @ g"},
        [("forward", "function:undecorated")],
    ),
    "reassigned": (
        {
            "fwd": "w = w * 2; ctx.save_for_backward(x, w); return x @ w",
            "bwd": "x, w = ctx.saved_tensors; return g @ w.t(), None",
        },
        [],
    ),
    "low weight": ({"weight": "nn.Parameter(torch.randn(8, 8).half())"}, []),
    "low weight dtype": ({"weight": "nn.Parameter(torch.randn(8, 8, dtype=torch.float16))"}, []),
    "unknown weight": ({"weight": "make()"}, []),
    "zeros": ({"weight": "nn.Parameter(torch.zeros(8, 8))"}, [("forward", "function:undecorated")]),
    "empty": ({"weight": "torch.nn.Parameter(torch.empty(8, 8))"}, [("forward", "function:undecorated")]),
    "another method": ({"use": "Mul.other(x, self.w)"}, []),
    "another class": ({"use": "Other.apply(x, self.w)"}, []),
    "of input": ({"use": "Mul.apply(x, x)"}, []),
    "product and weight": ({"use": "Mul.apply(self.lin(x), self.w)"}, [("forward", "function:undecorated")]),
    "product": ({"use": "Mul.apply(self.lin(x), x)"}, []),
    "half use": ({"use": "Mul.apply(x.half(), self.w.half())"}, []),
    "no region": ({"rest": "loss = Layer()(data).sum()\nloss.backward()"}, []),
    "off": (
        {"rest": 'with torch.autocast("cuda", enabled=False):\n    loss = Layer()(data).sum()\nloss.backward()'},
        [],
    ),
    "direct full": (
        {
            "use": "x",
            "rest": (DIRECT.format("data, torch.randn(8, 8)")),
        },
        [("forward", "function:undecorated")],
    ),
    "direct unknown": (
        {"use": "x", "rest": 'with torch.autocast("cuda"):\n    loss = Mul.apply(data, data).sum()\nloss.backward()'},
        [],
    ),
    "direct outside": ({"use": "x", "rest": "loss = Mul.apply(data, torch.randn(8, 8)).sum()\nloss.backward()"}, []),
    "foreign": (
        {"fwd": "return other.op(x, w)", "use": "Mul.apply(self.lin(x), self.w)"},
        [("forward", "function:foreign")],
    ),
    "foreign low low": ({"fwd": "return other.op(x, w)", "use": "Mul.apply(self.lin(x), self.lin(x))"}, []),
    "foreign made": (
        {"fwd": "out = torch.empty(8, 8); other.op(x, out); return out", "use": "Mul.apply(self.lin(x), x)"},
        [("forward", "function:foreign-output")],
    ),
    "foreign made dtype": (
        {
            "fwd": "out = torch.empty(8, 8, dtype=x.dtype); other.op(x, out); return out",
            "use": "Mul.apply(self.lin(x), x)",
        },
        [],
    ),
    "foreign torch": (
        {"fwd": "out = torch.empty(8, 8); torch.add(x, w); return out", "use": "Mul.apply(self.lin(x), x)"},
        [],
    ),
    "saved variables": (
        {"bwd": "x, w = ctx.saved_variables; return g @ w.t(), x.t() @ g"},
        [("forward", "function:undecorated")],
    ),
    "saved and kept again": (
        {"bwd": "ctx.x, w = ctx.saved_tensors; return g @ w.t(), None"},
        [("forward", "function:undecorated")],
    ),
    "a product of what is saved": ({"bwd": "x, w = ctx.saved_tensors; y = x.t() @ w; return g * y, g * w"}, []),
    "saved otherwise": ({"bwd": "x, w = ctx.saved; return g @ w.t(), x.t() @ g"}, []),
    "attr of another": ({"fwd": "other.x = x; other.w = w; return x @ w", "bwd": "return g @ ctx.w.t(), ctx.x"}, []),
    "old and the same device": (
        {"fd": "@torch.cuda.amp.custom_fwd", "bd": '@torch.amp.custom_bwd(device_type="cuda")'},
        [("@torch.cuda.amp.custom_fwd", "deprecated")],
    ),
    "dtype of a sum": ({"bwd": "x, w = ctx.saved_tensors; n = g.sum(dtype=d); return g @ w.t(), x.t() @ g"}, []),
    "dimension of a sum": (
        {"bwd": "x, w = ctx.saved_tensors; n = g.sum(dim=d); return g @ w.t(), x.t() @ g"},
        [("forward", "function:undecorated")],
    ),
    "direct and right": (
        {
            "fd": '@torch.amp.custom_fwd(device_type="cuda")',
            "bd": '@torch.amp.custom_bwd(device_type="cuda")',
            "use": "x",
            "rest": DIRECT.format("data, torch.randn(8, 8)"),
        },
        [],
    ),
    "direct, made, of an unknown input": (
        {
            "fwd": "out = torch.empty(8, 8); other.op(x, out); return out",
            "use": "x",
            "rest": 'with torch.autocast("cuda"):\n    loss = Mul.apply(data, data).sum()\nloss.backward()',
        },
        [],
    ),
    "direct, foreign, of low inputs": (
        {
            "fwd": "return other.op(x, w)",
            "use": "x",
            "rest": DIRECT.format("torch.randn(8, 8).half(), torch.randn(8, 8).half()"),
        },
        [],
    ),
    "foreign numpy": (
        {
            "fwd": "return numpy.dot(x, w)",
            "use": "Mul.apply(self.lin(x), self.w)",
            "rest": "import numpy\n" + PARTS["rest"],
        },
        [],
    ),
    "foreign layer": ({"fwd": "return nn.functional.other(x, w)", "use": "Mul.apply(self.lin(x), self.w)"}, []),
    "foreign of no import": ({"fwd": "return ctx.op(x, w)", "use": "Mul.apply(self.lin(x), self.w)"}, []),
    "foreign one": ({"fwd": "return other.op(x)", "use": "Mul.apply(self.lin(x), self.w)"}, []),
    "foreign changed": ({"fwd": "x = x * 2; return other.op(x, w)", "use": "Mul.apply(self.lin(x), self.w)"}, []),
}


@pytest.mark.parametrize("name", CASES)
def test_what_a_function_lacks(name: str) -> None:
    parts, expected = CASES[name]
    given = {part: text.replace("; ", "\n        ") for part, text in (PARTS | parts).items()}
    lines = [line for line in PROGRAM.format(**given).split("\n") if line.strip()]
    found = check_source("\n".join(lines) + "\n", "train.py")
    said = [(lines[each.line - 1].strip().removeprefix("def "), each.label) for each in found]
    assert [(line.partition("(ctx")[0], label) for line, label in said] == expected


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # The context is set up elsewhere, so forward gets none.
        ("def backward(ctx, g)", "def setup_context(ctx, inputs, output):\n        pass\n\n    def backward(ctx, g)"),
        ("def backward(ctx, g)", "def other(ctx, g)"),
        ("def forward(ctx, x, w)", "def other(ctx, x, w)"),
        ("(torch.autograd.Function)", "(other.Function)"),
    ],
)
def test_a_function_of_another_form_is_left_alone(before: str, after: str) -> None:
    program = PROGRAM.format(**{part: text.replace("; ", "\n        ") for part, text in PARTS.items()})
    assert [each.label for each in check_source(program, "train.py")] == ["function:undecorated"]
    assert [each.label for each in check_source(program.replace(before, after), "train.py")] == []
