"""Numbers beside a float16 tensor: fills that overflow, and small numbers that round to zero or to one."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

PROGRAM = """\
import torch
import torch.nn.functional as F
from torch import nn

model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        out = model(x)
        {statement}
        loss = F.mse_loss(out, y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


def labels(statement: str) -> list[str]:
    return [finding.label for finding in check_source(PROGRAM.format(statement=statement))]


@pytest.mark.parametrize(
    "statement",
    [
        "out = out.masked_fill(mask, {})",
        "out = out.masked_fill(mask, value={})",
        "out.masked_fill_(mask, {})",
        "out = torch.masked_fill(out, mask, {})",
        "out = torch.masked_fill(out, mask, value={})",
        "out = out.index_fill(1, index, {})",
        "out.index_fill_(1, index, {})",
        "out.fill_({})",
        "out.fill_(value={})",
        "out[mask] = {}",
        "out[0, 1:] = {}",
        "out = torch.where(mask, out, {})",
        "out = torch.where(mask, {}, out)",
        "out = torch.full_like(out, {})",
        "out = torch.full_like(out, fill_value={})",
    ],
)
def test_a_fill(statement: str) -> None:
    # The largest number of float16 is 65504.
    assert labels(statement.format("-1e9")) == ["fill:overflow"]
    assert labels(statement.format("70_000")) == ["fill:overflow"]
    for right in ("-6e4", "65504", "0", 'float("-inf")', "limit"):
        assert labels(statement.format(right)) == []
    # Not a tensor in low precision.
    assert labels(statement.replace("out", "y").format("-1e9")) == []


@pytest.mark.parametrize(
    "loss",
    [
        'F.cross_entropy({}, y, reduction="none")',
        'F.mse_loss({}, y, reduction="none")',
        'nn.CrossEntropyLoss(reduction="none")({})',
        'nn.MSELoss(reduction="none")({})',
    ],
)
@pytest.mark.parametrize(
    "given", ["out", "out.half()", "model(x)", "model(x).half()", "out @ out", "torch.mm(out, out)"]
)
def test_a_fill_of_a_loss_that_autocast_computes_in_float32(loss: str, given: str) -> None:
    losses = f"losses = {loss.format(given)}"
    for fill in ("losses = losses.masked_fill(mask, -1e9)", "losses[mask] = -1e9", "losses.fill_(1e9)"):
        assert labels(f"{losses}\n        {fill}") == []


@pytest.mark.parametrize(
    "statement",
    ["out = torch.clamp(out, -{0}, {0})", "out = out.clamp(min=-{})", "out = out.clamp(max={})", "out.clamp_(-1, {})"],
)
def test_a_bound(statement: str) -> None:
    assert labels(statement.format("1e9")) == ["fill:bound"]
    assert labels(statement.format("6e4")) == []


@pytest.mark.parametrize(
    ("statement", "label"),
    [
        ("z = out + {}", "epsilon:added"),
        ("z = {} + out", "epsilon:added"),
        ("z = 1 / (out + {})", "epsilon:added"),
        ("z = torch.log(out + {})", "epsilon:added"),
        ("z = out.clamp(min={})", "epsilon:clamped"),
        ("z = out.clamp({})", "epsilon:clamped"),
        ("z = out.clamp({}, 1.0)", "epsilon:clamped"),
        ("z = out.clamp_min({})", "epsilon:clamped"),
    ],
)
def test_a_small_number(statement: str, label: str) -> None:
    # The smallest number of float16 is 6e-8.
    assert labels(statement.format("1e-8")) == [label]
    for right in ("1e-3", "0.0", "1.0", "1.5", "1", "epsilon"):
        assert labels(statement.format(right)) == []


@pytest.mark.parametrize("statement", ["z = out.clamp(max={})", "z = out.clamp(0.5, {})", "z = out.clamp_max({})"])
def test_a_bound_that_rounds_to_one(statement: str) -> None:
    # The largest number of float16 below one is 1 - 2**-11.
    assert labels(statement.format("0.99999")) == ["epsilon:to-one"]
    for right in ("0.9995", "1.0", "1.00001", "1e-8"):
        assert labels(statement.format(right)) == []


#: A module in float16 that an optimizer trains, unless the statement prevents it.
CAST = """\
import torch
import torch.nn.functional as F
from torch import nn

model = nn.Linear(8, 8).half()
head = nn.Linear(8, 8)
{statement}
optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    loss = F.mse_loss(head(model(x).float()), y)
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("statement", "is_trained_low"),
    [
        ("model.requires_grad_(False)", False),
        ("model.requires_grad_(requires_grad=False)", False),
        ("for p in model.parameters(): p.requires_grad_(False)", False),
        ("for p in model.parameters(): p.requires_grad_(requires_grad=False)", False),
        ("for p in model.parameters(): p.requires_grad = False", False),
        ("for name, p in model.named_parameters(): p.requires_grad = False", False),
        ("[p.requires_grad_(False) for p in model.parameters()]", False),
        ("model.float()", False),
        ("model.double()", False),
        ("model.to(torch.float32)", False),
        ("model.to(dtype=torch.float32)", False),
        ("pass", True),
        ("model.requires_grad_()", True),
        ("model.requires_grad_(True)", True),
        ("model.requires_grad_(flag)", True),
        ("for p in model.parameters(): p.requires_grad_()", True),
        ("for p in model.parameters(): p.requires_grad_(True)", True),
        ("for p in model.parameters(): p.requires_grad = True", True),
        # The module still trains in evaluation mode, and the other module is another one.
        ("model.eval()", True),
        ("model.train(False)", True),
        ("head.requires_grad_(False)", True),
        ("for p in head.parameters(): p.requires_grad_(False)", True),
        ("head.float()", True),
    ],
)
def test_a_module_that_is_trained_in_float16(statement: str, is_trained_low: bool) -> None:
    findings = check_source(CAST.format(statement=statement))
    assert [finding.label for finding in findings] == (["cast:trained"] if is_trained_low else [])


#: A loop that never clears gradients, unless the statement does.
UNCLEARED = """\
import torch
from torch import nn

model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    {statement}
    with torch.autocast("cuda"):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
EACH = "for p in model.parameters(): "


@pytest.mark.parametrize(
    ("statement", "clears"),
    [
        ("optimizer.zero_grad()", True),
        ("optimizer.zero_grad(False)", True),
        ("optimizer.zero_grad(set_to_none=True)", True),
        ("model.zero_grad()", True),
        ("model.train().zero_grad()", True),
        (f"{EACH}p.grad = None", True),
        (f"{EACH}p.grad.zero_()", True),
        (f"{EACH}p.grad.fill_(0)", True),
        (f"{EACH}p.grad.detach_(); p.grad.zero_()", True),
        (f"{EACH}p.grad is None or p.grad.zero_()", True),
        ("torch._foreach_zero_([p.grad for p in model.parameters()])", True),
        ("optimizer.param_groups[0]['params'][0].grad = None", True),
        ("for group in optimizer.param_groups:\n        for p in group['params']: p.grad = None", True),
        ("pass", False),
        ("model.train()", False),
        ("optimizer.train()", False),
        ("optimizer.eval()", False),
        ("optimizer.state_dict()", False),
        ("optimizer.add_param_group(group)", False),
        ("print(optimizer)", False),
    ],
)
def test_what_clears_gradients(statement: str, clears: bool) -> None:
    findings = check_source(UNCLEARED.format(statement=statement))
    assert [finding.code for finding in findings] == ([] if clears else ["AMP215"])


#: A float32 and a float16 buffer beside the float16 output of a layer.
WRITES = """\
import torch
from torch import nn

model = nn.Linear(8, 8)
buffer = torch.zeros(4, 8)
low = torch.zeros(4, 8, dtype=torch.float16)
mask = torch.ones(4, dtype=torch.bool)
index = torch.tensor([0, 1])
with torch.autocast("cuda", dtype=torch.float16):
    out = model(x)
    {statement}
"""


@pytest.mark.parametrize(
    ("statement", "clashes"),
    [
        ("buffer[mask] = out", True),
        ("buffer[mask] = out + out", True),
        ("buffer[mask] = out * 2", True),
        ("buffer[mask] = 1 - out", True),
        ("buffer[mask] = -out", True),
        ("buffer[mask] = out / 2", True),
        ("buffer[mask] = out @ out", True),
        ("buffer[mask] = torch.relu(out)", True),
        ("buffer[out > 0] = out", True),
        ("buffer.index_put_((index,), out)", True),
        ("buffer.index_copy_(0, index, out)", True),
        ("buffer.index_add_(0, index, out)", True),
        ("buffer.scatter_(0, index, out)", True),
        ("buffer.masked_scatter_(mask, out)", True),
        # Casts, and ops that autocast computes in float32.
        ("buffer[mask] = out.float()", False),
        ("buffer[mask] = (out + out).float()", False),
        ("buffer[mask] = out.exp()", False),
        # A single number is cast, like a number of Python.
        ("buffer[mask] = 1.0", False),
        ("buffer[mask] = out.max()", False),
        ("buffer[mask] = out.sum() + out.sum()", False),
        ("buffer[mask] = out.sum() * 2", False),
        # Slices and copies cast.
        ("buffer[0] = out", False),
        ("buffer[:2] = out", False),
        ("buffer.copy_(out)", False),
        # The buffer has the dtype of the output.
        ("low[mask] = out", False),
    ],
)
def test_writes_to_a_buffer(statement: str, clashes: bool) -> None:
    findings = check_source(WRITES.format(statement=statement))
    assert [finding.label for finding in findings] == (["clash:write"] if clashes else [])
