"""Inferred dtypes of tensors, observed through findings about an epsilon, a square or a sum."""

from __future__ import annotations

import contextlib

import pytest
import torch

from pytest_amp_check.static.engine import check_source

HEAD = """\
import torch
from torch import nn
from torch.nn import functional as F

layer = nn.Linear(8, 8)
"""


def said(body: str, code: str) -> list[tuple[int, str]]:
    """Return line and severity of each finding. Lines count from 1 in the body."""
    findings = check_source(HEAD + body, "train.py")
    return [(f.line - HEAD.count("\n"), f.severity) for f in findings if f.code == code]


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("layer(x) + 1e-8", True),
        ("F.linear(x, w) + 1e-8", True),
        ("(x @ w).relu().mean(-1) + 1e-8", True),
        ("layer(x)[:, 1:].transpose(0, 1) + 1e-8", True),
        ("torch.add(layer(x), 1e-8)", True),
        ("layer(x).add(1e-8)", True),
        ("torch.clamp(layer(x), min=1e-8)", True),
        ("torch.clamp(layer(x), 1e-8, 1.0)", True),
        ("layer(x).half() + 1e-8", True),
        ("(layer(x) * 2 - 1) + 1e-8", True),
        ("layer(x) + 1e-7", False),
        ("layer(x) + 1e-8 * 0", False),
        ("layer(x).exp() + 1e-8", False),
        ("1 / layer(x) + 1e-8", False),
        ("layer(x) ** 2 + 1e-8", False),
        ("layer(x).float().relu() + 1e-8", False),
        ("layer(x).to(torch.float32) + 1e-8", False),
        ("layer(x).to(other) + 1e-8", False),
        ("layer(x) * x + 1e-8", False),
        ("x + 1e-8", False),
        ("F.layer_norm(layer(x), (8,)) + 1e-8", False),
        ("layer(x).softmax(-1) + 1e-8", False),
        ("unheard_of(layer(x)) + 1e-8", False),
        ("len(layer(x)) + 1e-8", False),
    ],
)
def test_an_epsilon_on_an_expression_under_the_autocast_of_cuda(expression: str, found: bool) -> None:
    body = f'with torch.autocast("cuda", dtype=torch.float16):\n    y = {expression}\n'
    assert said(body, "AMP505") == ([(2, "warning")] if found else [])


@pytest.mark.parametrize(
    ("region", "severity"),
    [
        ('"cuda", dtype=torch.float16', "warning"),
        ('"cuda"', "warning"),
        ("device_type=device, dtype=torch.float16", "warning"),
        ('"cuda", enabled=use_amp', "warning"),
        ('"cuda", dtype=dtype', "info"),
        ('"cuda", dtype=torch.bfloat16', ""),
        ('"cpu"', ""),
        ('"cuda", enabled=False', ""),
        ('"cuda", dtype=torch.float32', ""),
    ],
)
def test_the_region_decides(region: str, severity: str) -> None:
    body = f"with torch.autocast({region}):\n    y = layer(x) + 1e-8\n"
    assert said(body, "AMP505") == ([(2, severity)] if severity else [])


def test_softmax_is_float32_on_cuda_and_low_on_the_cpu() -> None:
    body = "with torch.autocast({}, dtype=torch.float16):\n    y = layer(x).softmax(-1) + 1e-8\n"
    assert said(body.format('"cuda"'), "AMP505") == []
    assert said(body.format('"cpu"'), "AMP505") == [(2, "warning")]
    assert said(body.format("device"), "AMP505") == []


def test_paths_that_join() -> None:
    body = """\
with torch.autocast("cuda", dtype=torch.float16):
    y = layer(x)
    if plain:
        y = y.float()
    a = y + 1e-8
    z = layer(x)
    if doubled:
        z = layer(z)
    b = z + 1e-8
"""
    assert said(body, "AMP505") == [(9, "warning")]


def test_what_a_function_is_given() -> None:
    body = """\
def normalise(t, eps=1e-8):
    return t / (t.std() + eps)


with torch.autocast("cuda", dtype=torch.float16):
    y = normalise(layer(x))
"""
    assert said(body, "AMP505") == [(2, "warning")]
    assert said(body.replace("layer(x))", "layer(x).float())"), "AMP505") == []
    assert said(body.replace("layer(x))", "layer(x), eps=1e-4)"), "AMP505") == []


def test_what_a_model_of_unknown_code_gives_is_likely_low() -> None:
    body = """\
model = make()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with torch.autocast("cuda", dtype=torch.float16):
    y = model(x) + 1e-8
"""
    assert said(body, "AMP505") == [(4, "info")]


