"""Trained parameters that are computed from the weights of a layer, and random numbers in low precision."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source
from pytest_amp_check.static.settings import Settings

HEAD = """\
import torch
from torch import nn
from torch.nn import Parameter

"""
MODULE = """\
class Adapter(nn.Module):
    def __init__(self, layer, width=8):
        super().__init__()
        weight = layer.weight.detach()
        STATEMENT

    def forward(self, x):
        return x * self.scale
"""


def find_codes(source: str, dtype: str = "bfloat16") -> list[tuple[str, int]]:
    """Return code and line of each finding."""
    findings = check_source(HEAD + source, "adapters.py", Settings(assumed_dtype=dtype))
    return [(finding.code, finding.line - HEAD.count("\n")) for finding in findings]


@pytest.mark.parametrize(
    ("statement", "is_low"),
    [
        ("self.scale = nn.Parameter(torch.mean(weight, dim=1, keepdim=True))", True),
        ("self.scale = Parameter(layer.weight.norm(dim=1))", True),
        ("self.scale = nn.Parameter(weight.cpu().clone().mean(0))", True),
        ("self.scale = nn.Parameter(torch.zeros_like(layer.bias))", True),
        ("self.scale = nn.Parameter(layer[0].weight.std(1), requires_grad=True)", True),
        ("self.scale = nn.Parameter(weight.float().mean(1))", False),
        ("self.scale = nn.Parameter(torch.zeros_like(layer.bias, dtype=torch.float32))", False),
        ("self.scale = nn.Parameter(weight.mean(1), requires_grad=False)", False),
        ("self.scale = nn.Parameter(weight.mean(1), layer.training)", False),
        ("self.weight = nn.Parameter(layer.weight)", False),
        ("self.weight = nn.Parameter(weight.clone().t())", False),
        ("self.scale = nn.Parameter(torch.ones(width))", False),
        ("self.inner = nn.Linear(width, width); self.scale = nn.Parameter(self.inner.weight.norm(dim=1))", False),
        ("self.register_buffer('scale', layer.weight.norm(dim=1))", False),
    ],
)
def test_parameters_that_take_the_dtype_of_a_layer(statement: str, *, is_low: bool) -> None:
    source = MODULE.replace("STATEMENT", statement)
    assert find_codes(source) == [("AMP501", 5)] * is_low
    # The dtype of the layer is not known without the option.
    assert find_codes(source, "") == []


def test_parameters_of_other_objects_are_not_reported() -> None:
    source = """\
class Folded:
    def __init__(self, layer):
        self.scale = nn.Parameter(layer.weight.mean(1))


def fold(layer, norm):
    layer.weight = nn.Parameter(layer.weight * norm.weight)
"""
    assert find_codes(source) == []


@pytest.mark.parametrize(
    ("expression", "is_reported"),
    [
        ("torch.rand_like(x) > p", True),
        ("p <= torch.rand(4, dtype=x.dtype)", True),
        ("torch.rand(4, device=x.device, dtype=x.dtype) < 0.1", True),
        ("torch.rand_like(x)[:, :1] < p", True),
        ("torch.rand_like(x, dtype=torch.float32) > p", False),
        ("torch.rand(x.shape, device=x.device) > p", False),
        ("torch.rand_like(x.float()) > p", False),
        ("torch.randn_like(x) > p", False),
        ("torch.rand_like(x) * p", False),
        ("x > p", False),
    ],
)
def test_comparisons_of_random_numbers(expression: str, *, is_reported: bool) -> None:
    source = f"def keep(x: torch.Tensor, p: float):\n    return {expression}\n"
    assert find_codes(source) == [("AMP507", 2)] * is_reported
    assert find_codes(source, "float16") == []


def test_random_numbers_of_a_region() -> None:
    source = """\
layer = nn.Linear(8, 8)


def keep(x, p):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y = layer(x)
        mask = torch.rand_like(y) > p
        other = torch.rand_like(x) > p
    return y * mask * other
"""
    assert find_codes(source, "") == [("AMP507", 7)]
