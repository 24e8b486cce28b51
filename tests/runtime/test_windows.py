"""AMP304 in runs: accumulation windows that discard micro-batches, or whose first window ends one too early."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from marks import marks, places, shown

pytest.importorskip("torch")

from pytest_amp_check import record

pytestmark = pytest.mark.usefixtures("patched_once")

SETUP = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
batches = [(torch.randn(4, 8), torch.randn(4, 2)) for _ in range(16)]

def loss_of(x, y):
    with torch.autocast("cpu", dtype=torch.float16):
        return nn.functional.mse_loss(model(x), y) / 4

"""
PROGRAMS = {
    "cleared before each micro-batch": """\
for i, (x, y) in enumerate(batches):
    optimizer.zero_grad()  # AMP304
    scaler.scale(loss_of(x, y)).backward()
    if (i + 1) % 4 == 0:
        scaler.step(optimizer)
        scaler.update()
""",
    "... whose gradients are multiplied, and so not replaced": """\
for i, (x, y) in enumerate(batches):
    optimizer.zero_grad()  # AMP304
    scaler.scale(loss_of(x, y)).backward()
    for p in model.parameters():
        p.grad.mul_(3.0)
    if (i + 1) % 4 == 0:
        scaler.step(optimizer)
        scaler.update()
""",
    "... whose gradients are divided, and so not replaced": """\
for i, (x, y) in enumerate(batches):
    optimizer.zero_grad()  # AMP304
    scaler.scale(loss_of(x, y)).backward()
    for p in model.parameters():
        p.grad.div_(3.0)
    if (i + 1) % 4 == 0:
        scaler.step(optimizer)
        scaler.update()
""",
    "cleared after each micro-batch, by the model": """\
for i, (x, y) in enumerate(batches):
    scaler.scale(loss_of(x, y)).backward()
    if (i + 1) % 4 == 0:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    model.zero_grad()  # AMP304
""",
    "the first window is one micro-batch": """\
for i, (x, y) in enumerate(batches):
    scaler.scale(loss_of(x, y)).backward()
    if i % 4 == 0:  # AMP304
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
    "... of a loop that goes on otherwise": """\
for i, (x, y) in enumerate(batches):
    scaler.scale(loss_of(x, y)).backward()
    if i % 4 != 0:  # AMP304
        continue
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""",
    "cleared before the step itself, which is AMP215 alone": """\
for i, (x, y) in enumerate(batches):
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)
    optimizer.zero_grad()
    scaler.step(optimizer)
    scaler.update()
""",
    "... of a window of two micro-batches, of which one is given up": """\
for i, (x, y) in enumerate(batches):
    scaler.scale(loss_of(x, y)).backward()
    if i % 2 == 1:
        optimizer.zero_grad(set_to_none=False)
        scaler.step(optimizer)
        scaler.update()
""",
    "two optimizers of one model that step alternately": """\
second = torch.optim.SGD(model.parameters(), lr=0.1)
for i, (x, y) in enumerate(batches):
    scaler.scale(loss_of(x, y)).backward()
    if i % 2 == 0:
        scaler.step(second)
        optimizer.zero_grad()
    else:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
    "cleared twice before each micro-batch": """\
for i, (x, y) in enumerate(batches):
    model.zero_grad()  # AMP304
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    if (i + 1) % 4 == 0:
        scaler.step(optimizer)
        scaler.update()
""",
    "... of a window of several micro-batches, which are lost together": """\
for start in range(0, 16, 4):
    for x, y in batches[start : start + 4]:
        scaler.scale(loss_of(x, y)).backward()
    optimizer.zero_grad(set_to_none=False)
    scaler.step(optimizer)
    scaler.update()
""",
    "cleared where the window ends": """\
for i, (x, y) in enumerate(batches):
    scaler.scale(loss_of(x, y)).backward()
    if (i + 1) % 4 == 0:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
    "gradients of single batches that are put together by hand": """\
for start in range(0, 16, 4):
    sums = [torch.zeros_like(p) for p in model.parameters()]
    for x, y in batches[start : start + 4]:
        optimizer.zero_grad()
        scaler.scale(loss_of(x, y)).backward()
        sums = [total + p.grad for total, p in zip(sums, model.parameters())]
    for p, total in zip(model.parameters(), sums):
        p.grad.copy_(total)
    scaler.step(optimizer)
    scaler.update()
""",
    "... and given to the parameters": """\
for start in range(0, 16, 4):
    sums = [torch.zeros_like(p) for p in model.parameters()]
    for x, y in batches[start : start + 4]:
        optimizer.zero_grad()
        scaler.scale(loss_of(x, y)).backward()
        sums = [total + p.grad for total, p in zip(sums, model.parameters())]
    for p, total in zip(model.parameters(), sums):
        p.grad = total
    scaler.step(optimizer)
    scaler.update()
""",
    "a perturbation of the weights before the backward that counts": """\
for x, y in batches:
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    kept = [p.detach().clone() for p in model.parameters()]
    with torch.no_grad():
        for p in model.parameters():
            p.add_(p.grad.sign(), alpha=1e-3)
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    with torch.no_grad():
        for p, before in zip(model.parameters(), kept):
            p.copy_(before)
    scaler.step(optimizer)
    scaler.update()
""",
    "two models that one line trains alternately, of which one also gets gradients of the other's loss": """\
