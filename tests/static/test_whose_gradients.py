"""Two optimizers: whose gradients a clip, an edit or a read takes, in all forms of naming the parameters."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

#: Only the gradients of ``optimizer`` are unscaled before the statement.
PROGRAM = """\
import itertools
import torch
from torch import nn

first, second = nn.Linear(8, 1), nn.Linear(8, 1)
optimizer = torch.optim.SGD(first.parameters(), lr=0.1)
other = torch.optim.SGD(second.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    optimizer.zero_grad()
    other.zero_grad()
    with torch.autocast("cuda"):
        loss = nn.functional.mse_loss(first(x) + second(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    {statement}
    scaler.step(optimizer)
    scaler.step(other)
    scaler.update()
"""


def labels(statement: str, net: str, owner: str) -> list[str]:
    text = statement.replace("NET", net).replace("OWNER", owner).replace("\n", "\n    ")
    return [finding.label for finding in check_source(PROGRAM.format(statement=text))]


@pytest.mark.parametrize(
    "parameters",
    [
        "NET.parameters()",
        "NET.parameters(recurse=True)",
        'getattr(NET, "parameters")()',
        "list(NET.parameters())",
        "tuple(NET.parameters())",
        "set(NET.parameters())",
        "iter(NET.parameters())",
        "next(NET.parameters())",
        "reversed(list(NET.parameters()))",
        "sorted(NET.parameters(), key=len)",
        "filter(None, NET.parameters())",
        "filter(lambda p: p.requires_grad, NET.parameters())",
        "map(lambda p: p, NET.parameters())",
        "itertools.chain(NET.parameters())",
        "itertools.chain(NET.parameters(), NET.parameters())",
        "[*NET.parameters()]",
        "[p for p in NET.parameters()]",
        "(p for p in NET.parameters() if p.requires_grad)",
        "[p for p in NET.parameters() if isinstance(p, nn.Parameter)]",
        "[p for name, p in NET.named_parameters()]",
        '[p for name, p in NET.named_parameters() if "w" in name]',
        "[p for name, p in NET.named_parameters() if isinstance(p, torch.Tensor)]",
        "list(NET.parameters())[1:]",
        "NET.parameters() if x else NET.parameters()",
        'OWNER.param_groups[0]["params"]',
        '[p for group in OWNER.param_groups for p in group["params"]]',
        "nn.ModuleList([NET]).parameters()",
        "nn.Sequential(NET).parameters()",
        "nn.ModuleList([NET])[0].parameters()",
        "nn.Sequential(NET)[0].parameters()",
        "[p for part in (NET,) for p in part.parameters()]",
        "dict(a=NET)['a'].parameters()",
    ],
)
@pytest.mark.parametrize("clip", ["nn.utils.clip_grad_norm_({}, 1.0)", "nn.utils.clip_grad_value_({}, clip_value=1.0)"])
def test_a_clip(clip: str, parameters: str) -> None:
    statement = clip.format(parameters)
    assert labels(statement, "first", "optimizer") == []
    assert labels(statement, "second", "other") == ["clip@scaled"]


LOOP = "for p in NET.parameters():\n    "


@pytest.mark.parametrize(
    "edit",
    [
        f"{LOOP}p.grad.clamp_(-1, 1)",
        f"{LOOP}p.grad.data.clamp_(-1, 1)",
        f"{LOOP}p.grad.copy_(p.grad.clamp(-1, 1))",
        f"{LOOP}p.grad.fill_(1.0)",
        f"{LOOP}p.grad.masked_fill_(p.grad > 1, 1.0)",
        f'{LOOP}p.grad.div_(2, rounding_mode="floor")',
        f"{LOOP}p.grad.add_(1e-3)",
        f"{LOOP}p.grad += 1e-3",
        "for name, p in NET.named_parameters():\n    p.grad.clamp_(-1, 1)",
        "for name, p in NET.named_parameters():\n    if isinstance(p, torch.Tensor):\n        p.grad.clamp_(-1, 1)",
        "for i, p in enumerate(NET.parameters()):\n    p.grad.clamp_(-1, 1)",
        "for p, q in zip(NET.parameters(), NET.parameters()):\n    p.grad.clamp_(-1, 1)",
        "for p in filter(lambda p: p.requires_grad, NET.parameters()):\n    p.grad.clamp_(-1, 1)",
        'for group in OWNER.param_groups:\n    for p in group["params"]:\n        p.grad.clamp_(-1, 1)',
        "[p.grad.clamp_(-1, 1) for p in NET.parameters()]",
        "torch._foreach_clamp_max_([p.grad for p in NET.parameters()], 1)",
        "p = next(NET.parameters())\np.grad[0] = 1.0",
        "it = iter(NET.parameters())\nnext(it).grad.clamp_(-1, 1)",
    ],
)
def test_an_edit(edit: str) -> None:
    assert labels(edit, "first", "optimizer") == []
    assert labels(edit, "second", "other") == ["edit@scaled"]


@pytest.mark.parametrize(
    "read",
    [
        "print(next(NET.parameters()).grad.norm())",
        "sizes = [p.grad.norm() for p in NET.parameters()]",
        "sizes = [float(p.grad.abs().max()) for p in NET.parameters()]",
        "sizes = [torch.linalg.vector_norm(p.grad) for p in NET.parameters()]",
        "sizes = torch._foreach_norm([p.grad for p in NET.parameters()])",
        "size = torch.stack([p.grad.norm() for p in NET.parameters()]).norm()",
        "size = sum(p.grad.pow(2).sum() for p in NET.parameters())",
        f"{LOOP}print(float(p.grad.mean()))",
        f"{LOOP}print(str(p.grad))",
    ],
)
def test_a_read(read: str) -> None:
    assert labels(read, "first", "optimizer") == []
    assert labels(read, "second", "other") == ["read@scaled"]


@pytest.mark.parametrize(
    "statement",
    [
        # Neither the values of the gradients nor the gradients of an optimizer.
        f"{LOOP}print(p.grad.shape)",
        f"{LOOP}print(p.grad.sign())",
        f"{LOOP}print(torch.zeros_like(p.grad))",
        f"{LOOP}print(len(p.grad))",
        f"{LOOP}print(p.grad is None)",
        f"{LOOP}print(torch.isfinite(p.grad).all())",
        f"{LOOP}p.data.clamp_(-1, 1)",
        f"{LOOP}print(p.norm())",
        # A change that commutes with the scale.
        f"{LOOP}p.grad.masked_fill_(p.grad != p.grad, 0)",
        f"{LOOP}p.grad.masked_fill_(mask, 0)",
        f"{LOOP}p.grad.mul_(0.5)",
        "nn.utils.clip_grad_norm_([], 1.0)",
    ],
)
def test_neither(statement: str) -> None:
    assert labels(statement, "first", "optimizer") == []
    assert labels(statement, "second", "other") == []


COPIED = """\
import copy
import torch
from torch import nn

{first}
model = nn.Linear(8, 1)
{second}
twin = copy.deepcopy(model)
{third}
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = nn.functional.mse_loss({net}(x), y)
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_({net}.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""


#: Parameters of the optimizer, line that makes it, trained module, and True if the optimizer may update the module.
UPDATES = [
    ("params", 0, "model", True),
    ("params", 1, "model", True),
    ("params", 2, "model", True),
    ("params", 0, "twin", False),
    ("params", 1, "twin", False),
    ("params", 2, "twin", True),
    ("model.parameters()", 1, "model", True),
    ("model.parameters()", 2, "model", True),
    ("model.parameters()", 1, "twin", False),
    ("model.parameters()", 2, "twin", False),
    ("twin.parameters()", 2, "twin", True),
]


@pytest.mark.parametrize(("params", "line", "net", "is_updated"), UPDATES)
def test_an_optimizer_made_before_a_copy_does_not_update_it(params: str, line: int, net: str, is_updated: bool) -> None:
    """An optimizer of unknown parameters may update each module, except for copies that are made later."""
    lines = ["", "", ""]
    lines[line] = f"optimizer = torch.optim.SGD({params}, lr=0.1)"
    first, second, third = lines
    found = check_source(COPIED.format(first=first, second=second, third=third, net=net))
    assert [each.label for each in found if each.label == "clip@scaled"] == ["clip@scaled"] * is_updated
