"""AMP501 for functions and classes that get both the model and the optimizer, and cast the model."""

from __future__ import annotations

import pytest

from pytest_amp_check import check_source

FUNCTION = """\
import torch

def train(model, optimizer, loader, cfg, teacher, head):
    {cast}
    for x in loader:
        {forward}
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
CLASS = """\
import torch
from .settings import cfg

class Engine:
    def __init__(self, model, optimizer, precise):
        self.module = {cast}
        self.optimizer = optimizer

    def step(self, x):
        {forward}
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
"""
PLAIN = "loss = model(x).mean()"


def low_weights(text: str) -> list[str]:
    rows = text.splitlines()
    return [rows[each.line - 1].strip() for each in check_source(text) if each.code == "AMP501"]


@pytest.mark.parametrize(
    "cast",
    [
        "model.half()",
        "model.bfloat16()",
        "model.to(torch.bfloat16)",
        "model = model.half()",
        "model = model.to('cuda', dtype=torch.float16)",
        "model.cuda().to(torch.bfloat16)",
        "model.to(torch.bfloat16)\n    model.train()",
    ],
)
def test_a_function_that_trains_the_model_it_casts(cast: str) -> None:
    assert low_weights(FUNCTION.format(cast=cast, forward=PLAIN)) == [cast.splitlines()[0]]


@pytest.mark.parametrize("cast", ["model.half()", "model.to(torch.bfloat16)", "model.to('cuda').to(torch.float16)"])
def test_a_class_that_trains_the_model_it_casts(cast: str) -> None:
    text = CLASS.format(cast=cast, forward="loss = self.module(x).mean()")
    assert low_weights(text) == [f"self.module = {cast}"]


@pytest.mark.parametrize("cast", ["model.to(cfg.train.dtype)", "model.to(cfg.device).to(cfg.train.dtype)"])
@pytest.mark.parametrize(("region", "is_found"), [("cfg.train.dtype", True), ("cfg.test.dtype", False)])
def test_the_dtype_of_a_region_is_low_as_a_dtype_of_weights(cast: str, region: str, is_found: bool) -> None:
    forward = f'with torch.autocast("cuda", dtype={region}):\n            loss = self.module(x).mean()'
    assert low_weights(CLASS.format(cast=cast, forward=forward)) == [f"self.module = {cast}"] * is_found


@pytest.mark.parametrize(
    ("cast", "forward"),
    [
        ("model.to('cuda')", PLAIN),
        ("model.to(torch.float32)", PLAIN),
        ("model.to(cfg.dtype)", PLAIN),
        (
            "teacher.half()",
            "with torch.no_grad():\n            soft = teacher(x)\n        loss = (model(x) - soft).mean()",
        ),
        ("model.half()", "with torch.no_grad():\n            y = model(x)\n        loss = head(y.float()).mean()"),
        ("model.half()", "loss = head(model(x).float()).mean()"),
        ("model.half()\n    for p in model.parameters():\n        p.requires_grad = False", PLAIN),
        ("x = cfg.example\n    x.half()", PLAIN),
    ],
    ids=["device", "float32", "any dtype", "teacher", "frozen features", "two modules", "frozen", "a tensor"],
)
def test_other_casts_are_not_known_to_train_low_weights(cast: str, forward: str) -> None:
    assert low_weights(FUNCTION.format(cast=cast, forward=forward)) == []


def test_a_function_that_only_evaluates_may_cast() -> None:
    text = """\
import torch

def evaluate(model, loader):
    model.half()
    with torch.no_grad():
        for x in loader:
            model(x)

def train(model, optimizer, loader):
    for x in loader:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(x).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
    assert low_weights(text) == []


METHODS = """\
import torch

class Engine:
    def __init__(self, model, optimizer, teacher):
        self.module = {cast}
        self.optimizer = optimizer
        {more}

    def forward(self, x):
        return self.module(x)

    def backward(self, loss):
        loss.backward()

    def step(self):
        {step}
        self.optimizer.zero_grad()
"""
STEP = "self.optimizer.step()"


@pytest.mark.parametrize(
    ("cast", "more", "step", "is_found"),
    [
        ("model.half()", "pass", STEP, True),
        ("model.to('cuda').to(torch.bfloat16)", "pass", STEP, True),
        ("model.to('cuda')", "pass", STEP, False),
        ("model.float()", "pass", STEP, False),
        ("model.half()", "pass", "pass", False),
        ("model.half()", "self.teacher = teacher.half()", STEP + "\n        self.teacher(1)", False),
    ],
)
def test_an_engine_whose_methods_do_a_part_of_a_step_each(cast: str, more: str, step: str, is_found: bool) -> None:
    text = METHODS.format(cast=cast, more=more, step=step)
    assert low_weights(text) == [f"self.module = {cast}"] * is_found


def test_a_model_that_configure_optimizers_trains_has_no_scaler_of_its_own() -> None:
    text = """\
import torch
import lightning as L

class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(8, 8).half()

    def training_step(self, batch, batch_idx):
        return self.net(batch).mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.net.parameters(), lr=1e-4)
"""
    # GradScaler would refuse these gradients, which is another message.
    assert [(each.line, each.label) for each in check_source(text)] == [(7, "cast:trained")]
