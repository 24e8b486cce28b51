"""Code that switches autocast off to compute in float32, and the dtype of what it receives."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source
from pytest_amp_check.static.settings import Settings

HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.cuda.amp import autocast, custom_fwd


"""


def found(body: str, dtype: str = "") -> list[tuple[str, int, str]]:
    """Return code, line (from 1 in the body) and severity of each finding that is not about deprecated calls."""
    findings = check_source(HEAD + body, "losses.py", Settings(assumed_dtype=dtype))
    assert not any(each.certain for each in findings if each.code == "AMP507")
    return [(each.code, each.line - HEAD.count("\n"), each.severity) for each in findings if each.code != "AMP901"]


@pytest.mark.parametrize(
    "off",
    [
        "autocast(enabled=False)",
        "autocast(False)",
        "torch.cuda.amp.autocast(False)",
        "torch.autocast('cuda', enabled=False)",
        "torch.autocast('cuda', torch.float16, False)",
        "torch.amp.autocast(device_type='cuda', enabled=False)",
    ],
)
@pytest.mark.parametrize("op", ["torch.softmax(x, dim=-1)", "F.log_softmax(x, -1)", "x.exp()", "torch.logsumexp(x, 1)"])
def test_a_region_without_autocast_casts_nothing(off: str, op: str) -> None:
    decorated = f"class Loss(nn.Module):\n    @{off}\n    def forward(self, x, y):\n        return {op} + y\n"
    assert [each[:2] for each in found(decorated)] == [("AMP507", 4)]
    inside = f"def loss(x: torch.Tensor, y):\n    with {off}:\n        return {op} + y\n"
    assert [each[:2] for each in found(inside)] == [("AMP507", 3)]


def test_without_the_option_it_is_a_note() -> None:
    body = "@autocast(enabled=False)\ndef loss(x: torch.Tensor):\n    return torch.softmax(x, -1)\n"
    assert found(body) == [("AMP507", 3, "info")]


@pytest.mark.parametrize(
    "body",
    [
        "@autocast(enabled=False)\ndef loss(x: torch.Tensor):\n    x = x.float()\n    return torch.softmax(x, -1)\n",
        "@autocast(enabled=False)\ndef loss(x: torch.Tensor):\n    return torch.softmax(x.to(torch.float32), -1)\n",
        "@autocast(enabled=False)\ndef loss(x: torch.Tensor):\n    return torch.softmax(x.double(), -1)\n",
        # The function decides about the dtype itself.
        "@autocast(enabled=False)\ndef loss(x: torch.Tensor):\n    return torch.softmax(x, -1).to(x.dtype)\n",
        # Neither is a sum of probabilities, which only the option reports.
        "@autocast(enabled=False)\ndef loss(x: torch.Tensor):\n    return x.sum()\n",
        "@autocast(enabled=True)\ndef loss(x: torch.Tensor):\n    return torch.softmax(x, -1)\n",
        "def loss(x: torch.Tensor):\n    return torch.softmax(x, -1)\n",
        "@custom_fwd(cast_inputs=torch.float32)\ndef loss(x: torch.Tensor):\n    return torch.softmax(x, -1)\n",
        "def loss(x: torch.Tensor):\n    x = x.float()\n    with autocast(enabled=False):\n        return x.exp()\n",
    ],
)
def test_right_code_is_silent(body: str) -> None:
    assert found(body) == []


def test_a_function_has_one_finding() -> None:
    body = "@autocast(enabled=False)\ndef loss(x: torch.Tensor):\n    return x.exp() + x.softmax(-1) + x.logsumexp(1)\n"
    assert len(found(body)) == 1


def test_the_option_reports_every_op_that_autocast_runs_in_float32() -> None:
    body = "@autocast(enabled=False)\ndef loss(x: torch.Tensor):\n    return x.sum()\n"
    assert [each[:2] for each in found(body, "float16")] == [("AMP507", 3)]
