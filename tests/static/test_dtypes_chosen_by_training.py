"""Modules of a project whose training, in another file, chooses a low dtype: evidence for effects on their inputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_amp_check.static.engine import check_paths

LOOP = """\
    for x, y in loader:
        loss = model(x, y).mean()
        {backward}
        optimizer.step()
        optimizer.zero_grad()
"""
DEEPSPEED = """\
import deepspeed
import torch
from {package}.model import Net


def main(loader, config):
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    engine, optimizer, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    for x, y in loader:
        engine.backward(engine(x, y).mean())
        engine.step()
"""
SHARDED = """\
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from {package}.model import Net


def main(loader):
    model = Net()
    fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
""" + LOOP.format(backward="loss.backward()")
IN_FLOAT32 = """\
import torch
from {package}.model import Net


def main(loader):
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
""" + LOOP.format(backward="loss.backward()")
IN_FLOAT16 = """\
import torch
from {package}.model import Net


def main(loader):
    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x, y).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
MODEL = """\
from torch import nn
from {package}.layers import Layer


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = Layer(64)

    def forward(self, x, y):
        return self.layer(x) * y
"""
NORM = """\
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        variance = x{cast}.pow(2).mean(-1, keepdim=True)
        return self.weight * x * torch.rsqrt(variance + self.eps)
"""
ROUTER = """\
import torch
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gate = nn.Linear(dim, 8, bias=False)

    def forward(self, x):
        scores = F.softmax(F.linear(x.float(), self.gate.weight.float()), dim=-1){cast}
        weight, index = scores.topk(2, dim=-1)
        return weight
"""


def found(folder: Path, training: str, layers: str, *, package: str = "lib") -> list[str]:
    inside = folder / package
    inside.mkdir(parents=True)
    (inside / "__init__.py").write_text("")
    (inside / "model.py").write_text(MODEL.format(package=package))
    (inside / "layers.py").write_text(layers)
    scripts = folder / "scripts"
    scripts.mkdir()
    (scripts / "train.py").write_text(training.format(package=package))
    (folder / "pyproject.toml").write_text("")
    findings = check_paths([str(folder)]).findings
    return [f"{each.code} {each.severity}" for each in findings if each.filename.endswith("layers.py")]


@pytest.mark.parametrize(
    ("training", "layers", "expected"),
    [
        (DEEPSPEED, NORM.format(cast=""), ["AMP507 info"]),
        (DEEPSPEED, NORM.format(cast=".float()"), []),
        (IN_FLOAT32, NORM.format(cast=""), []),
        # Squares do not overflow bfloat16.
        (SHARDED, NORM.format(cast=""), []),
        (SHARDED, ROUTER.format(cast=".to(x.dtype)"), ["AMP507 warning"]),
        (SHARDED, ROUTER.format(cast=""), []),
        (IN_FLOAT32, ROUTER.format(cast=".to(x.dtype)"), []),
    ],
    ids=["deepspeed", "widened", "float32", "squares", "ranked", "ranked before", "ranked in float32"],
)
def test_training_of_another_folder(tmp_path: Path, training: str, layers: str, expected: list[str]) -> None:
    assert found(tmp_path / "project", training, layers) == expected


SCORES = """\
from torch import nn
from {package}.scores import minmax


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.linear = nn.Linear(dim, dim)

    def forward(self, x):
        return minmax(self.linear(x){cast})
"""
MINMAX = """\
import torch


def minmax(scores, epsilon={epsilon}):
    low = scores.min(dim=1, keepdim=True).values
    high = scores.max(dim=1, keepdim=True).values
    return (scores - low) / (high - low + epsilon)
"""


@pytest.mark.parametrize(
    ("training", "cast", "epsilon", "expected"),
    [
        (IN_FLOAT16, "", "1e-8", ["AMP505 info"]),
        (IN_FLOAT16, "", "1e-4", []),
        (IN_FLOAT16, ".float()", "1e-8", []),
        (SHARDED, "", "1e-8", []),
        (IN_FLOAT32, "", "1e-8", []),
    ],
    ids=["lost", "large enough", "of float32", "of bfloat16", "of a training in float32"],
)
def test_an_epsilon_that_is_a_default(
    tmp_path: Path, training: str, cast: str, epsilon: str, expected: list[str]
) -> None:
    folder = tmp_path / "project"
    inside = folder / "lib"
    inside.mkdir(parents=True)
    (inside / "scores.py").write_text(MINMAX.format(epsilon=epsilon))
    (inside / "layers.py").write_text(SCORES.format(package="lib", cast=cast))
    (inside / "model.py").write_text(MODEL.format(package="lib"))
    (folder / "train.py").write_text(training.format(package="lib"))
    findings = check_paths([str(folder)]).findings
    assert [f"{each.code} {each.severity}" for each in findings if each.filename.endswith("scores.py")] == expected


BUFFER = """\
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, dim, rate=1e-3):
        super().__init__()
        self.linear, self.rate = nn.Linear(dim, dim), rate
        self.register_buffer("mean", torch.zeros(dim, dtype=torch.float32))

    def forward(self, x):
        {keep}
        {update}
        return self.linear(x) - self.mean
"""
CAST = IN_FLOAT32.replace("model = Net()", "model = Net().to(torch.bfloat16)")


