"""Weights that one function, class or file stores in a low dtype, and that another one trains."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_amp_check.static.engine import check_paths, check_source

STEPS = """\
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x).float(), y)
        loss.backward()
        optimizer.step()
"""
TRAIN = f"""\
from torch import nn, optim
from {{module}} import {{name}}

def main(config, loader):
    {{made}}
    optimizer = optim.AdamW(model.parameters())
{STEPS}"""
BUILD = """\
import torch
from torch import nn

def build(config):
    model = nn.Linear(8, 8)
    {cast}
    return model
"""
CASTS = [
    "model.half()",
    "model.to(torch.bfloat16)",
    "model = model.bfloat16()",
    "if config.half:\n        model.half()",
    "for p in model.parameters():\n        p.data = p.data.half()",
]


def find_codes(folder: Path, **files: str) -> list[tuple[str, str]]:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    found = check_paths([str(folder)]).findings
    return [(each.code, Path(each.site.path).stem) for each in found if each.code == "AMP501"]


@pytest.mark.parametrize("cast", CASTS)
def test_a_model_that_another_file_casts(tmp_path: Path, cast: str) -> None:
    train = TRAIN.format(module="models", name="build", made="model = build(config)")
    assert find_codes(tmp_path, models=BUILD.format(cast=cast), train=train) == [("AMP501", "models")]


@pytest.mark.parametrize("cast", ["x = model.weight.half()", "model.float()", "model.eval()"])
def test_a_model_that_another_file_leaves_in_float32(tmp_path: Path, cast: str) -> None:
    train = TRAIN.format(module="models", name="build", made="model = build(config)")
    assert find_codes(tmp_path, models=BUILD.format(cast=cast), train=train) == []


def test_a_frozen_model_of_another_file(tmp_path: Path) -> None:
    made = "teacher = build(config)\n    model = nn.Linear(8, 8)"
    train = TRAIN.format(module="models", name="build", made=made)
    assert find_codes(tmp_path, models=BUILD.format(cast="model.half()"), train=train) == []


def test_a_model_that_a_second_file_casts_and_a_third_one_trains(tmp_path: Path) -> None:
    main = """\
import torch
from engine import fit
from models import build

