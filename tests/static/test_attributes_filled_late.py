"""Attributes that a generated constructor or a later method fills: dataclasses, attrs classes, defaults of a class."""

from __future__ import annotations

from pathlib import Path

import pytest
from marks import marks, places, shown

from pytest_amp_check import check_paths
from pytest_amp_check.static.engine import check_source

METHODS = """\

    def optimize(self, batch):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = self.model(batch).mean()
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        {before}
        if self.clipping is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clipping){mark}
        self.scaler.step(self.optimizer)
        self.scaler.update()
"""
FIELDS = """\
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    mixed: bool = True
    scaler: object = None
    clipping: float = None
"""
#: Classes up to the method that trains.
CLASSES = {
    "a dataclass": f"""\
from dataclasses import dataclass

@dataclass
class Trainer:
{FIELDS}
    def __post_init__(self):
        self.scaler = torch.amp.GradScaler("cuda", enabled=self.mixed)
""",
    "a dataclass with options": f"""\
import dataclasses

@dataclasses.dataclass(eq=False)
class Trainer:
{FIELDS}
    def __post_init__(self):
        self.scaler = torch.amp.GradScaler("cuda", enabled=self.mixed)
""",
    "a dataclass with an argument that is no field": f"""\
from dataclasses import InitVar, dataclass, field

@dataclass
class Trainer:
{FIELDS}
    scale: InitVar[float] = 1024.0
    names: list = field(default_factory=list)
    count: int = field(init=False)

    def __post_init__(self, scale):
        self.count = 0
        self.scaler = torch.amp.GradScaler("cuda", init_scale=scale)
""",
    "a dataclass with fields of its base": f"""\
from dataclasses import dataclass

@dataclass
class Base:
{FIELDS}

@dataclass
class Trainer(Base):
    scale: float = 1024.0

    def __post_init__(self):
        self.scaler = torch.amp.GradScaler("cuda", init_scale=self.scale)
""",
    "a class of attrs": f"""\
from attr import define

@define(slots=False)
class Trainer:
{FIELDS}
    def __attrs_post_init__(self):
        self.scaler = torch.amp.GradScaler("cuda", enabled=self.mixed)
""",
    "a class of attrs without annotations": """\
import attr

@attr.s
class Trainer:
    model = attr.ib()
    optimizer = attr.ib()
    _mixed = attr.ib(default=True)
    clipping = attr.ib(default=None)

    def __attrs_post_init__(self):
        self.scaler = torch.amp.GradScaler("cuda", enabled=self._mixed)
""",
    "a dataclass that another method completes": f"""\
from dataclasses import dataclass

@dataclass
class Trainer:
{FIELDS}
    def set_up(self):
        self.scaler = torch.amp.GradScaler("cuda", enabled=self.mixed)
""",
    "defaults of a class": """\
class Trainer:
    scaler = None
    optimizer = None
    clipping = None

    def set_up(self, model, options):
        self.model = model
        self.clipping = options.clipping
        self.optimizer = torch.optim.AdamW(model.parameters())
        self.scaler = torch.amp.GradScaler("cuda")
""",
    "defaults of a base class": """\
class Base:
    scaler = None
    optimizer = None
    clipping = None

class Trainer(Base):
    def set_up(self, model, options):
        self.model = model
        self.clipping = options.clipping
        self.optimizer = torch.optim.AdamW(model.parameters())
        self.scaler = torch.amp.GradScaler("cuda")
""",
}

#: Ways to make the scaler where it is first read.
PROPERTIES = {
    "a property": ("@property", 'torch.amp.GradScaler("cuda")'),
    "a cached property": ("@functools.cached_property", 'torch.amp.GradScaler("cuda")'),
    "a cached property by its name": ("@cached_property", 'torch.amp.GradScaler("cuda")'),
}
for way, (decorator, made) in PROPERTIES.items():
    CLASSES[way] = f"""\
import functools
from functools import cached_property

class Trainer:
    def __init__(self, model, optimizer, clipping):
        self.model, self.optimizer, self.clipping = model, optimizer, clipping
        self._made = {made}

    {decorator}
    def scaler(self):
        return {"self._made" if decorator == "@property" else made}
"""


