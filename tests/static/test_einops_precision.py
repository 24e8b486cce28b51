"""Functions of einops and opt_einsum keep the dtype of their tensors, so that rules see through them."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source
from pytest_amp_check.static.settings import Settings

HEAD = """\
import einops
import einx
import opt_einsum
import torch
import torch.nn.functional as F
from einops import rearrange, reduce, repeat
from torch import nn


"""


def found(body: str) -> list[tuple[str, int]]:
    """Return code and line (from 1 in the body) of each finding if inputs are bfloat16."""
    findings = check_source(HEAD + body, "layers.py", Settings(assumed_dtype="bfloat16"))
    return [(each.code, each.line - HEAD.count("\n")) for each in findings]


ATTENTION = """\
class Attention(nn.Module):
    def forward(self, q, k, v, mask):
        {statement}
        weights = scores.softmax(dim=-1)
        return weights @ v
"""


@pytest.mark.parametrize(
    ("statement", "is_low"),
    [
        ("scores = einops.einsum(q, k, 'b i d, b j d -> b i j')", True),
        ("scores = einops.einsum(q.float(), k.float(), 'b i d, b j d -> b i j')", False),
        ("scores = opt_einsum.contract('bid,bjd->bij', q, k)", True),
        ("scores = rearrange(q @ k.mT, '(b h) i j -> b h i j', h=4)", True),
        ("scores = rearrange(q @ k.mT, '(b h) i j -> b h i j', h=4).float()", False),
        ("scores = repeat(q @ k.mT, 'b i j -> b h i j', h=4)", True),
        ("scores = rearrange([q @ k.mT, k @ q.mT], 'n b i j -> b n i j')", True),
        ("q, k = map(lambda t: rearrange(t, 'b n (h d) -> b h n d', h=4), (q, k)); scores = q @ k.mT", True),
        ("scores = reduce(q @ k.mT, 'b h i j -> b i j', 'mean')", True),
        ("scores = einx.where('b j, b i j, -> b i j', mask, q @ k.mT, -1e4)", True),
        ("scores = einx.where('b j, b i j, -> b i j', mask, (q @ k.mT).float(), -1e4)", False),
        ("scores = einx.dot('b i [d], b j [d] -> b i j', q, k)", True),
        ("scores = reduce((q @ k.mT).float(), 'b h i j -> b i j', 'mean')", False),
    ],
)
def test_scores_keep_their_dtype(statement: str, is_low: bool) -> None:
    # The product of float32 weights and low values is AMP108.
    assert found(ATTENTION.format(statement=statement)) == ([("AMP507", 4)] if is_low else [("AMP108", 5)])


def test_a_mean_of_squares_by_a_pattern_normalizes_in_low_precision() -> None:
    body = """\
class Norm(nn.Module):
    def forward(self, x):
        scale = reduce(x ** 2, 'b c n -> b c 1', 'mean')
        return x * (scale + 1e-6).rsqrt()
"""
    assert found(body) == [("AMP507", 3)]
    assert found(body.replace("x ** 2", "x.float() ** 2")) == []


@pytest.mark.parametrize("reduction", ["'any'", "'all'", "torch.logsumexp", "name"])
def test_other_reductions_of_a_pattern_say_nothing(reduction: str) -> None:
    body = f"def pool(x: torch.Tensor, name):\n    return F.relu(reduce(x, 'b n d -> b d', {reduction}))\n"
    assert found(body) == []


def test_a_function_of_another_name_says_nothing() -> None:
    assert found("def parse(x: torch.Tensor):\n    return einops.parse_shape(x, 'b c')\n") == []
