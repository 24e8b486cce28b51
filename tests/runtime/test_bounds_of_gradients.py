"""Bounds of scaled gradients within a backward pass, and norms over gradients of which only a part is unscaled."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from agreement import check_script


@pytest.fixture(autouse=True)
def _without_compiled_code() -> None:
    """Forget what earlier tests of this process compiled: the recorder watches no bounds beside compiled code."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()


FUNCTIONS = """\
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Limit(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bound):
        ctx.save_for_backward(x)
        ctx.bound = bound
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return {limit}, None


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.x, self.h = nn.Linear(3, 8), nn.Linear(8, 8)

    def forward(self, sequence):
        h = torch.zeros(sequence.shape[0], 8)
        for x in sequence.unbind(1):
            h = torch.tanh(self.x(x) + self.h(h))
            {hook}
        return {result}


torch.manual_seed(0)
scaler = torch.amp.GradScaler("cpu"{enabled})
cell = Cell()
optimizer = torch.optim.SGD(cell.parameters(), lr=0.1)
for sequence in torch.randn(3, 4, 5, 3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype={dtype}):
        loss = cell(sequence).float().square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
FP16 = {"enabled": "", "dtype": "torch.float16", "hook": "pass", "limit": "grad", "result": "Limit.apply(h, 0.1)"}


@pytest.mark.parametrize(
    "limit",
    ["grad.clamp(-ctx.bound, ctx.bound)", "grad.clamp_(-1, 1)", "torch.nan_to_num(grad)", "torch.clip(grad, max=1.0)"],
)
def test_a_function_that_bounds_scaled_gradients_is_named(limit: str, tmp_path: Path) -> None:
    source = FUNCTIONS.replace("return {limit}, None", "return {limit}, None  # AMP202")
    message = check_script(source.format(**{**FP16, "limit": limit}), tmp_path)
    assert "bounds gradients in the backward pass, where they are multiplied by the loss scale" in message


@pytest.mark.parametrize(
    "hook",
    [
        "h.register_hook(lambda g: g.clamp(-0.1, 0.1))  # AMP202",
        "h.register_hook(lambda g: torch.nan_to_num(g, 0.0))  # AMP202",
    ],
)
def test_a_hook_of_an_activation_that_bounds_scaled_gradients_is_named(hook: str, tmp_path: Path) -> None:
    check_script(FUNCTIONS.format(**{**FP16, "hook": hook, "result": "h"}), tmp_path)


@pytest.mark.parametrize(
    "parts",
    [
        {"limit": "grad.clamp(-ctx.bound * scaler.get_scale(), ctx.bound * scaler.get_scale())"},
        {"limit": "grad.clamp(min=0)"},
        {"limit": "grad * (x.clamp(-1, 1) == x)"},
        {"limit": "grad / grad.norm().clamp(min=1e-6)"},
        {"limit": "grad.clamp(max=grad.abs().mean())"},
        {"result": "checkpoint(lambda t: t.clamp(-1, 1), Limit.apply(h, 0.1), use_reentrant=False)"},
        {"result": "checkpoint(lambda t: t.clamp(-1, 1), Limit.apply(h, 0.1), use_reentrant=True)"},
        {"hook": "h.register_hook(lambda g: g * 0.5)"},
        {"limit": "grad.clamp(-0.1, 0.1)", "enabled": ", enabled=False", "dtype": "torch.bfloat16"},
    ],
    ids=lambda parts: next(iter(parts.values())),
)
def test_functions_and_hooks_that_do_not_depend_on_the_scale_are_right(parts: dict[str, str], tmp_path: Path) -> None:
    check_script(FUNCTIONS.format(**{**FP16, **parts}), tmp_path)


PLAYERS = """\
import itertools
import torch
from torch import nn

torch.manual_seed(0)
maker, critic = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 1))
om, oc = torch.optim.SGD(maker.parameters(), 1e-3), torch.optim.SGD(critic.parameters(), 1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
for z in torch.randn(3, 6, 4):
    with torch.autocast("cpu", dtype=torch.float16):
        made = maker(z)
        loss = critic(made.detach()).float().square().mean()
    oc.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(oc)
    oc.zero_grad()
    om.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = (critic(made) - 1).float().square().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(om)
    {between}
    {clip}
    scaler.step(om)
    scaler.update()
"""


TWO_CALLS = """both = [*maker.parameters(), *critic.parameters()]
    norm = nn.utils.get_total_norm([p.grad for p in both])  # AMP202
    nn.utils.clip_grads_with_norm_(both, 0.5, norm)  # AMP212"""


@pytest.mark.parametrize(
    "clip",
    [
        "nn.utils.clip_grad_norm_(itertools.chain(maker.parameters(), critic.parameters()), 0.5)  # AMP212",
        TWO_CALLS,
    ],
)
def test_a_norm_that_includes_scaled_gradients_of_another_loss_is_named(clip: str, tmp_path: Path) -> None:
    message = check_script(PLAYERS.format(between="pass", clip=clip), tmp_path)
    assert "by a norm that includes gradients which are still scaled" in message


@pytest.mark.parametrize(
    ("between", "clip"),
    [
        ("pass", "nn.utils.clip_grad_norm_(maker.parameters(), 0.5)"),
        ("oc.zero_grad()", "nn.utils.clip_grad_norm_([*maker.parameters(), *critic.parameters()], 0.5)"),
        ("pass", "nn.utils.clip_grad_value_([*maker.parameters(), *critic.parameters()], 0.5)"),
    ],
)
def test_clips_of_unscaled_gradients_alone_are_right(between: str, clip: str, tmp_path: Path) -> None:
    check_script(PLAYERS.format(between=between, clip=clip), tmp_path)
