"""Gradients that are read, edited, clipped or hooked: owners, expressions for gradients, and harmful cases."""

from __future__ import annotations

import re
from textwrap import indent

import pytest

from pytest_amp_check.static.engine import check_source

HEAD = """\
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

mover, critic = nn.Linear(9, 3), nn.Linear(9, 3)
fast = torch.optim.SGD(mover.parameters(), lr=0.1)
slow = torch.optim.SGD(critic.parameters(), lr=0.1)
lift = torch.amp.GradScaler("cuda")
{before}
for wave, want in loader:
    fast.zero_grad()
    slow.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        gap = F.mse_loss(mover(wave), want) + F.mse_loss(critic(wave), want)
    lift.scale(gap).backward()
{after}
    lift.step(fast)
    lift.step(slow)
    lift.update()
"""
EDIT, READ, CLIP, PARTLY = "edit@scaled", "read@scaled", "clip@scaled", "clip@partly"
UNSCALED = "lift.unscale_(fast)\n"
EACH = "for p in mover.parameters():\n    "
OTHER = "for p in critic.parameters():\n    "
#: Code between backward and step, the violation of its last statement, and the quoted optimizer.
AFTER = [
    ("clip_grad_norm_(mover.parameters(), 1.0)", CLIP, "fast"),
    ("clip_grad_norm_(critic.parameters(), 1.0)", CLIP, "slow"),
    ("clip_grad_value_(critic.parameters(), 0.5)", CLIP, "slow"),
    ("clip_grad_norm_(parameters=critic.parameters(), max_norm=1.0)", CLIP, "slow"),
    ("clip_grad_norm_(list(mover.parameters()), 1.0)", CLIP, "fast"),
    ("clip_grad_norm_(mover.weight, 1.0)", CLIP, "fast"),
    ("clip_grad_norm_([p for p in mover.parameters() if p.grad is not None], 1.0)", CLIP, "fast"),
    (f"{UNSCALED}clip_grad_norm_(mover.parameters(), 1.0)", "", ""),
    (f"{UNSCALED}clip_grad_norm_(critic.parameters(), 1.0)", CLIP, "slow"),
    ("lift.unscale_(slow)\nclip_grad_norm_(critic.parameters(), 1.0)", "", ""),
    (f"{UNSCALED}lift.unscale_(slow)\nclip_grad_norm_([*mover.parameters(), *critic.parameters()], 1.0)", "", ""),
    (f"{UNSCALED}clip_grad_norm_([*mover.parameters(), *critic.parameters()], 1.0)", PARTLY, "slow"),
    ("clip_grad_norm_(mover.parameters(), 1.0 * lift.get_scale())", "", ""),
    ("clip_grad_norm_(mover.parameters(), max_norm=lift.get_scale())", "", ""),
    (f"{EACH}p.grad.detach().add_(1)", EDIT, "fast"),
    (f"{EACH}p.grad.detach_().add_(1)", EDIT, "fast"),
    (f"{EACH}p.grad.view(-1).clamp_(-1, 1)", EDIT, "fast"),
    (f"{EACH}p.grad.reshape(-1).clamp_(-1, 1)", EDIT, "fast"),
    (f"{EACH}p.grad.flatten().clamp_(-1, 1)", EDIT, "fast"),
    (f"{EACH}print(p.grad.cpu().norm())", READ, "fast"),
    (f"{EACH}print(p.grad.clone().norm())", READ, "fast"),
    (f"{EACH}print(p.grad.float().norm())", READ, "fast"),
    (f"{EACH}print(p.grad.to('cpu').norm())", READ, "fast"),
    (f"{EACH}print(p.grad.data.norm())", READ, "fast"),
    (f"{EACH}print(p.data.norm())", "", ""),
    (f"{EACH}print(p.norm())", "", ""),
    (f"{EACH}g = p.grad\n    print(g.max())", READ, "fast"),
    (f"{EACH}print(p.grad.std())", READ, "fast"),
    (f"{OTHER}print(p.grad.square().sum())", READ, "slow"),
    (f"{EACH}print(p.grad.min())", READ, "fast"),
    (f"{EACH}print(p.grad.histc(10))", READ, "fast"),
    (f"{EACH}print(p.grad.numel())", "", ""),
    ("for name, p in critic.named_parameters():\n    print(name, p.grad.norm())", READ, "slow"),
    (f"{UNSCALED}{EACH}print(p.grad.norm())", "", ""),
    (f"{UNSCALED}{OTHER}print(p.grad.norm())", READ, "slow"),
    (f"{EACH}print(p.grad.norm() / lift.get_scale())", "", ""),
    (f"{EACH}print(p.grad.norm() * (1.0 / lift.get_scale()))", "", ""),
    (f"{EACH}print(torch.linalg.vector_norm(p.grad))", READ, "fast"),
    ("print(torch.nn.utils.get_total_norm([p.grad for p in mover.parameters()]))", READ, "fast"),
    ("torch._foreach_clamp_max_([p.grad for p in mover.parameters()], 1.0)", EDIT, "fast"),
    ("torch._foreach_zero_([p.grad for p in mover.parameters()])", "step@discarded", "fast"),
    (f"{EACH}p.grad[0] = 1.0", EDIT, "fast"),
    (f"{EACH}p.grad[0] = 0.0", "", ""),
    (f"{EACH}p.grad[mask] += 1.0", EDIT, "fast"),
    (f"{EACH}p.data.clamp_(-1, 1)", "", ""),
    (f"{EACH}p.requires_grad = False", "", ""),
    ("fast.zero_grad()", "step@discarded", "fast"),
    ("mover.zero_grad()", "step@discarded", "fast"),
    ("critic.zero_grad()", "step@discarded", "slow"),
    (f"{EACH}p.grad = None", "step@discarded", "fast"),
    ("mover.bias.grad = None", "", ""),
    ("for name, p in mover.named_parameters():\n    if 'bias' in name:\n        p.grad = None", "", ""),
]