@pytest.mark.parametrize("name", CLASSES)
def test_a_method_trains_with_what_was_filled_in(name: str) -> None:
    wrong = "import torch\n" + CLASSES[name] + METHODS.format(before="pass", mark="  # AMP201")
    findings = check_source(wrong, "train.py")
    assert places(findings) == marks(wrong), shown(findings)
    right = "import torch\n" + CLASSES[name] + METHODS.format(before="self.scaler.unscale_(self.optimizer)", mark="")
    assert check_source(right, "train.py") == []


def test_a_field_that_is_not_given_has_its_default() -> None:
    # The program constructs the only instance, without a limit.
    program = "import torch\n" + CLASSES["a dataclass that another method completes"]
    program += METHODS.format(before="pass", mark="")
    program += """
def main(model, batches):
    trainer = Trainer(model, torch.optim.AdamW(model.parameters()), scaler=torch.amp.GradScaler("cuda"))
    for batch in batches:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = trainer.model(batch).mean()
        trainer.optimizer.zero_grad()
        trainer.scaler.scale(loss).backward()
        if trainer.clipping is not None:
            torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), trainer.clipping)
        trainer.scaler.step(trainer.optimizer)
        trainer.scaler.update()
"""
    inside = program.index("def main")
    line = program[:inside].count("\n") + 1
    assert all(finding.line < line for finding in check_source(program, "train.py"))


def test_a_number_of_a_class_that_a_method_counts_up_is_not_its_first_value() -> None:
    program = """\
import torch

class Trainer:
    seen = 0

    def __init__(self, model, steps):
        self.model, self.steps = model, steps
        self.optimizer = torch.optim.AdamW(model.parameters())
        self.scaler = torch.amp.GradScaler("cuda")

    def train(self, batch):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = self.model(batch).mean() {divided}
        self.scaler.scale(loss).backward(){mark}
        self.seen += 1
        if self.seen % self.steps == 0:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
"""
    wrong = program.format(divided="", mark="  # AMP301")
    findings = check_source(wrong, "train.py")
    assert places(findings) == marks(wrong), shown(findings)
    assert check_source(program.format(divided="/ self.steps", mark=""), "train.py") == []


RUNNER = """\
import torch

from checkpoint import save_checkpoint


class Runner:
    def __init__(self, model, optimizer, scaling=None):
        self.model = model
        self.optimizer = optimizer
        self.mixed = False
        if scaling is not None:
            self.loss_scaler = torch.amp.GradScaler("cuda", **scaling)
            self.mixed = True

    def train(self, batch):
        options = dict(loss_scaler=self.loss_scaler) if self.mixed else dict()
        outputs = self.model.train_step(batch, self.optimizer, **options)
        {update}
        return outputs

    def resume(self, path):
        checkpoint = torch.load(path)
        self.optimizer.load_state_dict(checkpoint["optimizer"])
        {load}

    def save(self, path):
        scaler = self.loss_scaler if self.mixed else None
        save_checkpoint(self.model, path, optimizer=self.optimizer{given})
"""
WRITER = """\
import torch


def save_checkpoint(model, path, optimizer=None, scaler=None):
    checkpoint = {"model": model.state_dict()}
    if optimizer is not None:
        checkpoint["optimizer"] = optimizer.state_dict()
    if scaler is not None:
        checkpoint["scaler"] = scaler.state_dict()
    torch.save(checkpoint, path)
"""
UPDATE = "if self.mixed: self.loss_scaler.update()"
LOAD = 'if self.mixed: self.loss_scaler.load_state_dict(checkpoint["scaler"])'


@pytest.mark.parametrize(
    ("update", "load", "given", "codes"),
    [
        (UPDATE, "pass", "", ["AMP401"]),
        ("pass", LOAD, "", ["AMP401"]),
        (UPDATE, LOAD, ", scaler=scaler", []),
        # Nothing shows that the scaler scales.
        ("pass", "pass", "", []),
    ],
)
def test_a_scaler_that_other_code_scales_with_is_saved(
    tmp_path: Path, update: str, load: str, given: str, codes: list[str]
) -> None:
    (tmp_path / "checkpoint.py").write_text(WRITER)
    (tmp_path / "runner.py").write_text(RUNNER.format(update=update, load=load, given=given))
    findings = check_paths([tmp_path]).findings
    assert [finding.code for finding in findings] == codes, shown(findings)
