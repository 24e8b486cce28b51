"""Attention scores that are scaled after the product that computes them."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source
from pytest_amp_check.static.settings import Settings

PROGRAM = """\
import math
import torch
from torch import nn

qkv, width, SCALE = nn.Linear(64, 192), 64, 64**-0.5


def attend(x, bias):
    with torch.autocast("cuda", dtype=torch.DTYPE):
        q, k, v = qkv(x).chunk(3, dim=-1)
        return SPELLED
"""


def found(spelled: str, dtype: str = "float16", *, select: bool = True) -> list[str]:
    source = PROGRAM.replace("SPELLED", spelled).replace("DTYPE", dtype)
    settings = Settings(select=frozenset({"AMP511"})) if select else Settings()
    return [finding.code for finding in check_source(source, "train.py", settings)]


@pytest.mark.parametrize(
    ("spelled", "reported"),
    [
        ("(q @ k.transpose(-2, -1)) * SCALE", True),
        ("SCALE * (q @ k.mT)", True),
        ("torch.matmul(q, k.transpose(1, 2)) / math.sqrt(width)", True),
        ("torch.bmm(q.transpose(1, 2), k) / 8", True),
        ("q.matmul(k.transpose(1, 2)) * SCALE", True),
        ("torch.einsum('bid,bjd->bij', q, k) * SCALE", True),
        ("(q * SCALE) @ k.transpose(-2, -1)", False),
        ("q @ k.transpose(-2, -1) + bias", False),
        ("torch.einsum('bnc,bnd->bcd', q, q) / 63", False),
        # Factors with the same source text are one list, compared with itself.
        ("torch.einsum('bnc,bnd->bcd', q[0], q[0]) / 63", False),
        ("torch.einsum('bnc,bnd->bcd', q[0], q[1]) / 63", True),
        ("torch.einsum('bnc,bnd->bcd', q[:, 1:], q[:, 1:]) / 63", False),
        ("torch.einsum('bnc,bnd->bcd', q[:, 1:], q[:, :1]) / 63", True),
        ("torch.einsum('bnc,bnd->bcd', q[0], q) / 63", True),
        ("torch.einsum('bnc,bnd->bcd', q.reshape(8, -1), q.reshape(8, -1)) / 63", False),
        ("torch.einsum('bnc,bnd->bcd', q.reshape(8, -1), q.reshape(-1, 8)) / 63", True),
        ("torch.einsum('bnc,bnd->bcd', q.reshape(8, -1), q.reshape(8, -1, 1)) / 63", True),
        ("torch.einsum('bnc,bnd->bcd', q.flatten(), q.flatten(1)) / 63", True),
        ("torch.einsum('bnc,bnd->bcd', q.flatten(), k.flatten()) / 63", True),
        ("torch.einsum('bnc,bnd->bcd', -q, -q) / 63", False),
        ("(q @ v) * SCALE", False),
        ("(q.float() @ k.transpose(-2, -1)) * torch.rand(4)", False),
        ("(x.transpose(0, 1) @ bias).float() * SCALE", False),
    ],
)
def test_spellings(spelled: str, reported: bool) -> None:
    assert found(spelled) == (["AMP511"] if reported else [])


def test_it_is_off_unless_selected_and_silent_in_bfloat16() -> None:
    assert found("(q @ k.transpose(-2, -1)) * SCALE", select=False) == []
    assert found("(q @ k.transpose(-2, -1)) * SCALE", "bfloat16") == []


CALLED = """\
import torch
from torch import nn

qkv, SCALE = nn.Linear(64, 192), 64**-0.5


def attend(q, k, bias):
    return SPELLED


def run(x, bias):
    with torch.autocast("cuda", dtype=torch.float16):
        q, k, v = qkv(x).chunk(3, dim=-1)
        return attend(q, k, bias)
"""


@pytest.mark.parametrize(
    ("spelled", "reported"),
    [
        ("(q @ k.mT) * SCALE", True),
        ("SCALE * (q @ k.mT)", True),
        ("(q @ k.mT) / 8", True),
        ("torch.matmul(q, k.mT) * SCALE", True),
        ("torch.bmm(q, k.mT) / 8", True),
        ("torch.einsum('bid,bjd->bij', q, k) * SCALE", True),
        ("(q @ k.mT) + bias", False),
        ("(q + k.mT) * SCALE", False),
        ("torch.add(q, k.mT) * SCALE", False),
        ("(q * SCALE) @ k.mT", False),
    ],
)
def test_scores_in_a_function_that_says_nothing_else_of_precision(spelled: str, reported: bool) -> None:
    source = CALLED.replace("SPELLED", spelled)
    found = [f.code for f in check_source(source, "train.py", Settings(select=frozenset({"AMP511"})))]
    assert found == (["AMP511"] if reported else [])
