"""Differences of exponentials and one, which cancel in low precision."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source
from pytest_amp_check.static.settings import Settings

HEAD = "import numpy as np\nimport torch\nfrom torch import nn\n\n\n"


def found(expression: str, dtype: str) -> list[tuple[str, int]]:
    """Return code and line (from 1 in the function) of each finding in a function that returns an expression."""
    text = f"{HEAD}def decay(x: torch.Tensor, dt):\n    return {expression}\n"
    findings = check_source(text, "layers.py", Settings(assumed_dtype=dtype))
    return [(each.code, each.line - HEAD.count("\n")) for each in findings]


@pytest.mark.parametrize(
    ("expression", "cancels"),
    [
        ("1 - torch.exp(-x)", True),
        ("1.0 - (-x * dt).exp()", True),
        ("1 - (-x.exp()).exp()", True),
        ("torch.exp(x) - 1", True),
        ("-torch.expm1(-x)", False),
        ("(lambda ratio: ratio - 1)(torch.exp(x))", False),
        ("1 - torch.exp(-x.float())", False),
        ("2 - torch.exp(-x)", False),
        ("1 + torch.exp(-x)", False),
    ],
)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_an_exponential_near_one_cancels(expression: str, cancels: bool, dtype: str) -> None:
    assert found(expression, dtype) == ([("AMP507", 2)] if cancels else [])


@pytest.mark.parametrize(
    ("expression", "fails"),
    [
        ("np.interp(dt, np.arange(10), x.cpu())", True),
        ("np.interp(dt, np.arange(10), x.float().cpu())", False),
        ("np.arange(dt)", False),
    ],
)
def test_a_function_of_numpy_reads_no_bfloat16(expression: str, fails: bool) -> None:
    assert found(expression, "bfloat16") == ([("AMP108", 2)] if fails else [])
    assert found(expression, "float16") == []


@pytest.mark.parametrize(
    ("product", "rounded"),
    [
        ("torch.einsum('n,d->nd', pos, omega)", True),
        ("torch.outer(pos, omega)", False),
        ("pos[:, None] * omega", False),
    ],
)
def test_a_region_rounds_angles_that_a_matrix_product_computes(product: str, rounded: bool) -> None:
    body = (
        "def rope(pos: torch.Tensor, dim, theta):\n"
        "    omega = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)\n"
        f"    return {product}\n"
    )
    findings = check_source(HEAD + body, "rope.py", Settings(assumed_dtype="bfloat16"))
    assert [(each.code, each.line - 5) for each in findings if each.code == "AMP509"] == (
        [("AMP509", 3)] if rounded else []
    )
