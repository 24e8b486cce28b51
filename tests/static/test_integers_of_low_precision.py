"""Integers that are made of numbers which were scaled in low precision."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source
from pytest_amp_check.static.settings import Settings

HEAD = "import torch\nfrom torch import nn\n\n"


def find_codes(source: str, dtype: str) -> list[tuple[str, int]]:
    """Return code and line of each finding."""
    findings = check_source(HEAD + source, "sound.py", Settings(assumed_dtype=dtype))
    return [(finding.code, finding.line - HEAD.count("\n")) for finding in findings]


@pytest.mark.parametrize(
    ("expression", "dtypes"),
    [
        ("(x * 32767).to(torch.int16)", "bfloat16 float16"),
        ("x.mul(32767).to(dtype=torch.int16)", "bfloat16 float16"),
        ("torch.mul(x, 32767).short()", "bfloat16 float16"),
        ("(32767 * x).clamp(-32768, 32767).round().int()", "bfloat16 float16"),
        ("(x * 999).long()", "bfloat16"),
        ("(x * 999).floor().to(torch.long)", "bfloat16"),
        ("(x * 255).to(torch.int64)", ""),
        ("(x * 1024).long()", ""),
        ("(x.float() * 32767).to(torch.int16)", ""),
        ("(x.to(torch.float32).mul(32767)).to(torch.int16)", ""),
        ("x.to(torch.int16)", ""),
        ("(x * 32767).to(torch.float32)", ""),
    ],
)
def test_integers_of_scaled_numbers(expression: str, dtypes: str) -> None:
    source = f"def convert(x: torch.Tensor):\n    return {expression}\n"
    for dtype in ("bfloat16", "float16"):
        assert find_codes(source, dtype) == [("AMP509", 2)] * (dtype in dtypes.split())
    assert find_codes(source, "") == []


def test_integers_of_outputs_in_a_region() -> None:
    source = """\
decoder = nn.Linear(8, 8)


def convert(x):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y = decoder(x)
        return (y * 32767).to(torch.int16), (x * 32767).to(torch.int16)
"""
    assert find_codes(source, "") == [("AMP509", 7)]