def main(config, loader):
    model = build(config)
    fit(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
"""
    engine = f"from torch import nn\n\ndef fit(model, optimizer, loader):\n{STEPS}"
    files = {"models": BUILD.format(cast="model.half()"), "main": main, "engine": engine}
    assert find_codes(tmp_path, **files) == [("AMP501", "models")]


def test_a_pretrained_model_of_another_file(tmp_path: Path) -> None:
    load = """\
import torch
from transformers import AutoModelForCausalLM

def load(name):
    return AutoModelForCausalLM.from_pretrained(name, torch_dtype={dtype})
"""
    train = TRAIN.format(module="models", name="load", made="model = load(config.name)")
    assert find_codes(tmp_path, models=load.format(dtype="torch.bfloat16"), train=train) == [("AMP501", "models")]
    assert find_codes(tmp_path, models=load.format(dtype="torch.float32"), train=train) == []


CLASS = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.head = nn.Linear(8, 8)
        if config.half:
            self.head{net}

    def forward(self, x):
        return self.head(x)

class Learner:
    def __init__(self, config):
        self.model = Net(config)
        self.other = Net(config){other}
        self.optimizer = torch.optim.SGD(self.{trained}.parameters(), lr=0.1)

    def learn(self, batch):
        loss = self.model(batch).float().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
"""


@pytest.mark.parametrize("trained", ["model", "model.head"])
def test_a_class_that_casts_in_the_constructor(trained: str) -> None:
    def codes(net: str, other: str) -> list[tuple[str, int]]:
        source = CLASS.format(net=net, other=other, trained=trained)
        return [(each.code, each.line) for each in check_source(source, "train.py") if each.code == "AMP501"]

    assert codes(".half()", "") == [("AMP501", 9)]
    assert codes(".to(torch.bfloat16)", "") == [("AMP501", 9)]
    assert codes(".float()", "") == []
    assert codes(".float()", ".half()") == []


FACTORY = """\
import torch
from torch import nn
from library import build_optimizer

def main(config, loader):
    model = nn.Linear(8, 8){cast}
    frozen = nn.Linear(8, 8).half()
    print(sum(p.numel() for p in model.parameters()))
    optimizer = build_optimizer({given})
"""


@pytest.mark.parametrize("given", ["model", "model, config", "config, model=model", "model.parameters()"])
def test_an_optimizer_of_a_factory_that_receives_the_model(given: str) -> None:
    source = FACTORY + STEPS.replace("{", "{{").replace("}", "}}")
    found = check_source(source.format(cast=".half()", given=given), "train.py")
    assert [(each.code, each.label, each.certain) for each in found] == [("AMP501", "cast:trained-by-unknown", False)]
    assert check_source(source.format(cast="", given=given), "train.py") == []


def test_one_of_two_optimizers_that_may_keep_float32_copies() -> None:
    made = """\
    model = nn.Linear(8, 8)
    if config.lamb:
        optimizer = Lamb(model.parameters())
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.half()
"""
    source = f"import torch\nfrom torch import nn\nfrom library import Lamb\n\ndef main(config, loader):\n{made}{STEPS}"
    found = [each for each in check_source(source, "train.py") if each.code == "AMP501"]
    assert [(each.label, each.certain) for each in found] == [("cast:trained-by-unknown", False)]


def test_a_factory_that_receives_several_models() -> None:
    source = FACTORY + STEPS
    found = check_source(source.format(cast=".half()", given="model, frozen"), "train.py")
    assert [each.code for each in found if each.code == "AMP501"] == []


PRECISION = """\
import torch
from torch import nn

def main(args, loader):
    model = nn.Linear(8, 8).cuda()
    if {cast}:
        model.half()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda") if {scaled} else None
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x).float(), y)
        if {scaled}:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
"""


@pytest.mark.parametrize(
    ("cast", "scaled", "label"),
    [
        ('args.precision == "fp16"', 'args.precision == "amp"', "cast:trained"),
        ("args.half", "not args.half", "cast:trained"),
        ("args.half", "args.amp", "cast:trained-scaled"),
        ('args.precision != "fp32"', 'args.precision == "amp"', "cast:trained-scaled"),
    ],
)
def test_a_scaler_under_a_condition_that_excludes_the_cast(cast: str, scaled: str, label: str) -> None:
    found = [each for each in check_source(PRECISION.format(cast=cast, scaled=scaled)) if each.code == "AMP501"]
    assert [each.label for each in found] == [label]


@pytest.mark.parametrize(("test", "certain"), [("if args.half:", False), ("if True:", True)])
def test_a_setting_makes_the_cast_possible(test: str, *, certain: bool) -> None:
    source = PRECISION.format(cast="True", scaled="args.amp").replace("if True:", test)
    found = [each for each in check_source(source) if each.code == "AMP501"]
    assert [each.certain for each in found] == [certain]


def test_a_file_without_mixed_precision_is_checked_for_its_weights_alone(tmp_path: Path) -> None:
    # The second backward adds to gradients of the first one (AMP215).
    train = """\
from torch import nn, optim
from models import build

def main(config, loader):
    model, head = build(config), nn.Linear(8, 8)
    first = optim.SGD(model.parameters(), lr=0.1)
    second = optim.SGD(head.parameters(), lr=0.1)
    for x in loader:
        second.zero_grad()
        head(model(x)).mean().backward()
        second.step()
        model(x).mean().backward()
        first.step()
        first.zero_grad()
"""
    (tmp_path / "models.py").write_text(BUILD.format(cast="model.half()"))
    (tmp_path / "train.py").write_text(train)
    found = check_paths([str(tmp_path)]).findings
    assert [(each.code, Path(each.site.path).name) for each in found] == [("AMP501", "models.py")]


KEPT = """\
import torch

class Trainer:
    def __init__(self, config, net):
        self.model = {cast}
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=config.lr)

    def step(self, x):
        loss = self.model(x).float().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("cast", "found"),
    [
        ("net.half()", True),
        ("net.to(device=config.device, dtype=torch.bfloat16)", True),
        ("net.to(config.device).half()", True),
        ("net.half() if config.fp16 else net", True),
        ("net if config.full else net.bfloat16()", True),
        ("net.to(config.device)", False),
        ("net.float()", False),
        ("net", False),
    ],
)
def test_a_given_model_that_is_cast_where_it_is_kept(cast: str, found: bool) -> None:
    findings = check_source(KEPT.format(cast=cast), "train.py")
    assert [finding.code for finding in findings] == ["AMP501"] * found