@pytest.mark.parametrize(("statements", "label", "optimizer"), AFTER)
def test_between_backward_and_step(statements: str, label: str, optimizer: str) -> None:
    source = HEAD.format(before="", after=indent(statements, "    "))
    found = check_source(source, "train.py")
    assert [each.label for each in found] == ([label] if label else [])
    for each in found:
        text = source.split("\n")[each.line - 1]
        assert text.strip() in (statements.rpartition("\n")[2].strip(), f"lift.step({optimizer})")
        assert optimizer in re.findall(r"\w+", " ".join(re.findall(r"`([^`]*)`", each.message)))


#: A hook registered before the loop, and the violation of its marked line.
HOOKS = [
    ("for p in mover.parameters():\n    p.register_hook(lambda g: g.clamp(-1, 1))  # !", EDIT),
    ("for p in mover.parameters():\n    p.register_hook(lambda g: torch.clamp(g, -1, 1))  # !", EDIT),
    ("for p in mover.parameters():\n    p.register_hook(lambda g: torch.nan_to_num(g))  # !", EDIT),
    ("for p in mover.parameters():\n    p.register_hook(hook=lambda g: g.clip(-1, 1))  # !", EDIT),
    ("for p in mover.parameters():\n    p.register_hook(lambda g: g * 0.5)", ""),
    ("for p in mover.parameters():\n    p.register_hook(lambda g: x.clamp(-1, 1))", ""),
    ("for p in mover.parameters():\n    p.register_hook(lambda g: g.clamp(-lift.get_scale(), lift.get_scale()))", ""),
    ("for p in mover.parameters():\n    p.register_hook(lambda g: print(g.shape))", ""),
    ("def bound(g):  # !\n    return g.clamp(-1, 1)\nfor p in mover.parameters():\n    p.register_hook(bound)", EDIT),
    ("def bound(g):  # !\n    g.clamp_(-1, 1)\nfor p in mover.parameters():\n    p.register_hook(bound)", EDIT),
    ("def bound(g):\n    g.mul_(0.5)\nfor p in mover.parameters():\n    p.register_hook(bound)", ""),
    ("def bound(g):\n    g.clamp(-1, 1)\nfor p in mover.parameters():\n    p.register_hook(bound)", ""),
    (
        (
            "def bound(p):\n    p.grad.clamp_(-1, 1)  # !\nfor p in mover.parameters():\n"
            "    p.register_post_accumulate_grad_hook(bound)"
        ),
        EDIT,
    ),
    (
        (
            "def bound(p):\n    p.grad.mul_(0.5)\nfor p in mover.parameters():\n"
            "    p.register_post_accumulate_grad_hook(bound)"
        ),
        "",
    ),
    ("def bound(p):\n    p.grad.clamp_(-1, 1)\nfor p in mover.parameters():\n    p.register_other_hook(bound)", ""),
    (
        (
            "other = nn.Linear(2, 2)\nlast = torch.optim.SGD(other.parameters(), lr=0.1)\n"
            "for p in other.parameters():\n    p.register_hook(lambda g: g.clamp(-1, 1))"
        ),
        "",
    ),
]


@pytest.mark.parametrize(("statements", "label"), HOOKS)
def test_a_hook_on_gradients(statements: str, label: str) -> None:
    source = HEAD.format(before=statements, after="")
    marked = next((number for number, line in enumerate(source.split("\n"), 1) if "# !" in line), 0)
    found = check_source(source, "train.py")
    assert [(each.line, each.label) for each in found] == ([(marked, label)] if label else [])


@pytest.mark.parametrize(
    ("clip", "raises"),
    [
        ("clip_grad_norm_(mover.parameters(), 1.0, error_if_nonfinite=True)", True),
        ("clip_grad_norm_(mover.parameters(), 1.0, 2.0, True)", True),
        ("clip_grad_norm_(mover.parameters(), 1.0, error_if_nonfinite=False)", False),
        ("clip_grad_norm_(mover.parameters(), 1.0)", False),
        (
            (
                "try:\n    clip_grad_norm_(mover.parameters(), 1.0, error_if_nonfinite=True)\n"
                "except RuntimeError:\n    pass"
            ),
            False,
        ),
    ],
)
def test_a_clip_that_raises_on_overflows(clip: str, *, raises: bool) -> None:
    found = check_source(HEAD.format(before="", after=indent(f"{UNSCALED}{clip}", "    ")), "train.py")
    assert [each.code for each in found] == ["AMP213"] * raises
