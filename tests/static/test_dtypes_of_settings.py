"""Weights in a low dtype that a setting names: by the default of a parameter, a configuration class or an argument."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_amp_check.static.engine import check_paths, check_source

PROGRAM = """\
import argparse
import torch
from dataclasses import dataclass, field
from transformers import AutoModelForCausalLM

{before}

def train(model, loader):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for batch in loader:
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()


def main(loader{parameters}):
    {first}
    model = {model}
    train(model, loader)
"""
LOADS = "AutoModelForCausalLM.from_pretrained('x', torch_dtype={})"
#: Code before the functions, further parameters of ``main``, its first statement, and the dtype.
SETTINGS = {
    "an argument of the command line": (
        "parser = argparse.ArgumentParser()\nparser.add_argument('--model-dtype', default='{low}')",
        "",
        "args = parser.parse_args()",
        "getattr(torch, args.model_dtype)",
    ),
    "a dataclass": (
        "@dataclass\nclass Config:\n    dtype: str = '{low}'\n",
        "",
        "c = Config()",
        "getattr(torch, c.dtype)",
    ),
    "an annotated dataclass": (
        "@dataclass\nclass Config:\n    dtype: str = '{low}'\n",
        ", config: Config",
        "pass",
        "getattr(torch, config.dtype)",
    ),
    "a dtype in a dataclass": (
        "@dataclass\nclass Config:\n    dtype: torch.dtype = torch.{low}\n",
        ", config: Config",
        "dtype = config.dtype",
        "dtype",
    ),
    "a field of a dataclass": (
        "@dataclass\nclass Config:\n    dtype: torch.dtype = field(default=torch.{low})\n",
        ", *, config: Config",
        "pass",
        "config.dtype",
    ),
    "a class": ("class Config:\n    dtype = torch.{low}\n", "", "pass", "Config.dtype"),
    "a constant": ("DTYPE = '{low}'", "", "pass", "getattr(torch, DTYPE)"),
    "a dict": ("CONFIG = {{'dtype': '{low}'}}", "", "pass", "getattr(torch, CONFIG['dtype'])"),
    "a parameter": ("", ", dtype=torch.{low}", "pass", "dtype"),
    "a parameter by its keyword": ("", ", *, dtype=torch.{low}", "pass", "dtype"),
}


def found_in(setting: str, low: str, model: str) -> list[str]:
    before, parameters, first, dtype = (part.format(low=low) for part in SETTINGS[setting])
    text = PROGRAM.format(before=before, parameters=parameters, first=first, model=model.format(dtype))
    return [f"{finding.code} {finding.certain}" for finding in check_source(text, "run.py")]


@pytest.mark.parametrize("model", [LOADS, f"{LOADS}.cuda()", "torch.nn.Linear(4, 4).to('cuda', dtype={})"])
@pytest.mark.parametrize(("low", "is_low"), [("bfloat16", True), ("float16", True), ("float32", False)])
@pytest.mark.parametrize("setting", SETTINGS)
def test_the_default_of_a_setting(setting: str, low: str, is_low: bool, model: str) -> None:
    found = found_in(setting, low, model)
    assert [each.partition(" ")[0] for each in found] == (["AMP501"] if is_low else [])


@pytest.mark.parametrize("setting", ["an argument of the command line", "a parameter", "an annotated dataclass"])
def test_a_default_is_one_possible_value(setting: str) -> None:
    assert found_in(setting, "bfloat16", LOADS) == ["AMP501 False"]


@pytest.mark.parametrize("name", ["bfloat16", "float32"])
def test_a_configuration_class_of_another_file(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.py").write_text(
        f"from dataclasses import dataclass\n\n\n@dataclass\nclass Config:\n    dtype: str = '{name}'\n"
    )
    (tmp_path / "engine.py").write_text(
        "import torch\nfrom transformers import AutoModelForCausalLM\nfrom config import Config\n\n\n"
        "class Engine:\n    def __init__(self, config: Config):\n        self.config = config\n\n"
        "    def initialize(self):\n        dtype = getattr(torch, self.config.dtype)\n"
        "        self.model = AutoModelForCausalLM.from_pretrained('x', torch_dtype=dtype).cuda()\n"
        "        self.optimizer = torch.optim.AdamW(self.model.parameters())\n\n"
        "    def train(self, batch):\n        self.optimizer.zero_grad()\n"
        "        self.model(**batch).loss.backward()\n        self.optimizer.step()\n"
    )
    found = [(finding.code, finding.line) for finding in check_paths([str(tmp_path)]).findings]
    assert found == ([("AMP501", 12)] if name == "bfloat16" else [])


@pytest.mark.parametrize("method", ["__init__", "initialize", "setup_model"])
@pytest.mark.parametrize(
    ("cast", "found"), [(".bfloat16()", ["AMP501"]), (".to(torch.float16).cuda()", ["AMP501"]), (".cuda()", [])]
)
def test_a_model_that_one_method_makes_and_another_trains(method: str, cast: str, found: list[str]) -> None:
    text = (
        f"import torch\n\n\nclass Engine:\n    def {method}(self):\n"
        f"        self.net = torch.nn.Linear(4, 4){cast}\n"
        "        self.optimizer = torch.optim.AdamW(self.net.parameters())\n\n"
        "    def train(self, batch):\n        self.optimizer.zero_grad()\n"
        "        self.net(batch).float().mean().backward()\n        self.optimizer.step()\n"
    )
    assert [finding.code for finding in check_source(text, "engine.py")] == found


@pytest.mark.parametrize(
    ("data", "found"),
    [
        ("torch.ones(dim, dtype=dtype)", ["AMP501"]),
        ("torch.ones(dim, dtype=torch.float16)", ["AMP501"]),
        ("torch.ones(dim).bfloat16()", ["AMP501"]),
        ("torch.ones(dim).to(dtype)", ["AMP501"]),
        ("torch.ones(dim, dtype=dtype), requires_grad=False", []),
        ("torch.ones(dim, dtype=torch.float32)", []),
        ("torch.ones(dim)", []),
    ],
)
def test_a_parameter_of_a_module_of_the_project(data: str, found: list[str]) -> None:
    text = (
        "import torch\nfrom torch import nn\n\n\nclass Norm(nn.Module):\n    def __init__(self, dim, dtype):\n"
        f"        super().__init__()\n        self.weight = nn.Parameter({data})\n\n"
        "    def forward(self, x):\n        return x * self.weight\n\n\n"
        "class Net(nn.Module):\n    def __init__(self, dim, dtype):\n        super().__init__()\n"
        "        self.norms = nn.ModuleList(Norm(dim, dtype) for _ in range(3))\n\n"
        "    def forward(self, x):\n        return self.norms[0](x)\n\n\n"
        "def main(loader):\n    net = Net(8, torch.bfloat16).cuda()\n"
        "    optimizer = torch.optim.AdamW(net.parameters())\n    for x in loader:\n"
        "        optimizer.zero_grad()\n        net(x).float().mean().backward()\n        optimizer.step()\n"
    )
    assert [finding.code for finding in check_source(text, "net.py")] == found


@pytest.mark.parametrize(("dtype", "found"), [("torch.bfloat16", ["AMP508"]), ("torch.float32", [])])
@pytest.mark.parametrize("made", ["copy.deepcopy(model).to(dtype=dtype)", "copy.deepcopy(model).eval().to(dtype)"])
def test_an_average_whose_copy_is_cast_to_a_given_dtype(made: str, dtype: str, found: list[str]) -> None:
    text = (
        f"import copy\nimport torch\n\n\nclass Average:\n    def __init__(self, model, dtype):\n"
        f"        self.copy = {made}\n\n    def step(self, model):\n"
        "        for mean, new in zip(self.copy.parameters(), model.parameters()):\n"
        "            mean.mul_(0.99).add_(new.data, alpha=0.01)\n\n\n"
        f"def main(net, loader):\n    average = Average(net, {dtype})\n"
        "    optimizer = torch.optim.AdamW(net.parameters())\n    for x in loader:\n"
        "        net(x).mean().backward()\n        optimizer.step()\n        optimizer.zero_grad()\n"
        "        average.step(net)\n"
    )
    assert [finding.code for finding in check_source(text, "average.py")] == found
