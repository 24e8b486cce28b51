"""Mistakes that only a run shows: the finding names the line of the cause, and the right program beside is silent."""

from __future__ import annotations

import contextlib
import copy
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from marks import marks, places, shown

pytest.importorskip("torch")

import torch

from pytest_amp_check import emulate_cuda, record, run_steps
from pytest_amp_check.runtime.session import session

pytestmark = pytest.mark.usefixtures("patched_once")

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
CHARACTERS = """
class Recognizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.columns, self.out = nn.Conv1d(8, 16, 3, stride={stride}), nn.Linear(16, 5)

    def forward(self, image):
        return self.out(self.columns(image).transpose(1, 2)).float().log_softmax(-1).transpose(0, 1)

model = Recognizer().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cuda")
for i in range(4):
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        out = model(torch.randn(2, 8, 33).cuda())
        lengths = {lengths}
        loss = F.ctc_loss(out, torch.randint(1, 5, (2, 10)).cuda(), {inputs}, lengths, zero_infinity=True){mark}
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
HIDDEN = """
class Norm(nn.Module):
    def forward(self, x):
        {norm}

model = nn.Sequential(nn.Linear(16, 32), Norm(), nn.Linear(32, 4)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda")
for _ in range(3):
    x, y = torch.randn(8, 16).cuda() * 3000, torch.randint(0, 4, (8,)).cuda()
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
CURVATURE = """
model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4)).cuda()
params = list(model.parameters())
optimizer = torch.optim.SGD(params, lr=1e-3)
scaler = torch.amp.GradScaler("cuda")
for _ in range(3):
    x, y = torch.randn(8, 16).cuda(), torch.randint(0, 4, (8,)).cuda()
    with torch.autocast("cuda"{region}):
        loss = F.cross_entropy(model(x), y)
    first = torch.autograd.grad({loss}, params, create_graph=True)
    signs = [torch.randint_like(p, high=2) * 2.0 - 1 for p in params]
    products = torch.autograd.grad(first, params, signs){mark}
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
HOOKS = """
model = nn.Linear(16, 4).cuda()
norms = []


def watch(param):
    param.register_hook(lambda grad: norms.append({norm})){mark}


for p in model.parameters():
    watch(p)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda")
for x in torch.randn(3, 8, 16).cuda():
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = model(x).float().square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
PENALTY = """
net = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 1)).cuda()
optimizer = torch.optim.Adam(net.parameters(), lr=2e-4)
scaler = torch.amp.GradScaler("cuda")
for _ in range(4):
    x = torch.randn(8, 16).cuda().requires_grad_(True)
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        out = net(x)
    (grad,) = torch.autograd.grad(scaler.scale(out.sum()), x, create_graph=True){mark}
    grad = grad{inverse}
    with torch.autocast("cuda"):
        loss = out.mean() + 10 * ((grad.float().norm(2, dim=1) - 1) ** 2).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
#: A parameter that no module holds, cloned from the embeddings of a low model.
PROMPT = """
lm = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16)).half().cuda().requires_grad_(False)
prompt = torch.randn(1, 4, 16).cuda(){dtype}.requires_grad_(True)
optimizer = torch.optim.Adam([prompt], lr=0.01){mark}
for _ in range(3):
    optimizer.zero_grad()
    loss = 1 - lm(prompt.half()).float().mean() * 1e-3
    loss.backward()
    optimizer.step()
