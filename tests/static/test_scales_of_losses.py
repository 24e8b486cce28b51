"""The scale of a loss at the backward: none, one, two, or a removed scale."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

TRAIN = """\
import torch
from torch import autograd, nn
from torch.nn import functional as F

torso, critic = nn.Linear(10, 4), nn.Linear(10, 4)
optim = torch.optim.SGD([*torso.parameters(), *critic.parameters()], lr=0.05)
amp = torch.amp.GradScaler("cuda")
spare = torch.amp.GradScaler("cuda", init_scale=512.0)
for clips, goal in loader:
    optim.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        main = F.mse_loss(torso(clips), goal)
        side = F.l1_loss(torso(clips), goal)
        apart = F.l1_loss(critic(clips), goal)
{statements}
    amp.step(optim)
    amp.update()
"""
#: Statements, and the violation at the marked line, or at its default line without a mark.
STATEMENTS = [
    ("amp.scale(main).backward()", ""),
    ("main.backward()", "step@raw"),
    ("main.backward(None)", "step@raw"),
    ("main.backward(gradient=None)", "step@raw"),
    ("main.backward(retain_graph=True)", "step@raw"),
    ("main.backward(amp.scale(torch.ones_like(main)))", ""),
    ("main.backward(gradient=ones)", ""),
    ("torch.autograd.backward(main)", "step@raw"),
    ("torch.autograd.backward(tensors=main)", "step@raw"),
    ("torch.autograd.backward(main, ones)", ""),
    ("torch.autograd.backward(main, grad_tensors=ones)", ""),
    ("torch.autograd.backward(amp.scale(main))", ""),
    ("torch.autograd.backward([amp.scale(main), amp.scale(apart)])", ""),
    # Sums.
    ("amp.scale(main + side).backward()", ""),
    ("(amp.scale(main) + amp.scale(side)).backward()", ""),
    ("(amp.scale(main) + side).backward()  # !", "backward@uneven"),
    ("(side + amp.scale(main)).backward()  # !", "backward@uneven"),
    ("(amp.scale(main) - side).backward()  # !", "backward@uneven"),
    ("(amp.scale(main) + 0.1 * side).backward()  # !", "backward@uneven"),
    ("(amp.scale(main) + side / 2).backward()  # !", "backward@uneven"),
    ("(amp.scale(main) + side.mean()).backward()  # !", "backward@uneven"),
    ("sum([amp.scale(main), side]).backward()  # !", "backward@uneven"),
    ("sum([amp.scale(main), amp.scale(side)]).backward()", ""),
    ("(amp.scale(main) + side.detach()).backward()", ""),
    ("(amp.scale(main) + side.item()).backward()", ""),
    ("(amp.scale(main) + 1.0).backward()", ""),
    ("(amp.scale(main) + bonus).backward()", ""),
    ("total = amp.scale(main)\ntotal += side\ntotal.backward()  # !", "backward@uneven"),
    ("total = amp.scale(main)\ntotal = total + side\ntotal.backward()  # !", "backward@uneven"),
    ("total = amp.scale(main)\ntotal = total + amp.scale(side)\ntotal.backward()", ""),
    ("(amp.scale(main) + spare.scale(side)).backward()  # !", "backward@uneven"),
    ("(amp.scale(main) + apart).backward()", ""),
    # Manual scaling.
    ("(main * amp.get_scale()).backward()", ""),
    ("(amp.get_scale() * main).backward()", ""),
    ("main.mul(amp.get_scale()).backward()", ""),
    ("torch.mul(main, amp.get_scale()).backward()", ""),
    ("(main * amp.get_scale() + side).backward()  # !", "backward@uneven"),
    ("((main + side) * amp.get_scale()).backward()", ""),
    ("(amp.scale(main) / amp.get_scale()).backward()", "step@raw"),
    ("(amp.scale(main) * (1 / amp.get_scale())).backward()", "step@raw"),
    ("(amp.scale(main) / amp.get_scale() + side).backward()", "step@raw"),
    ("amp.scale(main / amp.get_scale()).backward()", ""),
    # Scaling twice, and by another scaler.
    ("amp.scale(amp.scale(main)).backward()  # !", "scale@scaled"),
    ("main = amp.scale(main)\namp.scale(main).backward()  # !", "scale@scaled"),
    ("amp.scale(amp.scale(main) / amp.get_scale()).backward()", ""),
    ("amp.scale(main)\namp.scale(main).backward()", ""),
    ("spare.scale(main).backward()", "step@another"),
    # Operations that keep the scale of a loss.
    ("amp.scale(main).mean().backward()", ""),
    ("amp.scale(main).float().backward()", ""),
    ("abs(amp.scale(main)).backward()", ""),
    ("(amp.scale(main) / 4).backward()", ""),
    ("(-amp.scale(main)).backward()", ""),
    ("torch.stack([amp.scale(main), amp.scale(side)]).sum().backward()", ""),
    ("losses = {'a': amp.scale(main), 'b': side}\nsum(losses.values()).backward()  # !", "backward@uneven"),
    ("losses = [amp.scale(each) for each in (main, side)]\nsum(losses).backward()", ""),
    ("for each in (main, side):\n    amp.scale(each).backward()", ""),
    ("for each in (main, side):\n    each.backward()", "step@raw"),
    # Penalties on gradients.
    (
        (
            "slope = autograd.grad(amp.scale(main), clips, create_graph=True)[0]\n"
            "amp.scale(main + slope.norm()).backward()"
        ),
        "penalty@scaled",
    ),
    (
        (
            "slope = autograd.grad(outputs=amp.scale(main), inputs=clips, create_graph=True)[0]\n"
            "amp.scale(main + slope.pow(2).sum()).backward()"
        ),
        "penalty@scaled",
    ),
    (
        (
            "slope = autograd.grad(amp.scale(main), clips, create_graph=True)[0]\n"
            "slope = slope / amp.get_scale()\namp.scale(main + slope.norm()).backward()"
        ),
        "",
    ),
    (
        (
            "slope = autograd.grad(amp.scale(main), clips, create_graph=True)[0]\n"
            "undo = 1.0 / amp.get_scale()\namp.scale(main + (slope * undo).norm()).backward()"
        ),
        "",
    ),
    (
        ("slope = autograd.grad(main, clips, create_graph=True)[0]\namp.scale(main + slope.norm()).backward()"),
        "",
    ),
    ("slope = autograd.grad(amp.scale(main), clips)[0]\namp.scale(main).backward()", ""),
]


@pytest.mark.parametrize(("statements", "label"), STATEMENTS)
def test_the_scale_that_a_loss_holds(statements: str, label: str) -> None:
    body = "\n".join(f"    {line}" for line in statements.split("\n"))
    source = TRAIN.format(statements=body)
    lines = source.split("\n")
    blamed = {"step@raw": "backward(", "step@another": "amp.step(", "penalty@scaled": "autograd.grad("}.get(
        label, "# !"
    )
    marked = next((number for number, line in enumerate(lines, 1) if blamed in line), 0)
    found = check_source(source, "train.py")
    assert [(each.line, each.label) for each in found] == ([(marked, label)] if label else [])
