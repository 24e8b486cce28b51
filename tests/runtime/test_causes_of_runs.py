"""Mistakes that only a run shows: the finding names the line of the cause, and the right program beside is silent."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from marks import marks, places, shown

pytest.importorskip("torch")

from pytest_amp_check import emulate_cuda, record

SETUP = """\
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
"""


class Pair(NamedTuple):
    """A program with a mistake on the marked line, the words of its finding, and the right program."""

    name: str
    wrong: str
    says: tuple[str, ...]
    right: str


LOOP = """
for x in torch.randn(4, 8, 16).cuda():
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(x).float().square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
MODEL = """
model = nn.Linear(16, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""
CHECKPOINTED = """
from torch.utils.checkpoint import checkpoint
body, head = nn.Linear(16, 16).cuda(), nn.Linear(16, 2).cuda()
optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.01)
scaler = torch.amp.GradScaler("cuda")
for x in torch.randn(3, 8, 16).cuda():
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        hidden = {call}
        loss = head(hidden).float().square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
TIMESTEPS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.project, self.embed = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x, t):
        h = self.project(x)
        frequencies = torch.exp(-torch.arange(8, device=x.device))
        {angles}
        emb = torch.cat([angles.sin(), angles.cos()], -1)
        return h + self.embed(emb.to(h.dtype))

model = Net().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda")
for _ in range(3):
    x, t = torch.randn(8, 16).cuda(), torch.randint(0, 4000, (8,)).cuda()
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = model(x, t).float().square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
ACTOR = """
actor, critic = nn.Linear(6, 2).cuda(), nn.Linear(8, 1).cuda()
oa, oc = torch.optim.Adam(actor.parameters()), torch.optim.Adam(critic.parameters())
scaler = torch.amp.GradScaler("cuda")
for _ in range(3):
    s, a, r = torch.randn(8, 6).cuda(), torch.randn(8, 2).cuda(), torch.randn(8, 1).cuda()
    with torch.autocast("cuda"):
        lc = F.mse_loss(critic(torch.cat([s, a], 1)), r)
    oc.zero_grad()
    scaler.scale(lc).backward()
    scaler.unscale_(oc)
    nn.utils.clip_grad_norm_(critic.parameters(), 1.0)
    {between}
    with torch.autocast("cuda"):
        la = -critic(torch.cat([s, actor(s)], 1)).mean()
    oa.zero_grad()
    scaler.scale(la).backward(){mark}
    {after}
    scaler.step(oa)
    scaler.update()
"""
SPEECH = """
model, ctc = nn.Linear(20, 12).cuda(), nn.CTCLoss({zero})
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda")
for i in range(4):
    n = 9 if i == 2 else 3
    x, y = torch.randn(6, 2, 20).cuda(), torch.randint(1, 12, (2, n)).cuda()
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = ctc(model(x).log_softmax(-1), y, torch.tensor([6, 6]), torch.tensor([n, n])){mark}
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
RATE = """
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr={rate}){mark}
for _ in range(20):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = F.mse_loss(model(torch.randn(32, 16).cuda()), torch.randn(32, 1).cuda())
    loss.backward()
    optimizer.step()
