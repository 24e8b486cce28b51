"""Precision without a region: low weights, sharding policies, and averages that methods keep."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

LOOP = """\
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, fully_shard
from transformers import AutoModelForCausalLM


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 100)

    def forward(self, x):
        return self.head(x)


class Widened(Plain):
    def forward(self, x):
        return self.head(x).float()


def train(loader):
    {model}
    head = nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(head.parameters())
    criterion = nn.CrossEntropyLoss()
    for x, y in loader:
        {loss}
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
FROZEN = ".requires_grad_(False)"
CAST = f"model = nn.Linear(8, 100).to(torch.bfloat16){FROZEN}"
LOADED = f"model = AutoModelForCausalLM.from_pretrained('gpt2', torch_dtype=torch.bfloat16)\n    model{FROZEN}"
POLICY = "model = Plain()\n    fully_shard(model, mp_policy=MixedPrecisionPolicy({}))"


def notes(model: str, loss: str) -> list[tuple[str, str, bool]]:
    found = check_source(LOOP.format(model=model, loss=loss))
    return [(f.label, f.severity, f.certain) for f in found if f.code == "AMP507"]


LOSS = "loss = F.cross_entropy(model(x), y)"
NOTE = [("fragile:loss", "info", False)]


@pytest.mark.parametrize(
    ("model", "loss"),
    [
        (CAST, LOSS),
        (f"model = nn.Linear(8, 100).bfloat16(){FROZEN}", LOSS),
        (f"model = nn.Linear(8, 100).half(){FROZEN}", LOSS),
        (f"model = nn.Linear(8, 100, dtype=torch.bfloat16){FROZEN}", LOSS),
        (f"model = Plain().to(torch.bfloat16){FROZEN}", LOSS),
        (CAST, "loss = criterion(model(x), y)"),
        (CAST, "logits = model(x).view(-1, 100)\n        loss = F.nll_loss(logits.log_softmax(-1), y)"),
        (LOADED, "loss = F.cross_entropy(model(x).logits.flatten(0, 1), y)"),
        (LOADED, "out = model(x)\n        loss = F.kl_div(out.logits, y)"),
        (POLICY.format("param_dtype=torch.bfloat16, reduce_dtype=torch.float32"), LOSS),
        # What a float32 layer computes with cast weights stays low.
        (CAST, "loss = F.cross_entropy(F.linear(model(x), head.weight.to(torch.bfloat16)), y)"),
        (CAST, "loss = F.cross_entropy(model(x) @ head.weight.to(torch.bfloat16), y)"),
        (CAST, "with torch.autocast('cuda', enabled=False):\n            loss = F.cross_entropy(model(x), y)"),
    ],
)
def test_the_loss_of_low_outputs_is_a_note(model: str, loss: str) -> None:
    assert notes(model, loss) == NOTE


@pytest.mark.parametrize(
    ("model", "loss"),
    [
        (CAST, "loss = F.cross_entropy(model(x).float(), y)"),
        (CAST, "loss = F.nll_loss(model(x).log_softmax(-1, dtype=torch.float32), y)"),
        # A mean of squares of small differences loses little, and a model may compute its own loss in float32.
        (CAST, "loss = F.mse_loss(model(x), y)"),
        (LOADED, "loss = model(x, labels=y).loss"),
        # Autocast computes these losses in float32.
        (CAST, "with torch.autocast('cuda', dtype=torch.bfloat16):\n            loss = F.cross_entropy(model(x), y)"),
        ("model = nn.Linear(8, 100)", LOSS),
        (f"model = nn.Linear(8, 100).to(torch.bfloat16).float(){FROZEN}", LOSS),
        (f"model = Widened().to(torch.bfloat16){FROZEN}", LOSS),
        (POLICY.format("param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32"), LOSS),
        (POLICY.format("reduce_dtype=torch.float32"), LOSS),
        # accelerate converts the outputs of a model that it prepares.
        (f"{LOADED}\n    model = Accelerator(mixed_precision='bf16').prepare(model)", LOSS),
    ],
)
def test_losses_in_float32_are_silent(model: str, loss: str) -> None:
    assert notes(model, loss) == []


def reductions(policy: str) -> list[str]:
    return [f.label for f in check_source(LOOP.format(model=f"policy = {policy}", loss="pass")) if f.code == "AMP508"]


@pytest.mark.parametrize(
    ("policy", "labels"),
    [
        ("MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)", ["reduction:given"]),
        ("MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16)", ["reduction:given"]),
        ("MixedPrecision(reduce_dtype=torch.float16)", ["reduction:given"]),
        ("MixedPrecisionPolicy(param_dtype=torch.bfloat16)", ["reduction:default"]),
        ("MixedPrecisionPolicy(torch.bfloat16, None)", ["reduction:default"]),
        ("MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)", []),
        ("MixedPrecisionPolicy(torch.bfloat16, torch.float32)", []),
        ("MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=choose())", []),
        ("MixedPrecisionPolicy(param_dtype=torch.bfloat16, **settings)", []),
        ("MixedPrecision(param_dtype=torch.float32)", []),
        ("MixedPrecision()", []),
    ],
)
def test_gradients_summed_over_ranks(policy: str, labels: list[str]) -> None:
    assert reductions(policy) == labels


AVERAGE = """\
import torch
from torch import nn


class Calibrator{base}:
    def __init__(self):
        {start}
        self.count = 0

    def collect(self, x):
        batch = x.mean(0)
        if self.mean is None:
            self.mean = {first}
        else:
            self.mean = {update}
        self.count += 1


model = nn.Linear(32, 32)
calibrator = Calibrator()
for i in range(2000):
    with torch.no_grad(), {region}:
        y = model(torch.randn(2, 32))
        calibrator.collect(y)
"""
REGION = "torch.autocast('cpu', dtype=torch.bfloat16)"
SHARES = "self.mean * (self.count / (self.count + 1)) + batch / (self.count + 1)"


@pytest.mark.parametrize(
    ("base", "start", "first", "update", "region", "found"),
    [
        ("", "self.mean = None", "batch.detach().clone()", SHARES, REGION, True),
        ("", "self.mean = None", "batch", "0.1 * batch + self.mean * 0.9", REGION, True),
        ("(nn.Module)", "super().__init__(); self.register_buffer('mean', None)", "batch", SHARES, REGION, True),
        ("", "self.mean = None", "batch.float()", SHARES, REGION, False),
        ("", "self.mean = None", "batch", "self.mean * 0.9 + 0.1 * batch.float()", REGION, False),
        ("", "self.mean = None", "batch", SHARES, "torch.enable_grad()", False),
    ],
)
def test_a_method_averages_over_the_iterations_of_its_caller(
    base: str, start: str, first: str, update: str, region: str, found: bool
) -> None:
    text = AVERAGE.format(base=base, start=start, first=first, update=update, region=region)
    assert [f.label for f in check_source(text) if f.code == "AMP508"] == (["sum:average"] if found else [])
