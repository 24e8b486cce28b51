"""AMP508: the second moment of gradients that an optimizer of the project keeps in low precision."""

from __future__ import annotations

import pytest
import torch

from pytest_amp_check import check_source

OPTIMIZER = """\
import math
import torch


class Compact(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999)):
        super().__init__(params, dict(lr=lr, betas=betas))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                st = self.state[p]
                if len(st) == 0:
                    st["step"] = 0
                    st["exp_avg"] = torch.zeros_like(p{first})
                    st["exp_avg_sq"] = torch.zeros_like(p{second})
                st["step"] += 1
                m, v, g = st["exp_avg"], st["exp_avg_sq"], p.grad
                m.mul_(b1).add_(g, alpha=1 - b1)
                {update}
                p.addcdiv_(m, v.float().sqrt().add_(1e-8), value=-group["lr"])
"""
ADDCMUL = "v.mul_(b2).addcmul_(g, g, value=1 - b2)"
BFLOAT16 = ", dtype=torch.bfloat16"


def found(first: str = "", second: str = "", update: str = ADDCMUL) -> list[tuple[str, int]]:
    source = OPTIMIZER.format(first=first, second=second, update=update)
    return [(finding.code, finding.line) for finding in check_source(source)]


@pytest.mark.parametrize(
    "update",
    [
        ADDCMUL,
        "v.mul_(b2).add_((g * g).to(v.dtype), alpha=1 - b2)",
        "v.mul_(b2)\n                v.add_(g.pow(2), alpha=1 - b2)",
        "v.mul_(b2).add_(g ** 2, alpha=1 - b2)",
        "v.lerp_(g.square().to(v.dtype), 1 - b2)",
        'st["exp_avg_sq"].mul_(b2).addcmul_(g, g, value=1 - b2)',
    ],
)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_low_second_moment(update: str, dtype: str) -> None:
    assert found(second=f", dtype=torch.{dtype}", update=update) == [("AMP508", 18)]
    assert found(second=", dtype=torch.float32", update=update) == []


@pytest.mark.parametrize(
    ("first", "second", "update"),
    [
        # A decay of 0.9 moves a value of bfloat16.
        (BFLOAT16, "", ADDCMUL),
        ("", BFLOAT16, "stochastic_add_(v, g * g, b2)"),
        ("", BFLOAT16, "v.mul_(b2).addcmul_(g, g, value=1 - b2)\n                kahan_correct(v)"),
        ("", BFLOAT16, 'st["exp_avg_sq"] = v.float() * b2 + g.square() * (1 - b2)'),
    ],
)
def test_other_states(first: str, second: str, update: str) -> None:
    assert found(first, second, update) == []


def test_a_second_moment_of_bfloat16_does_not_fall() -> None:
    low, wide = (torch.ones(8, dtype=dtype) for dtype in (torch.bfloat16, torch.float32))
    for _ in range(2000):
        for moment in (low, wide):
            moment.mul_(0.999).addcmul_(torch.tensor(0.1), torch.tensor(0.1), value=0.001)
    assert low.tolist() == [1.0] * 8
    assert wide.max().item() < 0.2