critic = nn.Linear(2, 1)
second = torch.optim.SGD(critic.parameters(), lr=0.1)
for x, y in batches:
    for which in (second, optimizer):
        with torch.autocast("cpu", dtype=torch.float16):
            made = model(x) if which is optimizer else model(x).detach()
            loss = nn.functional.mse_loss(critic(made), y[:, :1])
        which.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(which)
        scaler.update()
""",
    "batches that are left out now and then": """\
for i, (x, y) in enumerate(batches):
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    if i in (1, 4, 5, 9, 12):
        continue
    scaler.step(optimizer)
    scaler.update()
""",
    "every other batch is left out, when its gradients were unscaled": """\
for i, (x, y) in enumerate(batches):
    optimizer.zero_grad()
    scaler.scale(loss_of(x, y)).backward()
    scaler.unscale_(optimizer)
    if i % 2 == (x.sum().item() > 1e9):
        scaler.step(optimizer)
    scaler.update()
""",
    "every other batch is left out, of one of two models": """\
other = nn.Linear(8, 2)
second = torch.optim.SGD(other.parameters(), lr=0.1)
for i, (x, y) in enumerate(batches):
    scaler.scale(loss_of(x, y)).backward()
    if i % 2 == (x.sum().item() > 1e9):
        scaler.step(optimizer)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(other(x), y)
    second.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(second)
    scaler.update()
""",
    "every other batch is left out, of one of two models that share the update": """\
other = nn.Linear(8, 2)
second = torch.optim.SGD(other.parameters(), lr=0.1)
for i, (x, y) in enumerate(batches):
    second.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(other(x), y)
    scaler.scale(loss).backward()
    scaler.step(second)
    scaler.scale(loss_of(x, y)).backward()
    if i % 2 == 1:
        scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""",
    "batches that are given up where they are bad": """\
for i, (x, y) in enumerate(batches):
    loss = loss_of(x, y)
    scaler.scale(loss).backward()
    if i % 2 == 0 and loss.item() > -1.0:
        optimizer.zero_grad()
        continue
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""",
    "every other window is given up": """\
for start in range(0, 16, 2):
    for x, y in batches[start : start + 2]:
        scaler.scale(loss_of(x, y)).backward()
    if start % 4 == 0:
        scaler.step(optimizer)
        scaler.update()
    optimizer.zero_grad()
""",
    "a first window that a restart has cut short": """\
for i, (x, y) in enumerate(batches):
    scaler.scale(loss_of(x, y)).backward()
    if i == 0 or (i > 1 and i % 5 == 0):
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
    "batches that are stepped where their data asks for it": """\
for i, (x, y) in enumerate(batches):
    wanted = bool(y[0, 0] < 100.0) and i in (1, 3, 5, 7, 9, 11)
    scaler.scale(loss_of(x, y)).backward()
    if wanted:
        scaler.step(optimizer)
        scaler.update()
    optimizer.zero_grad()
""",
    "a window that a flag ends": """\
for i, (x, y) in enumerate(batches):
    last = (i + 1) % 4 == 0
    scaler.scale(loss_of(x, y)).backward()
    if last:
        scaler.step(optimizer)
        scaler.update()
    optimizer.zero_grad()  # AMP304
""",
    "a window that a counter ends": """\
gathered = 0
for x, y in batches:
    scaler.scale(loss_of(x, y)).backward()
    gathered += 1
    if gathered >= 4:
        scaler.step(optimizer)
        scaler.update()
        gathered = 0
    optimizer.zero_grad()  # AMP304
""",
}


@pytest.mark.parametrize("body", PROGRAMS.values(), ids=PROGRAMS)
def test_windows_that_lose_micro_batches_are_reported_as_in_source(body: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SETUP + body, encoding="utf-8")
    with record() as run:
        runpy.run_path(str(path), run_name="__main__")
    assert run.failure is None
    findings = run.select("AMP304").findings
    assert places(findings) == marks(SETUP + body, "runtime"), shown(run.findings)


def test_an_early_window_is_not_reported_without_mixed_precision(tmp_path: Path) -> None:
    body = PROGRAMS["the first window is one micro-batch"].replace("scaler.scale(loss_of(x, y))", "loss_of(x, y)")
    body = body.replace("scaler.step(optimizer)", "optimizer.step()").replace("        scaler.update()\n", "")
    setup = SETUP.replace('torch.autocast("cpu", dtype=torch.float16)', "torch.enable_grad()")
    path = tmp_path / "train.py"
    path.write_text(setup + body, encoding="utf-8")
    with record() as run:
        runpy.run_path(str(path), run_name="__main__")
    assert (run.findings, run.failure) == ([], None)


@pytest.mark.parametrize(
    ("name", "batches", "is_found"),
    [
        # Three windows must lose micro-batches in the same way, and three show the size of the first.
        ("cleared before each micro-batch", 8, False),
        ("cleared before each micro-batch", 12, True),
        ("the first window is one micro-batch", 8, False),
        ("the first window is one micro-batch", 9, True),
    ],
)
def test_a_mistake_about_windows_needs_three_windows(name: str, batches: int, is_found: bool, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SETUP.replace("range(16)", f"range({batches})") + PROGRAMS[name], encoding="utf-8")
    with record() as run:
        runpy.run_path(str(path), run_name="__main__")
    assert run.failure is None
    assert [finding.code for finding in run.findings] == ["AMP304"] * is_found