def test_a_mean_of_squares_that_promoted_or_are_bounded() -> None:
    body = 'target = torch.ones(8)\nwith torch.autocast("cuda"):\n    y = layer(x)\n    z = {}\n'
    assert said(body.format("(y * y).mean()"), "AMP507") == [(4, "warning")]
    assert said(body.format("torch.mean(torch.mul(y, y))"), "AMP507") == [(4, "warning")]
    assert said(body.format("(y * x).mean()"), "AMP507") == []
    assert said(body.format("((y - target) * (y - target)).mean()"), "AMP507") == []
    assert said(body.format("(y.tanh() * y.tanh()).mean()"), "AMP507") == []


def test_a_sum_over_the_terms_of_one_forward_is_no_running_sum() -> None:
    body = """\
total = 0
with torch.autocast("cuda"):
    for part in parts:
        total += layer(part)
"""
    assert said(body, "AMP508") == []
    body = """\
total = 0
for part in parts:
    with torch.autocast("cuda"):
        y = layer(part)
    total += y
"""
    assert said(body, "AMP508") == [(5, "warning")]


def test_what_is_written_to_raise_is_no_mistake() -> None:
    body = """\
with torch.autocast("cuda", dtype=torch.bfloat16):
    y = layer(x)
with pytest.raises(TypeError):
    y.numpy()
"""
    assert said(body, "AMP108") == []
    assert said(body.replace("with pytest.raises(TypeError):", "if True:"), "AMP108") == [(4, "warning")]


@pytest.mark.parametrize(
    ("statements", "lines"),
    [
        ("total = 0.0\nfor x in loader:\n    R: y = layer(x).mean()\n    total = total + y\n", [5]),
        (
            "for _ in range(9):\n    total = 0.0\n    for x in loader:\n        R: y = layer(x)\n        total += y\n",
            [6],
        ),
        ("mean = 0.0\nfor x in loader:\n    R: y = layer(x)\n    mean = 0.9 * mean + 0.1 * y\n", [5]),
        ("total = torch.zeros(1).half()\nfor x in loader:\n    R: y = layer(x).float()\n    total += y\n", [5]),
        ("total = torch.zeros(1).half()\nfor x in loader:\n    R: y = layer(x).float()\n    total.add_(y)\n", [5]),
        ("mean = torch.zeros(8).half()\nfor x in loader:\n    R: y = layer(x)\n    mean.mul_(0.9).add_(y)\n", [5]),
        ("mean = torch.zeros(8).half()\nfor x in loader:\n    R: y = layer(x)\n    mean.lerp_(y, 0.1)\n", [5]),
        ("mean = torch.zeros(8)\nfor x in loader:\n    R: y = layer(x)\n    mean.lerp_(y, 0.1)\n", []),
        ("total = torch.zeros(1).half()\nfor x in loader:\n    R: y = layer(x).float()\n    total = total + y\n", []),
        ("total = 0.0\nfor x in loader:\n    R: y = layer(x)\n    total = y + x\n", []),
        # Each backward makes new gradients.
        ("total = torch.zeros(8).half()\nfor x in loader:\n    R: y = layer(x)\n    total += layer.weight.grad\n", [5]),
        ("total = torch.zeros(8)\nfor x in loader:\n    R: y = layer(x)\n    total += layer.weight.grad\n", []),
        ("total = torch.zeros(8).half()\ntotal += layer.weight.grad\n", []),
        # Each iteration writes to other elements: the parts of an image in which windows overlap.
        ("total = torch.zeros(8, 8).half()\nfor i in loader:\n    R: y = layer(x[i])\n    total[i] += y\n", []),
        ("total = torch.zeros(8, 8).half()\nfor x in loader:\n    R: y = layer(x)\n    total[0] += y\n", [5]),
        ("total = 0.0\nfor _ in range(3):\n    R: y = layer(x)\n    total = total + y\n", []),
        ("R: y = layer(x)\nfor z in loader:\n    R: r = layer(y)\n    y = y + r\n", []),
        (
            "for x in loader:\n    total = 0.0\n    R: y = layer(x)\n    for i in y.keys():\n        total += y[i]\n",
            [],
        ),
    ],
)
def test_a_sum_over_the_iterations_of_a_loop(statements: str, lines: list[int]) -> None:
    region = 'with torch.autocast("cuda", dtype=torch.float16):'
    body = ""
    for line in statements.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        inner = line.strip().removeprefix("R: ")
        body += line + "\n" if inner == line.strip() else f"{indent}{region}\n{indent}    {inner}\n"
    assert [line for line, _ in said(body, "AMP508")] == lines


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("torch.mm(y, y, out=memory)", True),
        ("torch.matmul(x, y, out=memory)", True),
        ("memory.addmm_(y, y)", True),
        ("memory.baddbmm_(y, x)", True),
        ("both = torch.cat((y, y.half()))", True),
        ("both = torch.stack([y.half(), y])", True),
        ("torch.add(y, y, out=memory)", False),
        ("torch.mm(memory, memory, out=memory)", False),
        ("torch.mm(y, y, out=y)", False),
        ("torch.mm(y, y, out=other)", False),
        ("memory.addmm_(memory, y.float())", False),
        ("memory = torch.addmm(memory, y, y)", False),
        ("both = torch.cat((y, memory))", False),
    ],
)
def test_a_product_that_is_written_where_nothing_casts(statement: str, found: bool) -> None:
    region = 'with torch.autocast("cpu", dtype=torch.bfloat16):'
    body = f"memory = torch.zeros(8, 8)\n{region}\n    y = layer(x)\n    {statement}\n"
    assert said(body, "AMP108") == ([(4, "warning")] if found else [])


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("memory[y > 0] = y[y > 0]", True),
        ("memory[chosen] = y[chosen]", True),
        ("memory[chosen] = y[chosen].float()", False),
        ("memory[chosen] = y[0, 0]", False),
        ("memory[:4] = y[:4]", False),
        ("memory[0] = y[0]", False),
        ("same[chosen] = torch.nn.functional.mse_loss(y, x, reduction='none')[chosen]", True),
        ("same[chosen] = y[chosen]", False),
        ("same[chosen] = torch.zeros(8, 8)[chosen].to(same.dtype)", False),
        ("same[:] = torch.zeros(8, 8)", False),
        ("same[chosen] = 0.0", False),
    ],
)
def test_what_is_written_where_a_mask_is_true(statement: str, found: bool) -> None:
    region = 'with torch.autocast("cpu", dtype=torch.bfloat16):'
    body = (
        f"memory = torch.zeros(8, 8)\n{region}\n    y = layer(x)\n    chosen = y > 0\n    same = torch.zeros_like(y)\n"
    )
    assert said(f"{body}    {statement}\n", "AMP108") == ([(6, "warning")] if found else [])
    names = {"torch": torch, "layer": torch.nn.Linear(8, 8), "x": torch.randn(8, 8)}
    with pytest.raises(RuntimeError, match="dtype") if found else contextlib.nullcontext():
        exec(f"{body}    {statement}\n", names)  # noqa: S102 - what is found is what torch refuses