"""
NORM = """
net = nn.Sequential(nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cuda")
for i in range(3):
    x = torch.rand(4, 3, 10).cuda() * (5e5 if i == {bad} else 1.0)
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = F.cross_entropy(net(x), torch.randint(0, 2, (4,)).cuda()){mark}
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
PAIRS = (
    Pair(
        "a scaler that a flag disables by mistake",
        MODEL + "dtype = 'float16'\nscaler = torch.amp.GradScaler('cuda', enabled=dtype == 'fp16')  # AMP502" + LOOP,
        ("`torch.amp.GradScaler` is disabled", "gradients in float16"),
        MODEL + "dtype = 'float16'\nscaler = torch.amp.GradScaler('cuda', enabled=dtype == 'float16')" + LOOP,
    ),
    Pair(
        "a region that is never enabled",
        MODEL
        + "scaler = torch.amp.GradScaler('cuda')"
        + LOOP.replace("dtype=torch.float16):", "enabled=torch.cuda.device_count() > 1):  # AMP110"),
        ("`torch.autocast` is disabled in every forward", "`scaler` is enabled"),
        MODEL
        + "several = torch.cuda.device_count() > 1\nscaler = torch.amp.GradScaler('cuda', enabled=several)"
        + LOOP.replace("dtype=torch.float16", "enabled=several"),
    ),
    Pair(
        "a region of another device",
        MODEL
        + "device = torch.device('cuda')\nscaler = torch.amp.GradScaler('cuda')"
        + LOOP.replace('("cuda", dtype=torch.float16):', '("cuda" if device == "cuda" else "cpu"):  # AMP110'),
        ("another device than cuda", "`device.type`"),
        MODEL
        + "device = torch.device('cuda')\nscaler = torch.amp.GradScaler('cuda')"
        + LOOP.replace('("cuda", dtype=torch.float16):', "(device.type):"),
    ),
    Pair(
        "a reentrant checkpoint of the batch",
        CHECKPOINTED.format(call="checkpoint(body, x, use_reentrant=True)  # AMP803"),
        ("`checkpoint` is a reentrant checkpoint", "`use_reentrant=False`"),
        CHECKPOINTED.format(call="checkpoint(body, x.requires_grad_(), use_reentrant=True)"),
    ),
    Pair(
        "a reentrant checkpoint of a function",
        CHECKPOINTED.format(call="checkpoint(lambda x: body(x), x, use_reentrant=True)  # AMP803"),
        ("none of its inputs requires a gradient",),
        CHECKPOINTED.format(call="checkpoint(lambda x: body(x), x, use_reentrant=False)"),
    ),
    Pair(
        "timesteps in half",
        TIMESTEPS.format(angles="angles = t.to(h.dtype)[:, None] * frequencies.to(h.dtype)  # AMP509"),
        ("`t.to(h.dtype)` rounds positions to low precision before their sine or cosine is computed",),
        TIMESTEPS.format(angles="angles = t[:, None] * frequencies"),
    ),
    Pair(
        "a loss that falls on the unscaled gradients of another optimizer",
        ACTOR.format(between="pass", mark="  # AMP209", after="scaler.step(oc)"),
        ("`scaler.scale(la).backward` adds scaled gradients of `la` to the gradients of `oc`",),
        ACTOR.format(between="scaler.step(oc); scaler.update()", mark="", after="oc.zero_grad()"),
    ),
    Pair(
        "a target that is longer than its input",
        SPEECH.format(zero="", mark="  # AMP802"),
        ("is infinite in step 2, because a target is longer", "`zero_infinity=True`"),
        SPEECH.format(zero="zero_infinity=True", mark=""),
    ),
    Pair(
        "a learning rate that is too large",
        RATE.format(rate=30.0, mark="  # AMP802"),
        ("the learning rate is 30", "lower the learning rate"),
        RATE.format(rate=0.03, mark=""),
    ),
    Pair(
        "statistics that a skipped step leaves behind",
        NORM.format(bad=1, mark="  # AMP802"),
        ("and `running_mean` of BatchNorm1d keeps it for evaluation although the step is skipped",),
        NORM.format(bad=-1, mark=""),
    ),
    Pair(
        "statistics that the first steps leave behind",
        NORM.format(bad=0, mark="  # AMP802"),
        ("`running_mean` of `1` (BatchNorm1d) becomes NaN or infinite in step 0", "evaluation will use it"),
        NORM.format(bad=-1, mark=""),
    ),
)


def run(source: str, path: Path) -> Any:
    path.write_text(source, encoding="utf-8")
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(emulate_cuda())
        made = stack.enter_context(record())
        exec(compile(source, str(path), "exec"), {"__name__": "__main__"})  # noqa: S102 - our own programs
    assert made.failure is None, repr(made.failure)
    return made


@pytest.mark.parametrize("pair", PAIRS, ids=[pair.name for pair in PAIRS])
def test_the_cause_is_named_and_the_right_program_is_not(pair: Pair, tmp_path: Path) -> None:
    made = run(SETUP + pair.wrong, tmp_path / "wrong.py")
    assert places(made.findings) == marks(SETUP + pair.wrong, "runtime"), shown(made.findings)
    for words in pair.says:
        assert words in made.findings[0].message
    assert run(SETUP + pair.right, tmp_path / "right.py").findings == []


def test_parameters_made_low_before_the_recording_are_named_at_the_optimizer(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec(SETUP + "model = nn.Linear(16, 4).bfloat16()\n", names)  # noqa: S102 - our own programs
    body = "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)  # AMP501\n"
    body += "for x in torch.randn(3, 8, 16).bfloat16():\n    optimizer.zero_grad()\n"
    body += "    model(x).float().square().mean().backward()\n    optimizer.step()\n"
    path = tmp_path / "train.py"
    path.write_text(body, encoding="utf-8")
    with record() as made:
        exec(compile(body, str(path), "exec"), names)  # noqa: S102 - our own programs
    assert made.failure is None
    assert places(made.findings) == marks(body, "runtime"), shown(made.findings)
    assert "were bfloat16 before the recording" in made.findings[0].message