"""
#: An optimizer of the program, whose state is in a dtype of its choice.
OWN_STATE = """
class Own(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                square = p.grad.to({dtype}).square()
                state["square"] = state.get("square", torch.zeros_like(square)).lerp(square, 0.1)
                p.sub_(group["lr"] * p.grad / (state["square"].float().sqrt() + 1e-12))

model = nn.Linear(16, 4).cuda()
optimizer = Own(model.parameters(), lr=0.01){mark}
scaler = torch.amp.GradScaler("cuda")
for x in torch.randn(4, 8, 16).cuda():
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(x).float().square().mean() * 1e-4
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
#: Features that a cast to float16 makes zero, and a normalization by their sum.
KERNEL = """
class Kernel(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(16, 16)

    def forward(self, x):
        q = self.query(x)
        feature = torch.exp(q.float() - 40){cast}
        return feature / feature.sum(-1, keepdim=True){mark}

model = Kernel().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cuda")
for x in torch.randn(4, 8, 16).cuda():
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(x).float().square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
#: Weights that are large from the beginning.
LARGE = """
model = nn.Linear(16, 4).cuda()
model.weight.data.mul_({factor})
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
scaler = torch.amp.GradScaler("cuda", init_scale=16)
for x in torch.randn(4, 8, 16).cuda():
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(x).float().square().mean(){mark}
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
#: A number of the program, as a running mean that it keeps.
NUMBER = """
model = nn.Linear(16, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cuda")
mean = 0.0
for number, x in enumerate(torch.randn(4, 8, 16).cuda()):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = (model(x).float() - mean).square().mean(){mark}
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    mean = {mean}
"""
#: A mask that is added to scores.
MASKED = """
model = nn.Linear(16, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cuda")
mask = torch.tensor([1.0, 1.0, 1.0, 0.0]).cuda()
for x in torch.randn(3, 8, 16).cuda():
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        scores = model(x)
        scores = {masked}{mark}
        loss = F.cross_entropy(scores, torch.zeros(8, dtype=torch.long).cuda())
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
#: Positions of a sequence, from which angles are computed.
SEQUENCE = """
model = nn.Linear(16, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cuda", init_scale=16)
frequencies = torch.tensor([1e-4, 1e-3, 1e-2, 1e-1]).cuda()
for x in torch.randn(2, {length}, 16).cuda():
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        h = model(x)
        position = torch.arange({length}, dtype={dtype}, device="cuda"){mark}
        angles = position[:, None] * frequencies
        loss = (h + torch.cat([angles.sin(), angles.cos()], -1)).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
#: A target that is made once and used in several steps.
ADVANTAGE = """
model = nn.Linear(16, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cuda")
for update in range(3):
    x = torch.randn(8, 16).cuda()
    reward = torch.ones(8, 1).cuda() if update == 1 else torch.randn(8, 1).cuda()
    with torch.no_grad(), torch.autocast("cuda"):
        advantage = (reward - reward.mean()) / ({std}){mark}
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = (model(x) * advantage).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
PAIRS = (
    Pair(
        "an overflow that a division hides",
        HIDDEN.format(norm="return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6)  # AMP802"),
        ("`mul` overflows float16 in step 0", "hides it as zero"),
        HIDDEN.format(norm="return x / torch.sqrt((x.float() * x).mean(-1, keepdim=True) + 1e-6)"),
    ),
    Pair(
        "an overflow in the squares of a norm",
        HIDDEN.format(norm="return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)  # AMP802"),
        ("overflows float16 in step 0",),
        HIDDEN.format(norm="return F.rms_norm(x.float(), (32,)).to(x.dtype)"),
    ),
    Pair(
        "second derivatives of a scaled loss",
        CURVATURE.format(region="", loss="scaler.scale(loss)", mark="  # AMP802"),
        ("`torch.autograd.grad` returns NaN or infinity in step 0", "checks only `.grad`"),
        CURVATURE.format(region=", enabled=False", loss="loss", mark=""),
    ),
    Pair(
        "a hook that logs scaled gradients",
        HOOKS.format(norm="grad.norm().item()", mark="  # AMP202"),
        ("Gradients of `optimizer` are read while they are still multiplied by the loss scale",),
        HOOKS.format(norm="(grad.norm() / scaler.get_scale()).item()", mark=""),
    ),
    Pair(
        "a penalty of scaled gradients",
        PENALTY.format(mark="  # AMP214", inverse=" * 1.0"),
        ("still multiplied by the loss scale",),
        PENALTY.format(mark="", inverse=" * (1.0 / scaler.get_scale())"),
    ),
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
        ("`torch.autocast` is entered for another device than cuda", "`device.type`"),
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
        ("`t.to(h.dtype)` rounds positions to low precision before their sine or cosine",),
        TIMESTEPS.format(angles="angles = t[:, None] * frequencies"),
    ),
    Pair(
        "a loss that falls on the unscaled gradients of another optimizer",
        ACTOR.format(between="pass", mark="  # AMP209", after="scaler.step(oc)"),
        ("`scaler.scale(la).backward` adds scaled gradients to those of `oc`",),
        ACTOR.format(between="scaler.step(oc); scaler.update()", mark="", after="oc.zero_grad()"),
    ),
    Pair(
        "a target that is longer than its input",
        SPEECH.format(zero="", mark="  # AMP802"),
        ("is infinite in step 2, because a target is longer", "`zero_infinity=True`"),
        SPEECH.format(zero="zero_infinity=True", mark=""),
    ),
    Pair(
        "inputs that are too short for all targets",
        CHARACTERS.format(stride=4, lengths="torch.tensor([9, 10])", inputs="torch.tensor([8, 8])", mark="  # AMP802"),
        ("is infinite for every sample of the first 3 batches", "`zero_infinity` hides it"),
        CHARACTERS.format(stride=2, lengths="torch.tensor([9, 10])", inputs="torch.tensor([16, 16])", mark=""),
    ),
    Pair(
        "inputs that are too short for all targets, with lengths as tuples",
        CHARACTERS.format(stride=4, lengths="(10, 9)", inputs="(8,) * 2", mark="  # AMP802"),
        ("is infinite for every sample of the first 3 batches",),
        # The others train, and so does the third batch.
        CHARACTERS.format(stride=4, lengths="(10, 9 if i != 2 else 3)", inputs="(8,) * 2", mark=""),
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
    Pair(
        "a parameter that only an optimizer holds",
        PROMPT.format(dtype=".half()", mark="  # AMP501 AMP802"),
        ("float16 before", '`param_groups[0]["params"][0]` of the optimizer non-finite, because Adam computes'),
        PROMPT.format(dtype="", mark=""),
    ),
    Pair(
        "an optimizer whose own state underflows",
        OWN_STATE.format(dtype="torch.float16", mark="  # AMP802"),
        ("because `square` in the state of Own is in float16, where small numbers are zero",),
        OWN_STATE.format(dtype="torch.float32", mark=""),
    ),
    Pair(
        "a divisor that a cast makes zero",
        KERNEL.format(cast=".to(q.dtype)", mark="  # AMP802"),
        ("a division by zero, as a cast (line 14) underflows to 0 in float16", "compute both in float32"),
        KERNEL.format(cast="", mark=""),
    ),
    Pair(
        "weights that no step has made large",
        LARGE.format(factor=2e6, mark="  # AMP802"),
        ("`_to_copy` in `Linear` produces the first non-finite value in step 0", "above 65504"),
        LARGE.format(factor=10, mark=""),
    ),
    Pair(
        "a number of the program that is not one",
        NUMBER.format(mean="float('nan') if number == 1 else 0.5", mark="  # AMP802"),
        ("The input of code outside of modules contains non-finite values in step 2 (a number that is NaN)",),
        NUMBER.format(mean="0.5", mark=""),
    ),
    Pair(
        "a mask that multiplies an infinity",
        MASKED.format(masked="scores + (1 - mask) * float('-inf')", mark="  # AMP802"),
        ("multiplies zero by an infinity in step 0, which is NaN", "`masked_fill` or `torch.where`"),
        MASKED.format(masked="scores.masked_fill(mask == 0, float('-inf'))", mark=""),
    ),
    Pair(
        "positions that are counted in low precision",
        SEQUENCE.format(length=2051, dtype="h.dtype", mark="  # AMP509"),
        ("`torch.arange` rounds indexes to low precision", "keep them as integers"),
        SEQUENCE.format(length=2051, dtype="torch.float32", mark=""),
    ),
    Pair(
        "positions that low precision no longer holds all of",
        SEQUENCE.format(length=300, dtype="torch.bfloat16", mark="  # AMP509"),
        ("`torch.arange` rounds indexes to low precision",),
        SEQUENCE.format(length=257, dtype="torch.bfloat16", mark=""),
    ),
    Pair(
        "a value of one step that later steps read",
        ADVANTAGE.format(std="reward.std()", mark="  # AMP802"),
        ("`div` in code outside of modules", "a division by zero"),
        ADVANTAGE.format(std="reward.std() + 1e-8", mark=""),
    ),
    Pair(
        "a view of a value of one step that later steps read",
        ADVANTAGE.format(std="reward.std()", mark="  # AMP802").replace("* advantage", "* advantage.view(-1, 1)"),
        ("`div` in code outside of modules", "a division by zero"),
        ADVANTAGE.format(std="reward.std() + 1e-8", mark="").replace("* advantage", "* advantage.view(-1, 1)"),
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


@pytest.fixture(autouse=True)
def _nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what other tests of this process have compiled: hidden overflows are not searched beside such code."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    if frames is not None:
        monkeypatch.setattr(frames, "cached_backends", {})


@pytest.mark.parametrize("pair", PAIRS, ids=[pair.name for pair in PAIRS])
def test_the_cause_is_named_and_the_right_program_is_not(pair: Pair, tmp_path: Path) -> None:
    made = run(SETUP + pair.wrong, tmp_path / "wrong.py")
    assert places(made.findings) == marks(SETUP + pair.wrong, "runtime"), shown(made.findings)
    messages = "\n".join(finding.message for finding in made.findings)
    for words in pair.says:
        assert words in messages
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


def test_a_hook_that_tests_for_finite_gradients_reads_no_size(tmp_path: Path) -> None:
    made = run(SETUP + HOOKS.format(norm="torch.isfinite(grad).float().mean().item()", mark=""), tmp_path / "run.py")
    assert made.findings == []


def test_an_exception_of_a_step_carries_its_explanation() -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        torch.matmul(x.half(), model.weight)

    with pytest.raises(RuntimeError, match="dtype") as caught, session("emulate") as made:
        made.run(step, [torch.randn(2, 4)])
    frames = [entry.path for entry in caught.traceback if "pytest_amp_check" in str(entry.path)]
    assert not [path for path in frames if "emulate" in str(path)]
    if sys.version_info >= (3, 11):
        (note,) = caught.value.__notes__
        assert "AMP810" in note
        assert "`torch.matmul` runs outside autocast on `x.half()` in float16" in note


def test_names_come_from_the_trained_model_beside_a_criterion_and_an_average() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 4))
    average = copy.deepcopy(model)
    criterion = torch.nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = criterion(model(x).float(), x[:, :4])
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mean, p in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(p, 0.1)

    made = run_steps(step, [torch.randn(4, 8)], steps=2, dtypes=True)
    made.assert_dtypes({"0": "bfloat16", "parameters": "float32"})


def test_two_trained_models_have_names_of_their_own() -> None:
    first, second = torch.nn.Sequential(torch.nn.Linear(8, 4)), torch.nn.Sequential(torch.nn.Linear(4, 2))
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (first, second)]

    def step(x: torch.Tensor) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = second(first(x)).float().square().mean()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    made = run_steps(step, [torch.randn(4, 8)], steps=2, dtypes=True)
    made.assert_dtypes({"first.0": "bfloat16", "second.0": "bfloat16"})


def test_a_bias_whose_gradient_is_rounding_noise_is_not_compared() -> None:
    """Softmax does not change with the bias of attention keys, and Adam makes full steps of the noise."""
    torch.manual_seed(0)
    model = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(x: torch.Tensor) -> Any:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = (model(x) - x.flip(-1)).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    made = run_steps(step, [torch.randn(4, 8, 32) for _ in range(3)], steps=6)
    made.assert_matches_fp32(rtol=0.05)


def test_a_loss_that_is_not_finite_in_float32_either_is_not_called_unrepeatable() -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> Any:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(x).float().square().mean() + float("nan")
        loss.backward()
        optimizer.step()
        return loss

    made = run_steps(step, [torch.randn(4, 4)], steps=2)
    with pytest.raises(AssertionError, match="the loss of step 1 is nan in float32 as well"):
        made.assert_matches_fp32(rtol=0.05, what="loss")


def test_a_deprecated_scaler_warns_at_the_line_of_the_program() -> None:
    with warnings.catch_warnings(record=True) as caught, record():
        warnings.simplefilter("always")
        torch.cuda.amp.GradScaler(enabled=False)
    assert {each.filename for each in caught if each.category is FutureWarning} == {__file__}


def resume(steps: int, every: int) -> None:
    """Check a training whose second optimizer steps once in ``every`` calls."""
    torch.manual_seed(0)
    models = [torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    calls = {"count": 0}

    def step(x: torch.Tensor) -> None:
        calls["count"] += 1
        for number, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model(x).float().square().mean()
            loss.backward()
            if not number or calls["count"] % every == 0:
                optimizer.step()
                optimizer.zero_grad()

    def save() -> dict[str, Any]:
        parts: list[Any] = [*models, *optimizers]
        return {"count": calls["count"], "parts": [part.state_dict() for part in parts]}

    def load(checkpoint: dict[str, Any]) -> None:
        calls["count"] = checkpoint["count"]
        parts: list[Any] = [*models, *optimizers]
        for part, state in zip(parts, checkpoint["parts"], strict=True):
            part.load_state_dict(state)

    run_steps(step, [torch.randn(4, 4) for _ in range(steps)]).assert_resumes(save, load)


def test_a_checkpoint_is_taken_where_no_optimizer_accumulates() -> None:
    resume(steps=7, every=2)


def test_a_training_of_one_open_window_cannot_be_resumed() -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    calls = {"count": 0}

    def step(x: torch.Tensor) -> None:
        calls["count"] += 1
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(x).float().square().mean()
        loss.backward()
        if calls["count"] % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()

    made = run_steps(step, [torch.randn(4, 4) for _ in range(4)])
    with pytest.raises(ValueError, match="no update ends before the last step"):
        made.assert_resumes(model.state_dict, model.load_state_dict)


WRITES = (
    "w.data.add_(0.1)",
    "w.data.copy_(w * 0.9)",
    "w.data[:, 0] = 0.0",
    "w.detach().sub_(0.1)",
    "w.view(-1).mul_(0.5)",
    "w[0].fill_(1.0)",
    "nn.init.normal_(w)",
    "torch.clamp_(w, -0.1, 0.1)",
    "torch.add(w, 0.1, out=w)",
    "torch.mul(w, 0.9, out=w.data)",
    "w.set_(torch.randn(8, 8))",
    "w.data = w * 0.9",
    "torch._foreach_mul_([torch.randn(3), w], 0.9)",
    "torch._foreach_copy_([w.data], [w * 0.5])",
    "torch.nn.utils.vector_to_parameters(torch.randn(64), iter([w]))",
)


@pytest.mark.parametrize("write", WRITES)
def test_a_write_to_the_memory_of_a_weight_in_a_region_is_named(write: str, tmp_path: Path) -> None:
    body = """
model = nn.Linear(8, 8)
x = torch.randn(2, 8)
with torch.autocast("cpu", dtype=torch.bfloat16):
    model(x)
    with torch.no_grad():
        w = model.weight
        {write}
    model(x).float().square().mean().backward()
"""
    wrong = SETUP + body.format(write=f"{write}  # AMP101")
    made = run(wrong, tmp_path / "wrong.py")
    assert ("AMP101", wrong[: wrong.index("# AMP101")].count("\n") + 1) in [(f.code, f.line) for f in made.findings]
    # A copy has other memory.
    right = SETUP + body.format(write=write).replace("w = model.weight", "w = model.weight.clone()")
    assert "AMP101" not in [finding.code for finding in run(right, tmp_path / "right.py").findings]


FRESH = {
    "a weight without gradients": """
teacher = nn.Linear(8, 8).requires_grad_(False)
with torch.autocast("cpu", dtype=torch.bfloat16):
    teacher(x)
    teacher.weight.lerp_(model.weight.detach(), 0.1)
    seen = teacher(x)
""",
    "a weight in low precision": """
model = model.bfloat16()
with torch.autocast("cpu", dtype=torch.bfloat16):
    model(x)
    model.weight.data.mul_(0.5)
    seen = model(x)
""",
    "a weight before its first use": """
other = nn.Linear(8, 8)
with torch.autocast("cpu", dtype=torch.bfloat16):
    model(x)
    with torch.no_grad():
        other.weight.copy_(model.weight)
    seen = other(x)
""",
    "a weight set by its first forward": """
class Late(nn.Linear):
    is_ready = False

    def forward(self, x):
        if not self.is_ready:
            self.is_ready = True
            self.weight.data.copy_(torch.eye(8))
        return super().forward(x)


model = Late(8, 8)
with torch.autocast("cpu", dtype=torch.bfloat16):
    model(x)
    seen = model(x)
""",
    "a new parameter": """
with torch.autocast("cpu", dtype=torch.bfloat16):
    model(x)
    model.load_state_dict({key: value * 0.5 for key, value in model.state_dict().items()}, assign=True)
    seen = model(x)
""",
}


@pytest.mark.parametrize("program", FRESH.values(), ids=FRESH)
def test_a_write_that_leaves_no_outdated_copy_is_right(program: str, tmp_path: Path) -> None:
    source = SETUP + "model = nn.Linear(8, 8)\nx = torch.randn(2, 8)\n" + program
    source += """
with torch.autocast("cpu", dtype=torch.bfloat16):
    assert torch.equal(seen, (other if "other" in globals() else teacher if "teacher" in globals() else model)(x))
"""
    assert not run(source, tmp_path / "right.py").findings


def test_a_step_between_forwards_that_enter_their_own_regions_is_named(tmp_path: Path) -> None:
    source = """
class Net(nn.Linear):
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(x)


model = Net(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with torch.autocast("cpu", enabled=False):
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(2, 8)).float().sum().backward()
        optimizer.step()  # AMP101
"""
    wrong = SETUP + source
    made = run(wrong, tmp_path / "wrong.py")
    assert [(f.code, f.line) for f in made.findings] == [("AMP101", wrong[: wrong.index("# AMP101")].count("\n") + 1)]
    right = SETUP + source.replace('with torch.autocast("cpu", enabled=False):', "if True:")
    assert not run(right, tmp_path / "right.py").findings


LOGGED = """
logs = []
model = nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
for _ in range(4):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.randn(8, 16)).float().square().mean()
    scaler.scale(loss).backward()
    {before}
    scaler.unscale_(optimizer)
    {after}
    scaler.step(optimizer)
    scaler.update()
    {end}
"""
READS = (
    "logs.extend(p.grad.norm().item() for p in model.parameters())",
    "norm = model.weight.grad.data.norm(2); logs.append(norm.item() ** 2)",
    "logs.append(float(model.weight.grad.abs().mean()))",
    "logs.append(model.weight.grad.cpu().numpy().copy())",
)


@pytest.mark.parametrize("read", READS)
def test_a_scaled_gradient_that_is_logged_is_named(read: str, tmp_path: Path) -> None:
    wrong = SETUP + LOGGED.format(before=f"{read}  # AMP202", after="", end="")
    made = run(wrong, tmp_path / "wrong.py")
    assert [(f.code, f.line) for f in made.findings] == [("AMP202", wrong[: wrong.index("# AMP202")].count("\n") + 1)]
    for right in (
        LOGGED.format(before="", after=read, end=""),
        # A program that reads the scale may divide by it later.
        LOGGED.format(before=read, after="", end="logs.append(scaler.get_scale())"),
        LOGGED.format(before="logs.append(model.weight.grad.isfinite().sum().item())", after="", end=read),
    ):
        assert not run(SETUP + right, tmp_path / "right.py").findings
