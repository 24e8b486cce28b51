"""What is known of the dtypes of tensors, seen by what is said of an epsilon, a square or a sum."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

HEAD = """\
import torch
from torch import nn
from torch.nn import functional as F

layer = nn.Linear(8, 8)
"""


def said(body: str, code: str) -> list[tuple[int, str]]:
    """Lines of the body, from 1, with the severity of what is found there."""
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


def test_ways_that_meet() -> None:
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
