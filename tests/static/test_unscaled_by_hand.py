"""Gradients that a program divides by the loss scale itself, in all forms of the division."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

PROGRAM = """\
import torch
from torch import nn

model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scale = scaler.get_scale()
    {edit}
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scaler.update()
"""
EACH = "for p in model.parameters(): "
GRADS = "[p.grad for p in model.parameters()]"


def labels(edit: str) -> list[str]:
    return [finding.label for finding in check_source(PROGRAM.format(edit=edit))]


@pytest.mark.parametrize(
    "edit",
    [
        f"{EACH}p.grad.div_(scale)",
        f"{EACH}p.grad /= scale",
        f"{EACH}p.grad.mul_(1 / scale)",
        f"{EACH}p.grad *= 1 / scale",
        f"{EACH}p.grad = p.grad / scale",
        f"{EACH}p.grad = p.grad * (1 / scale)",
        f"{EACH}p.grad = (1 / scale) * p.grad",
        f"{EACH}p.grad = p.grad.div(scale)",
        f"{EACH}p.grad = torch.div(p.grad, scale)",
        f"{EACH}p.grad.copy_(p.grad / scale)",
        f"{EACH}p.grad.data.div_(scale)",
        f"{EACH}p.grad.data = p.grad.data / scale",
        f"torch._foreach_div_({GRADS}, scale)",
        f"torch._foreach_mul_({GRADS}, 1 / scale)",
    ],
)
def test_the_gradients_are_unscaled(edit: str) -> None:
    assert labels(edit) == []


@pytest.mark.parametrize(
    "number",
    [
        "scaler.get_scale()",
        "scaler._scale",
        "float(scale)",
        "int(scale)",
        "abs(scale)",
        "round(scale)",
        "max(scale, 1.0)",
        "min(1e6, scale)",
        "torch.tensor(scale)",
        "torch.as_tensor(scale)",
        "scale.item()",
        "(scale or 1)",
        "(scale if x else 1)",
        "scale + 0.0",
    ],
)
def test_the_number_may_be_the_scale(number: str) -> None:
    assert labels(f"{EACH}p.grad.div_({number})") == []
    assert labels(f"{EACH}p.grad.mul_(1 / {number})") == []


@pytest.mark.parametrize(
    "edit",
    [
        "pass",
        f"{EACH}p.grad.mul_(scale)",
        f"{EACH}p.grad.div_(1 / scale)",
        f"{EACH}p.grad.div_(2)",
        f"{EACH}p.grad.mul_(0.5)",
        f"torch._foreach_mul_({GRADS}, scale)",
        "scale = 1 / scale",
    ],
)
def test_the_gradients_stay_scaled(edit: str) -> None:
    assert labels(edit) == ["clip@scaled", "plain-step@scaled"]


@pytest.mark.parametrize(
    "call",
    [
        "print(scaler)",
        "print(scaler.get_scale())",
        "scaler.is_enabled()",
        "scaler.state_dict()",
        "scaler.get_growth_factor()",
        "scaler.set_growth_interval(5)",
        "scaler.a_method_of_a_later_version()",
        "optimizer.state_dict()",
        "optimizer.param_groups[0]['lr'] = 0.1",
        "optimizer.a_method_of_a_later_version()",
        "torch.cuda.synchronize()",
        "logger.info(loss.item())",
        "model.train()",
        "scheduler.step()",
    ],
)
def test_a_call_that_leaves_the_gradients_alone(call: str) -> None:
    assert labels(call) == ["clip@scaled", "plain-step@scaled"]


@pytest.mark.parametrize(
    "call",
    [
        "scaler.unscale_(optimizer)",
        "unscale(scaler, optimizer)",
        "unscale(optimizer=optimizer, scaler=scaler)",
        "manager.unscale(scaler, optimizer)",
        "manager.unscale({'scaler': scaler, 'optimizer': optimizer})",
        "unscale([scaler, optimizer])",
        "unscale(*[scaler, optimizer])",
        "unscale(**{'scaler': scaler, 'optimizer': optimizer})",
    ],
)
def test_a_call_that_may_unscale(call: str) -> None:
    assert "clip@scaled" not in labels(call)
