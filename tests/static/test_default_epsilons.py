"""Epsilons that a parameter of a function or of a constructor has by default."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source
from pytest_amp_check.static.settings import Settings

HEAD = "import torch\nfrom torch import nn\n\n"


def find_lines(source: str, dtype: str = "float16") -> list[int]:
    """Return the lines of AMP505."""
    settings = Settings(assumed_dtype=dtype, select=frozenset({"AMP505"}))
    return [finding.line - HEAD.count("\n") for finding in check_source(HEAD + source, "layers.py", settings)]


@pytest.mark.parametrize(
    ("parameters", "body", "is_reported"),
    [
        ("t, eps=1e-12", "torch.log(t.clamp(min=eps))", True),
        ("t, *, tiny: float = 1e-8", "t / (torch.abs(t) + tiny)", True),
        ("t, /, eps=1e-8", "torch.sqrt(t + eps)", True),
        ("t, eps=1e-6", "torch.log(t.clamp(min=eps))", False),
        # Half of the least number of float16 rounds to the even neighbor, which is zero.
        ("t, eps=2.9802322387695312e-08", "torch.log(t.clamp(min=eps))", True),
        ("t, eps=2.9802322387695316e-08", "torch.log(t.clamp(min=eps))", False),
        ("t, eps", "torch.log(t.clamp(min=eps))", False),
        ("t, eps=None", "torch.log(t.clamp(min=eps))", False),
        ("t, eps=1e-12", "torch.log(t.float().clamp(min=eps))", False),
    ],
)
def test_default_of_a_function(parameters: str, body: str, *, is_reported: bool) -> None:
    source = f"def f({parameters}):\n    return {body}\n"
    assert find_lines(source) == [2] * is_reported
    # bfloat16 has the range of float32, and nothing is known without the option.
    assert find_lines(source, "bfloat16") == find_lines(source, "") == []


def test_numbers_that_replace_the_default() -> None:
    assigned = "def f(t, eps=1e-12):\n    eps = choose(t)\n    return torch.log(t.clamp(min=eps))\n"
    assert find_lines(assigned) == []
    passed = """\
def scale(x: torch.Tensor, eps=1e-9):
    return x / (x.abs() + eps)


class Layer(nn.Module):
    def forward(self, x):
        return scale(x, self.limit)
"""
    assert find_lines(passed) == []
    assert find_lines(passed.replace(", self.limit", "")) == [2]


NORM = """\
class Norm(nn.Module):
    def __init__(self, width, eps=1e-8):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        return x / (x.abs().mean(-1, keepdim=True) + self.eps)
"""


@pytest.mark.parametrize(
    ("old", "new", "is_reported"),
    [
        ("", "", True),
        ("eps=1e-8", "eps=1e-5", False),
        ("eps=1e-8", "eps", False),
        ("self.eps = eps", "self.eps = eps\n        self.eps = max(self.eps, 1e-5)", False),
        ("x.abs()", "x.float().abs()", False),
        ("+ self.eps", "+ other.eps", False),
    ],
)
def test_default_of_a_constructor(old: str, new: str, *, is_reported: bool) -> None:
    source = NORM.replace(old, new) if old else NORM
    assert find_lines(source) == [7] * is_reported


def test_complex_numbers_are_not_low() -> None:
    source = """\
class Filter(nn.Module):
    def __init__(self, eps=1e-8):
        super().__init__()
        self.eps = eps

    def forward(self, w, noise):
        return self.ratio((w.conj() * w).abs(), noise)

    def ratio(self, power, noise):
        return power / (noise.abs() + self.eps)


def ratio(w: torch.Tensor, noise: torch.Tensor, eps=1e-8):
    return w.abs() / (noise.abs() + eps) if w.is_complex() else w
"""
    assert find_lines(source) == []
    assert find_lines(source.replace(".conj()", ".abs()").replace("w.is_complex()", "w.any()")) == [10, 14]
