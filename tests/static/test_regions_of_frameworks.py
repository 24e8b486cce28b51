"""Forwards that a framework runs in a region, and what its trainers do after the methods of a subclass."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

ACCELERATE = """\
import torch
from accelerate import Accelerator
from torch import nn


class Scores(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(8, 8)

    def forward(self, x, mask):
        scores = self.proj(x)
        {statement}
        return scores.softmax(-1)


def main(loader):
    accelerator = Accelerator(mixed_precision="{precision}")
    model = Scores()
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, mask, y in loader:
        loss = nn.functional.mse_loss(model(x, mask), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
"""
LIGHTNING = """\
import lightning as L
import torch
from torch import nn


class Task(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(8, 8)

    def forward(self, x):
        return self.proj(x)

    def training_step(self, batch, index):
        scores = {call}(batch)
        {statement}
        return scores.mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


L.Trainer(precision="{precision}").fit(Task(), None)
"""
FRAGILE = [
    ("scores = scores / (scores.abs().amax(-1, keepdim=True) + 1e-8)", "float16", ["AMP505"]),
    ("scores = scores / (scores.abs().amax(-1, keepdim=True) + 1e-3)", "float16", []),
    ("scores = scores.float() / (scores.float().abs().amax(-1, keepdim=True) + 1e-8)", "float16", []),
    ("scores = scores / (scores.abs().amax(-1, keepdim=True) + 1e-8)", "bfloat16", []),
]


@pytest.mark.parametrize(("statement", "dtype", "found"), FRAGILE)
def test_the_forward_of_a_model_that_accelerate_prepares(statement: str, dtype: str, found: list[str]) -> None:
    precision = {"float16": "fp16", "bfloat16": "bf16"}[dtype]
    text = ACCELERATE.format(statement=statement, precision=precision)
    assert [finding.code for finding in check_source(text, "run.py")] == found


@pytest.mark.parametrize(
    ("statement", "precision", "found"),
    [
        ("scores = scores.masked_fill(mask == 0, -1e9)", "fp16", ["AMP506"]),
        ("scores = scores.masked_fill(mask == 0, -1e4)", "fp16", []),
        ("scores = scores.masked_fill(mask == 0, -1e9)", "bf16", []),
        ("scores = scores.masked_fill(mask == 0, -1e9)", "no", []),
    ],
)
def test_a_fill_in_a_program_whose_framework_chooses_float16(statement: str, precision: str, found: list[str]) -> None:
    text = ACCELERATE.format(statement=statement, precision=precision)
    assert [finding.code for finding in check_source(text, "run.py")] == found


def test_outputs_of_a_prepared_model_are_float32() -> None:
    text = ACCELERATE.format(statement="pass", precision="fp16")
    used = text.replace("model(x, mask), y)", "model(x, mask), y) + (model(x, mask) + 1e-8).log().mean()")
    assert [finding.code for finding in check_source(used, "run.py")] == []


@pytest.mark.parametrize("call", ["self", "self.proj", "self.forward"])
@pytest.mark.parametrize(("statement", "dtype", "found"), FRAGILE)
def test_a_step_of_lightning(call: str, statement: str, dtype: str, found: list[str]) -> None:
    precision = {"float16": "16-mixed", "bfloat16": "bf16-mixed"}[dtype]
    text = LIGHTNING.format(call=call, statement=statement, precision=precision)
    assert [finding.code for finding in check_source(text, "task.py")] == found


@pytest.mark.parametrize("precision", ["32-true", "64-true"])
def test_a_step_of_lightning_without_a_region(precision: str) -> None:
    text = LIGHTNING.format(call="self", statement=FRAGILE[0][0], precision=precision)
    assert check_source(text, "task.py") == []


TRAINER = """\
import torch
from transformers import Trainer


class OwnTrainer(Trainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        loss = self.compute_loss(model, inputs)
        self.accelerator.backward(loss)
        {statements}
        return loss.detach()
"""


@pytest.mark.parametrize(
    ("statements", "found"),
    [
        ("pass", []),
        ("torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)", [("AMP201", 10)]),
        ("self.accelerator.clip_grad_norm_(model.parameters(), 0.5)", []),
        ("self.compute_loss(model, inputs).backward()", [("AMP203", 10)]),
        ("self.accelerator.backward(self.compute_loss(model, inputs))", []),
    ],
)
def test_the_trainer_unscales_and_steps_after_a_training_step(statements: str, found: list[tuple[str, int]]) -> None:
    """The precision is an argument of the user, so the findings are remarks."""
    findings = check_source(TRAINER.format(statements=statements), "trainer.py")
    assert [(finding.code, finding.line) for finding in findings] == found
    assert all(finding.severity == "info" for finding in findings)


@pytest.mark.parametrize(("divisor", "found"), [("(micro + 1)", ["AMP304"]), ("micro_batches", [])])
@pytest.mark.parametrize("loop", ["range(micro_batches)", "range(8)"])
def test_a_loss_divided_by_the_micro_batches_so_far(divisor: str, found: list[str], loop: str) -> None:
    text = (
        "import torch\n\n\ndef main(net, loader, micro_batches=8):\n"
        "    optimizer = torch.optim.AdamW(net.parameters())\n    scaler = torch.amp.GradScaler('cuda')\n"
        f"    for batches in loader:\n        for micro in {loop}:\n"
        "            with torch.autocast('cuda', dtype=torch.float16):\n"
        f"                loss = net(batches[micro]).mean() / {divisor}\n"
        "            scaler.scale(loss).backward()\n"
        "        scaler.step(optimizer)\n        scaler.update()\n        optimizer.zero_grad()\n"
    )
    assert [finding.code for finding in check_source(text, "run.py")] == found


WARM_UP = """\
import torch
from torch import nn


def main(loader, k):
    model = nn.Linear(8, 8).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for length in range(4, 40, 4):
        model(torch.randn(length, 8)).mean().backward()
        model.zero_grad()
    for number, batch in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(batch).mean() / k
        scaler.scale(loss).backward()
        if (number + 1) % k == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""


def test_a_warm_up_that_discards_its_gradients() -> None:
    """The loop of a warm-up is no window: other gradients are computed before the step."""
    assert check_source(WARM_UP, "train.py") == []


def test_micro_batches_that_discard_their_gradients() -> None:
    """The step after the loop finds the gradients of no micro-batch."""
    text = (
        "import torch\n\n\ndef main(net, loader):\n    optimizer = torch.optim.Adam(net.parameters())\n"
        "    scaler = torch.amp.GradScaler('cuda')\n    for batches in loader:\n        for n in range(4):\n"
        "            with torch.autocast('cuda', dtype=torch.float16):\n"
        "                loss = net(batches[n]).mean() / 4\n"
        "            scaler.scale(loss).backward()\n            optimizer.zero_grad()\n"
        "        scaler.step(optimizer)\n        scaler.update()\n"
    )
    assert [finding.code for finding in check_source(text, "train.py")] == ["AMP215"]
