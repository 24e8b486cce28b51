"""Backward methods of autograd Functions that ignore the gradient that they receive, and with it the loss scale."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

FUNCTION = """\
import torch
from torch.amp import custom_bwd, custom_fwd


class Guidance(torch.autograd.Function):
    @staticmethod
    @custom_fwd(device_type="cuda")
    def forward(ctx, latents, target):
        ctx.save_for_backward(target)
        return torch.ones([1], device=latents.device, dtype=latents.dtype)

    @staticmethod
    {decorator}
    def backward(ctx, {received}):
        target, = ctx.saved_tensors
        return {returned}
"""
DECORATOR = '@custom_bwd(device_type="cuda")'


def found(returned: str, received: str = "grad", decorator: str = DECORATOR) -> list[tuple[str, int, bool]]:
    text = FUNCTION.format(returned=returned, received=received, decorator=decorator)
    return [(each.code, each.line, each.certain) for each in check_source(text, "guidance.py")]


@pytest.mark.parametrize("returned", ["target, None", "(target / len(target), None)", "target.mul(2)", "None, target"])
@pytest.mark.parametrize("received", ["grad", "grad_output", "one, other"])
def test_a_gradient_of_its_own_has_no_scale(returned: str, received: str) -> None:
    assert found(returned, received) == [("AMP203", 14, False)]


@pytest.mark.parametrize(
    ("returned", "received"),
    [
        ("target * grad, None", "grad"),
        ("target * other, None", "one, other"),
        ("None, None", "grad"),
        ("torch.zeros_like(target), None", "grad"),
        ("target, None", "*grads"),
    ],
)
def test_right_functions_are_silent(returned: str, received: str) -> None:
    assert found(returned, received) == []


def test_without_the_decorator_nothing_shows_a_scaler() -> None:
    text = FUNCTION.format(returned="target, None", received="grad", decorator="")
    text = text.replace('    @custom_fwd(device_type="cuda")\n', "")
    assert [each.code for each in check_source(text, "guidance.py")] == []


def test_the_finding_names_the_function_and_the_gradient() -> None:
    text = FUNCTION.format(returned="target, None", received="grad_output", decorator=DECORATOR)
    (finding,) = check_source(text, "guidance.py")
    assert "`Guidance`" in finding.message
    assert "`grad_output`" in finding.remedy