@pytest.mark.parametrize(
    ("update", "is_small"),
    [
        ("self.mean.mul_(0.99).add_(x.mean(0), alpha=0.01)", True),
        ("self.mean.lerp_(x.mean(0), self.rate)", True),
        ("self.mean = 0.99 * self.mean + 0.01 * x.mean(0)", True),
        ("self.mean.add_(torch.sign(x.mean(0)), alpha=self.rate)", True),
        ("self.mean.copy_(x.mean(0))", False),
        ("self.mean.lerp_(x.mean(0), 0.5)", False),
        ("self.mean.add_(x.mean(0), alpha=2)", False),
    ],
)
def test_buffers_that_a_cast_of_the_model_rounds(tmp_path: Path, update: str, is_small: bool) -> None:
    plain = BUFFER.format(keep="pass", update=update)
    assert ("AMP508 info" in found(tmp_path / "cast", CAST, plain)) == is_small
    assert found(tmp_path / "float32", IN_FLOAT32, plain) == []
    kept = BUFFER.format(keep="self.mean.data = self.mean.data.to(torch.float32)", update=update)
    assert "AMP508 info" not in found(tmp_path / "kept", CAST, kept)


def test_a_running_mean_of_low_inputs(tmp_path: Path) -> None:
    layers = """\
import torch
from torch import nn


class Mean:
    def __init__(self):
        self.value, self.count = None, 0

    def collect(self, x):
        new = x.detach(){cast}.mean(dim=0)
        self.count += 1
        if self.value is None:
            self.value = new
        else:
            self.value = self.value + (new - self.value) / self.count


class Layer(nn.Linear):
    def __init__(self, dim):
        super().__init__(dim, dim)
        self.mean = Mean()

    def forward(self, x):
        self.mean.collect(x)
        return super().forward(x)
"""
    assert found(tmp_path / "wrong", SHARDED, layers.replace("{cast}", "")) == ["AMP508 info"]
    assert found(tmp_path / "right", SHARDED, layers.replace("{cast}", ".float()")) == []
    assert found(tmp_path / "float32", IN_FLOAT32, layers.replace("{cast}", "")) == []


LOSS = """\
import torch
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.A_log = nn.Parameter(torch.log(torch.arange(1.0, dim + 1)))

    def forward(self, x):
        {statement}
"""
AUTOCAST = IN_FLOAT32.replace(
    "        loss = model", '        with torch.autocast("cuda", dtype=torch.bfloat16):\n            loss = model'
)


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("return F.log_softmax(x, dim=-1)", ["AMP507 info"]),
        ("return F.log_softmax(x.float(), dim=-1)", []),
        ("return x * torch.exp(self.A_log)", ["AMP507 info"]),
        ("return x * torch.exp(self.A_log.float())", []),
    ],
)
def test_code_that_a_region_would_compute_in_float32(tmp_path: Path, statement: str, expected: list[str]) -> None:
    layers = LOSS.format(statement=statement)
    assert found(tmp_path / "engine", DEEPSPEED, layers) == expected
    assert found(tmp_path / "region", AUTOCAST, layers) == []
    assert found(tmp_path / "float32", IN_FLOAT32, layers) == []


def test_embeddings_that_are_normalized_in_float16(tmp_path: Path) -> None:
    layers = LOSS.format(statement="return F.normalize({x}, dim=-1)")
    assert found(tmp_path / "wrong", DEEPSPEED, layers.replace("{x}", "x")) == ["AMP505 info"]
    assert found(tmp_path / "right", DEEPSPEED, layers.replace("{x}", "x.float()")) == []
    assert found(tmp_path / "bfloat16", SHARDED, layers.replace("{x}", "x")) == []


KERNEL = """\
import torch
from torch.autograd import Function
from torch.amp import custom_bwd, custom_fwd

import kernels


class Attention(Function):
    @staticmethod
    {forward}
    def forward(ctx, scores, values, size):
        values = values.contiguous()
        ctx.save_for_backward({saved})
        return kernels.attend(scores, values, size)

    @staticmethod
    {backward}
    def backward(ctx, grad):
        return kernels.attend_backward(grad, *ctx.saved_tensors), None, None
"""
PLAIN = '@custom_fwd(device_type="cuda")', '@custom_bwd(device_type="cuda")'


@pytest.mark.parametrize(
    ("forward", "saved", "expected"),
    [
        (PLAIN[0], "scores, values", ["AMP107 info"]),
        (PLAIN[0], "scores", []),
        ('@custom_fwd(device_type="cuda", cast_inputs=torch.float32)', "scores, values", []),
    ],
    ids=["two dtypes", "one tensor", "cast"],
)
def test_kernels_that_get_tensors_of_two_dtypes(tmp_path: Path, forward: str, saved: str, expected: list[str]) -> None:
    layers = KERNEL.format(forward=forward, backward=PLAIN[1], saved=saved)
    assert found(tmp_path / "project", IN_FLOAT16, layers) == expected
