"""Effects of parameter hooks on the gradients of a scaled loss, as far as the hook is analyzed (AMP202)."""

from __future__ import annotations

import pytest
from marks import marks, places, shown

from pytest_amp_check.static.engine import check_source

SETUP = """\
import torch
from torch import nn
from torch.amp import GradScaler, autocast

model, other = nn.Linear(4, 1), nn.Linear(4, 1)
optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), GradScaler("cuda")
second = torch.optim.SGD(other.parameters(), lr=0.1)
v = 0.5

"""
TRAIN = """\

for x, y in [(torch.randn(2, 4), torch.randn(2, 1))]:
    optimizer.zero_grad()
    with autocast("cuda", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
FOR_EACH = "for p in model.parameters():\n    "
BAD = {
    "a method": FOR_EACH + "p.register_hook(lambda g: g.clamp(-v, v))  # AMP202\n",
    "a method in place": FOR_EACH + "p.register_hook(lambda g: g.clamp_(-v, v))  # AMP202\n",
    "a function of torch": FOR_EACH + "p.register_hook(lambda g: torch.clip(g, -1, 1))  # AMP202\n",
    "by a keyword": FOR_EACH + "p.register_hook(hook=lambda g: g.clamp(max=v))  # AMP202\n",
    "a function that gives another one back": (
        "def bound(g):  # AMP202\n    v = 0.5\n    return g.nan_to_num(0.0)\n" + FOR_EACH + "p.register_hook(bound)\n"
    ),
    "a function that writes": "def bound(g):  # AMP202\n    g.clamp_(-v, v)\n" + FOR_EACH + "p.register_hook(bound)\n",
    "once the parameter has it": (
        "def bound(p):\n    p.grad.clamp_(-v, v)  # AMP202\n"
        + FOR_EACH
        + "p.register_post_accumulate_grad_hook(bound)\n"
    ),
    "one of two functions": (
        "def bound(g):  # AMP202\n    return g.clamp(-v, v)\n"
        "hook = bound if model.training else (lambda g: g)\n" + FOR_EACH + "p.register_hook(hook)\n"
    ),
    "a function that a branch defines": (
        "if model.training:\n    def bound(g):  # AMP202\n        return g.clamp(-v, v)\n"
        "else:\n    def bound(g):\n        return g\n" + FOR_EACH + "p.register_hook(bound)\n"
    ),
    "one of two functions that look at what the parameter has": (
        "if model.training:\n    def bound(p):\n        nn.utils.clip_grad_value_(p, v)  # AMP201\n"
        "else:\n    def bound(p):\n        print(p)\n" + FOR_EACH + "p.register_post_accumulate_grad_hook(bound)\n"
    ),
}
GOOD = {
    "one of two functions that change nothing": (
        "look = print if model.training else (lambda g: g)\n" + FOR_EACH + "p.register_hook(look)\n"
    ),
    "by a limit that is scaled": FOR_EACH + "p.register_hook(lambda g: g.clamp(-v * scaler.get_scale(), v))\n",
    "something else is bounded": FOR_EACH + "p.register_hook(lambda g: print(g.isfinite(), p.clamp(-v, v)))\n",
    "a mask": FOR_EACH + "p.register_hook(lambda g: g * (g != 0))\n",
    "a copy that is only looked at": (
        "def look(g):\n    bound = g.clamp(-v, v)\n    print(bound)\n" + FOR_EACH + "p.register_hook(look)\n"
    ),
    "another model": "for p in other.parameters():\n    p.register_hook(lambda g: g.clamp(-v, v))\n",
    "a function that is registered nowhere": "def bound(g):\n    return g.clamp(-v, v)\n",
    "what nobody knows": "from library import bound\n" + FOR_EACH + "p.register_hook(bound)\n",
    "a hook that looks at what the parameter has": (
        FOR_EACH + "p.register_post_accumulate_grad_hook(lambda p: print(p.grad.isfinite().all()))\n"
    ),
}


@pytest.mark.parametrize("hooks", [*BAD.values(), *GOOD.values()], ids=[*BAD, *GOOD])
def test_a_hook_that_bounds_scaled_gradients_is_reported(hooks: str) -> None:
    source = SETUP + hooks + TRAIN
    findings = [finding for finding in check_source(source, "train.py") if finding.code != "AMP401"]
    assert places(findings) == marks(source), shown(findings)


@pytest.mark.parametrize("hooks", BAD.values(), ids=BAD)
def test_what_is_not_scaled_may_be_bounded(hooks: str) -> None:
    train = TRAIN.replace("scaler.scale(loss)", "loss").replace("scaler.step(optimizer)", "optimizer.step()")
    source = SETUP.replace(', GradScaler("cuda")', ", None") + hooks + train.replace("    scaler.update()\n", "")
    assert not [finding for finding in check_source(source, "train.py") if finding.code == "AMP202"]
