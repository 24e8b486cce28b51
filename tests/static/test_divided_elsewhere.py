"""Gradients that another method divides by the number of micro-batches, or of samples, of their window (AMP301)."""

from __future__ import annotations

from textwrap import dedent

import pytest
from marks import marks, places

from pytest_amp_check.static.engine import check_source

#: Programs with a mark at the dividing line, and the mark of the mistake without this line.
PROGRAMS = {
    "a method that multiplies what the step uses": """
        import torch
        class Trainer:
            def __init__(self, model, k):
                self.model = model
                self.k = k
                self.opt = torch.optim.SGD(model.parameters(), 0.1)
                self.scaler = torch.amp.GradScaler("cuda")
            def backward(self, x, y):
                with torch.autocast("cuda"):
                    loss = torch.nn.functional.cross_entropy(self.model(x), y, reduction="mean")
                self.scaler.scale(loss).backward()  # AMP301
            def multiply_grads(self, c):
                for p in self.model.parameters():
                    if p.grad is not None:
                        p.grad.data.mul_(c)
            def step(self):
                self.scaler.unscale_(self.opt)
                self.multiply_grads(1 / self.k)  # divides
                self.scaler.step(self.opt)
                self.scaler.update()
                self.opt.zero_grad()
            def train(self, loader):
                for i, (x, y) in enumerate(loader):
                    self.backward(x, y)
                    if (i + 1) % self.k == 0:
                        self.step()
    """,
    "samples that are counted meanwhile": """
        import torch
        class Trainer:
            def __init__(self, model, k):
                self.model = model
                self.k = k
                self.opt = torch.optim.SGD(model.parameters(), 0.1)
                self.scaler = torch.amp.GradScaler("cuda")
                self.sample_size = 0
            def backward(self, x, y):
                with torch.autocast("cuda"):
                    loss = torch.nn.functional.cross_entropy(self.model(x), y)
                self.scaler.scale(loss).backward()  # AMP301
                self.sample_size += len(x)
                self.seen += 1
                if self.seen % self.k == 0:
                    self.step()
            def normalise(self):
                for group in self.opt.param_groups:
                    for p in group["params"]:
                        p.grad /= self.sample_size
            def step(self):
                self.scaler.unscale_(self.opt)
                self.normalise()  # divides
                self.scaler.step(self.opt)
                self.scaler.update()
                self.opt.zero_grad()
                self.sample_size = 0
    """,
    "a list of gradients": """
        import torch
        class Trainer:
            def __init__(self, model, k, optimizer):
                self.model = model
                self.k = k
                self.opt = optimizer
                self.scaler = torch.amp.GradScaler("cuda")
            def train(self, loader):
                for i, (x, y) in enumerate(loader):
                    with torch.autocast("cuda"):
                        loss = torch.nn.functional.cross_entropy(self.model(x), y)
                    self.scaler.scale(loss).backward()  # AMP301
                    if (i + 1) % self.k == 0:
                        self.before_step()
                        self.scaler.step(self.opt)
                        self.scaler.update()
                        self.opt.zero_grad()
            def before_step(self):
                self.scaler.unscale_(self.opt)
                n = self.k
                grads = [p.grad for p in self.model.parameters() if p.grad is not None]
                torch._foreach_div_(grads, n)  # divides
    """,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_divided_in_another_method_is_divided(name: str) -> None:
    source = dedent(PROGRAMS[name]).replace("  # AMP301", "").replace("  # divides", "")
    assert check_source(source, "train.py") == []


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_nobody_divides_is_not(name: str) -> None:
    lines = dedent(PROGRAMS[name]).split("\n")
    source = "\n".join(line for line in lines if "# divides" not in line)
    assert places(check_source(source, "train.py")) == marks(source) != set()


BY_NAME = """\
import torch
from tools import {name}

def train(model, loader, optimizer, criterion, k):
    for i, (x, y) in enumerate(loader):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        if (i + 1) % k == 0:
            {name}({given})
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize("given", ["model, 1.0 / k", "model.parameters(), 1 / k"])
@pytest.mark.parametrize(
    ("name", "divides"),
    [
        ("scale_grads_", True),
        ("divide_gradients", True),
        ("rescaleGrad", True),
        ("average_gradients", False),  # over ranks
        ("clip_grads", False),
        ("grad_scaler", False),
        ("scale_model", False),
    ],
)
def test_a_function_that_says_that_it_divides_gradients(name: str, divides: bool, given: str) -> None:
    source = BY_NAME.format(name=name, given=given)
    found = [finding.code for finding in check_source(source, "train.py") if finding.code == "AMP301"]
    assert found == ([] if divides else ["AMP301"])


GROUPED = """\
import torch
from collections import defaultdict

def {name}(parameters, factor):
    groups = defaultdict(list)
    for p in parameters:
        if p.grad is not None:
            groups[p.grad.device].append(p.grad)
    for device, grads in groups.items():
        {body}

def train(model, loader, optimizer, criterion, k):
    for i, (x, y) in enumerate(loader):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        if (i + 1) % k == 0:
            {name}(model.parameters(), 1 / k)
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("name", "body", "divides"),
    [
        ("scale_grads_", "torch._foreach_mul_(grads, factor)", True),
        ("normalize_gradients", "[g.div_(1 / factor) for g in grads]", True),
        ("scale_grads_", "log(grads, factor)", False),
        ("check_grads", "torch._foreach_mul_(grads, factor)", False),
    ],
)
def test_a_function_of_the_project_that_groups_the_gradients_it_scales(name: str, body: str, divides: bool) -> None:
    source = GROUPED.format(name=name, body=body)
    found = [finding.code for finding in check_source(source, "train.py") if finding.code == "AMP301"]
    assert found == ([] if divides else ["AMP301"])


