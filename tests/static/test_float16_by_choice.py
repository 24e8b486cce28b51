"""Regions that are float16 only by choice: trained without a scaler (AMP502), losses outside them (AMP104)."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

PROGRAM = """\
import argparse
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional as F

def train_epoch(loader):
    for x, y in loader:
        optimizer.zero_grad()
        with region:
            loss = F.cross_entropy(model(x), y)
        {backward}
        {step}

parser = argparse.ArgumentParser()
parser.add_argument("--dtype", default="bfloat16")
parser.add_argument("--device", default="cuda")
parser.add_argument("--amp", action="store_true")
args = parser.parse_args()
model = nn.Linear(8, 8).cuda()
optimizer = torch.optim.AdamW(model.parameters())
{made}
for epoch in range(3):
    train_epoch(loader)
"""
TERNARY = "dtype = torch.bfloat16 if args.dtype == 'bfloat16' else torch.float16"
BRANCH = "dtype = torch.float16\nif torch.cuda.is_bf16_supported():\n    dtype = torch.bfloat16"
PLAIN = "region = torch.autocast('cuda', dtype=dtype)"
OPTIONAL = "region = nullcontext() if args.device == 'cpu' else torch.autocast('cuda', dtype=dtype)"


def labels(made: str, backward: str = "loss.backward()", step: str = "optimizer.step()") -> list[str]:
    source = PROGRAM.format(made=made, backward=backward, step=step)
    return [finding.label for finding in check_source(source, "train.py") if finding.code == "AMP502"]


@pytest.mark.parametrize("dtype", [TERNARY, BRANCH])
@pytest.mark.parametrize("region", [PLAIN, OPTIONAL])
def test_a_chosen_dtype(dtype: str, region: str) -> None:
    assert labels(f"{dtype}\n{region}") == ["backward:no-scaler-option"]


@pytest.mark.parametrize(
    "region",
    [
        "torch.autocast('cuda', dtype=torch.float16, enabled=args.amp)",
        "torch.autocast('cuda', enabled=args.amp)",
        "torch.cuda.amp.autocast(args.amp)",
        "torch.autocast('cuda', torch.float16) if args.amp else nullcontext()",
    ],
)
def test_a_region_that_a_flag_enables(region: str) -> None:
    assert labels(f"region = {region}") == ["backward:no-scaler-option"]


@pytest.mark.parametrize(
    "made",
    [
        "region = torch.autocast('cuda', dtype=torch.bfloat16, enabled=args.amp)",
        "region = torch.autocast('cuda', dtype=torch.bfloat16) if args.amp else nullcontext()",
        f"{TERNARY}\nregion = torch.autocast('cuda', dtype=dtype, enabled=dtype == torch.bfloat16)",
        "dtype = torch.bfloat16 if args.amp else torch.float32\nregion = torch.autocast('cuda', dtype=dtype)",
        "region = torch.autocast('cuda', dtype=getattr(torch, args.dtype))",
        "region = make_region(args)",
    ],
)
def test_float16_is_no_option(made: str) -> None:
    assert labels(made) == []


def test_a_scaler() -> None:
    scaler = "scaler = torch.amp.GradScaler('cuda', enabled=dtype == torch.float16)"
    steps = ("scaler.scale(loss).backward()", "scaler.step(optimizer); scaler.update()")
    assert labels(f"{TERNARY}\n{PLAIN}\n{scaler}", *steps) == []
    assert labels(f"{TERNARY}\n{PLAIN}", "accelerator.backward(loss)") == []


def test_a_test_of_both_dtypes() -> None:
    source = PROGRAM.format(
        made="region = torch.autocast('cuda', enabled=args.amp)", backward="loss.backward()", step="optimizer.step()"
    )
    assert "AMP502" in [finding.code for finding in check_source(source, "train.py")]
    assert "AMP502" not in [finding.code for finding in check_source(source, "tests/train_test.py")]


def test_float16_without_a_choice_is_certain() -> None:
    assert labels("region = torch.autocast('cuda', dtype=torch.float16)") == ["backward:no-scaler"]


GIVEN = """\
import torch

class Trainer:
    def __init__(self, model, optimizer{scaler}):
        self.model, self.optimizer = model, optimizer
        {kept}

    def step(self, x, dtype):
        self.optimizer.zero_grad()
        with torch.autocast("cuda", dtype={dtype}):
            loss = self.model(x).mean()
        {backward}
        {step}
"""


def given(
    dtype: str, *, scaler: str = "", kept: str = "pass", backward: str = "loss.backward()", step: str = ""
) -> str:
    return GIVEN.format(scaler=scaler, kept=kept, dtype=dtype, backward=backward, step=step or "self.optimizer.step()")


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (given("torch.float16"), ["backward:no-scaler"]),
        (given("torch.bfloat16"), []),
        # Who constructs the optimizer may choose bfloat16, too.
        (given("dtype"), []),
        # The caller steps, perhaps with a scaler.
        (given("torch.float16", step="pass"), []),
        (
            given(
                "torch.float16",
                scaler=", scaler",
                kept="self.scaler = scaler",
                backward="self.scaler.scale(loss).backward()",
                step="self.scaler.step(self.optimizer); self.scaler.update()",
            ),
            [],
        ),
        (given("torch.float16", backward="self.optimizer.backward(loss)"), []),
    ],
)
def test_an_optimizer_that_other_code_constructs(source: str, found: list[str]) -> None:
    assert [finding.label for finding in check_source(source, "train.py") if finding.code == "AMP502"] == found


WRAPPERS = """\
import torch
from torch import nn

class TestWrappers:
    def {name}(self):
        plain, wrapped = nn.Linear(8, 8), nn.DataParallel(nn.Linear(8, 8))
        optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (plain, wrapped)]
        for _ in range(2):
            with torch.autocast("cuda"):
                losses = [each(torch.randn(4, 8)).sum() for each in (plain, wrapped)]
            for loss, optimizer in zip(losses, optimizers):
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            assert torch.allclose(*losses)
"""


@pytest.mark.parametrize(
    ("name", "path", "found"),
    [("test_steps", "wrappers.py", 0), ("_worker", "tests/test_wrappers.py", 0), ("compare", "wrappers.py", 1)],
)
def test_a_test_that_compares_two_models(name: str, path: str, found: int) -> None:
    findings = check_source(WRAPPERS.format(name=name), path)
    assert [finding.label for finding in findings if finding.code == "AMP502"] == ["backward:no-scaler"] * found


LOSS = """\
import torch
from torch import nn
from torch.nn import functional as F

def train(args, model: nn.Module, loader):
    optimizer = torch.optim.AdamW(model.parameters())
    {dtype}
    scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=dtype):
            logits = model(x)
            {inside}
        {outside}
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""


@pytest.mark.parametrize(
    ("inside", "outside", "is_found"),
    [
        ("pass", "loss = F.cross_entropy(logits, y)", True),
        ("logits = logits[:, :-1].contiguous()", "loss = F.cross_entropy(logits.view(-1, 9), y)", True),
        ("loss = F.cross_entropy(logits, y)", "pass", False),
        ("pass", "loss = F.cross_entropy(logits.float(), y)", False),
        ("pass", "loss = F.mse_loss(logits, y)", False),
    ],
)
def test_a_loss_outside_a_region_of_a_chosen_dtype(inside: str, outside: str, *, is_found: bool) -> None:
    source = LOSS.format(dtype=TERNARY, inside=inside, outside=outside)
    found = [finding for finding in check_source(source, "train.py") if finding.code == "AMP104"]
    assert [(each.label, each.certain) for each in found] == [("loss@outside-choice", False)] * is_found