ROTARY = """\
class Rotary(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.register_buffer("inverse", 10000.0 ** -(torch.arange(0, 512, 2).float() / 512))
        t = torch.arange(n).float()
        self.register_buffer("positions", t[:, None])

    def forward(self, x):
        return x * (self.positions @ self.inverse[None]).cos()

rotary = Rotary(4096)
"""


def test_positions_in_a_buffer() -> None:
    region = 'with torch.autocast("cuda", dtype=torch.bfloat16):\n    y = rotary(x)\n'
    assert said(ROTARY + region, "AMP509") == [(9, "warning")]
    assert said(ROTARY + "y = rotary(x)\n", "AMP509") == []
    assert said(ROTARY.replace("(n)", "(64)") + region, "AMP509") == []
    assert said(ROTARY.replace("self.positions @", "self.positions *") + region, "AMP509") == []


def test_positions_that_are_counted() -> None:
    body = 'with torch.autocast("cuda", dtype=torch.bfloat16):\n    ids = torch.cumsum(mask.long(), -1).float()\n'
    assert said(body + '    y = torch.einsum("bi,j->bij", ids, w).sin()\n', "AMP509") == [(3, "warning")]
    assert said(body + "    y = (ids[..., None] * w).sin()\n", "AMP509") == []


@pytest.mark.parametrize(
    ("positions", "found"),
    [
        ("torch.arange(4096).type_as(w)", True),
        ("torch.arange(x.shape[1]).to(w.dtype)", True),
        ("torch.arange(4096, device=x.device)", False),
        ("torch.arange(64).type_as(w)", False),
        ("torch.ones(4096).type_as(w)", False),
    ],
)
def test_positions_of_another_tensor_s_dtype(positions: str, found: bool) -> None:
    body = 'with torch.autocast("cuda", dtype=torch.bfloat16):\n    y = torch.einsum("i,j->ij", POSITIONS, w).sin()\n'
    assert said(body.replace("POSITIONS", positions), "AMP509") == ([(2, "warning")] if found else [])