STORED = """\
def train(model, loader, optimizer, waiting, k):
    for i, batch in enumerate(loader):
        waiting.append(model(batch)["loss"] / k)
        {taken}.backward()
        if (i + 1) % k == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize("taken", ["waiting.popleft()", "waiting.pop(0)", "waiting.get_nowait()", "sum(waiting.pop())"])
def test_a_loss_that_was_stored_may_be_divided(taken: str) -> None:
    assert check_source(STORED.format(taken=taken), "train.py") == []


@pytest.mark.parametrize("taken", ["model(batch).pop('loss')", "sum(model(batch))"])
def test_a_loss_that_was_not_stored_is_not_divided(taken: str) -> None:
    assert [finding.code for finding in check_source(STORED.format(taken=taken), "train.py")] == ["AMP301"]


REFUSED = """\
import torch

class Trainer:
    def __init__(self, config, model, optimizer):
        self.fused = config.fused
        self.k = config.k
        self.clip = config.clip
        {check}
        self.model, self.optimizer = model, optimizer

    def train(self, loader):
        for i, (x, y) in enumerate(loader):
            loss = torch.nn.functional.cross_entropy(self.model(x), y)
            loss.backward()
            if (i + 1) % self.k == 0:
                if not self.fused:
                    for p in self.model.parameters():
                        p.grad /= self.k
                self.optimizer.step()
                self.optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("check", "excludes"),
    [
        ("if self.fused and self.k > 1: raise ValueError", True),
        ("if config.fused and config.k != 1: raise ValueError", True),
        ("assert not self.fused or self.k == 1", True),
        ("if self.clip: raise ValueError\n        if self.fused and self.k > 1: raise ValueError", True),
        ("if self.fused and self.k > 2: raise ValueError", False),
        ("if self.fused and self.k > 1: print('slow')", False),
        ("if not self.fused and self.k > 1: raise ValueError", False),
        ("if self.fused and self.k > 1 and self.clip: raise ValueError", False),
        ("if self.clip:\n            if self.fused and self.k > 1: raise ValueError", False),
        ("if self.fused and self.k > 1:\n            if self.clip: return\n            raise ValueError", False),
    ],
)
def test_a_constructor_that_refuses_a_window_with_a_flag(check: str, excludes: bool) -> None:
    source = REFUSED.format(check=check)
    assert [finding.code for finding in check_source(source, "train.py")] == ([] if excludes else ["AMP301"])


OF_LIGHTNING = """\
import lightning as L
import torch
from torch import nn


class Task(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = nn.Linear(5, 1)

    def training_step(self, batch, i):
        x, y = batch
        return nn.functional.mse_loss(self.model(x), y) / {divisor}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


trainer = L.Trainer({settings})
trainer.fit(Task(), loader)
"""


@pytest.mark.parametrize(
    ("settings", "divisor", "is_divided_twice"),
    [
        ("accumulate_grad_batches=4", "4", True),
        ("accumulate_grad_batches=4", "4.0", True),
        ("accumulate_grad_batches=N", "N", True),
        ("accumulate_grad_batches=4", "2", False),
        ("accumulate_grad_batches=4", "N", False),
        ("accumulate_grad_batches=N", "4", False),
        ("accumulate_grad_batches=1", "1", False),
        ("max_epochs=4", "4", False),
        ("", "4", False),
    ],
)
def test_a_loss_that_lightning_divides_as_well(settings: str, divisor: str, is_divided_twice: bool) -> None:
    findings = check_source(OF_LIGHTNING.format(settings=settings, divisor=divisor), "train.py")
    assert [(finding.label, finding.line) for finding in findings] == [("loss:divided-twice", 13)] * is_divided_twice
