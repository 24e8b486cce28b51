"""Models and sums that another file makes, in a dtype that a setting, a default or the caller chooses."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_amp_check.static.engine import check_paths

FACTORY = """
import torch
from dataclasses import dataclass
from transformers import AutoModelForCausalLM


@dataclass
class Args:
    torch_dtype: str = "{dtype}"


def load_model({parameters}):
{body}
    return model
"""
TRAINING = """
import torch
from factory import Args, load_model


def main(loader):
    args = Args()
    model = load_model({given}){moved}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for batch in loader:
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
PRETRAINED = 'AutoModelForCausalLM.from_pretrained("x"'
#: Parameters and body of the factory, and the arguments in the training.
FACTORIES = {
    "a literal dtype": ("", f"    model = {PRETRAINED})\n    model.to(torch.DTYPE)", ""),
    "a dtype by its name": (
        "",
        f'    dtype = getattr(torch, "DTYPE")\n    model = {PRETRAINED})\n    model.to(dtype)',
        "",
    ),
    "the default of a parameter": (
        'torch_dtype="DTYPE"',
        f"    dtype = getattr(torch, torch_dtype)\n    model = {PRETRAINED})\n    model = model.to(dtype)",
        "",
    ),
    "the default of a dataclass": (
        "args: Args",
        f"    dtype = getattr(torch, args.torch_dtype)\n    model = {PRETRAINED})\n    model.to(dtype)",
        "args",
    ),
    "the dtype of the loading": (
        "args: Args",
        f"    dtype = getattr(torch, args.torch_dtype)\n    model = {PRETRAINED}, torch_dtype=dtype)",
        "args",
    ),
    "an argument": ("dtype", f"    model = {PRETRAINED})\n    model.to(dtype=dtype)", "torch.DTYPE"),
}


@pytest.mark.parametrize("moved", ["", ".cuda()", '.to("cuda")', ".train()"])
@pytest.mark.parametrize("name", FACTORIES)
def test_a_factory_of_another_file(name: str, moved: str, tmp_path: Path) -> None:
    parameters, body, given = FACTORIES[name]

    def codes(dtype: str) -> list[tuple[str, str]]:
        factory = FACTORY.format(dtype=dtype, parameters=parameters, body=body).replace("DTYPE", dtype)
        training = TRAINING.format(given=given, moved=moved).replace("DTYPE", dtype)
        (tmp_path / "factory.py").write_text(factory, encoding="utf-8")
        (tmp_path / "train.py").write_text(training, encoding="utf-8")
        return [(Path(each.filename).name, each.code) for each in check_paths([tmp_path]).findings]

    assert codes("bfloat16") == [("factory.py", "AMP501")]
    assert codes("float32") == []


@pytest.mark.parametrize(
    "moved", [".float()", ".to(torch.float32)", '.to("cuda", torch.float32)', ".to(dtype=args.dtype)"]
)
def test_a_factory_whose_model_is_cast_back(moved: str, tmp_path: Path) -> None:
    parameters, body, given = FACTORIES["the dtype of the loading"]
    factory = FACTORY.format(dtype="bfloat16", parameters=parameters, body=body)
    (tmp_path / "factory.py").write_text(factory, encoding="utf-8")
    (tmp_path / "train.py").write_text(TRAINING.format(given=given, moved=moved), encoding="utf-8")
    assert check_paths([tmp_path]).findings == []


METRICS = """
import torch


class RunningMetrics:
    def __init__(self, device, dtype):
        self.loss_sum = torch.zeros((), device=device, dtype=dtype)
        self.seen = torch.zeros((), device=device, dtype=dtype)

    @torch.no_grad()
    def update(self, loss, n):
        self.loss_sum += loss.detach() * n
        self.seen += n
"""
LOOP = """
import torch
import torch.nn.functional as F
from metrics import RunningMetrics


class Loop:
    def __init__(self, model, device):
        self.model = model.to(device)
        self.compute_dtype = torch.bfloat16
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
        self.metrics = RunningMetrics(device, {dtype})

    def train(self, loader):
        for x, y in loader:
            with torch.autocast("cuda", dtype=self.compute_dtype):
                loss = F.cross_entropy(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.metrics.update(loss, y.numel())
"""


@pytest.mark.parametrize(("dtype", "expected"), [("self.compute_dtype", ["AMP508"]), ("torch.float32", [])])
def test_sums_of_another_file_in_the_dtype_of_the_region(dtype: str, expected: list[str], tmp_path: Path) -> None:
    (tmp_path / "metrics.py").write_text(METRICS, encoding="utf-8")
    (tmp_path / "loop.py").write_text(LOOP.format(dtype=dtype), encoding="utf-8")
    found = check_paths([tmp_path]).findings
    assert [each.code for each in found] == expected
    assert {Path(each.filename).name for each in found} <= {"metrics.py"}


SCHEDULE = """
import torch
import torch.nn.functional as F

DTYPES = {{"no": torch.float32, "bf16": torch.bfloat16}}


class Schedule:
    def __init__(self):
        self.levels = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0)

    def to(self, device=None, dtype=None):
        self.levels = self.levels.to(device=device, dtype=dtype)
        return self


def weight(schedule, t):
    a = schedule.levels[t]
    return a / (1 - a)


def main(model, loader, args):
    dtype = {dtype}
    schedule = Schedule().to("cuda", dtype)
    opt = torch.optim.AdamW(model.parameters())
    for x, t in loader:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            pred = model(x, t)
        loss = (F.mse_loss(pred.float(), x, reduction="none").mean(1) * weight(schedule, t)).mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
"""


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("torch.bfloat16", ["AMP507"]),
        ("DTYPES[args.precision]", ["AMP507"]),
        ("torch.float32", []),
        ("None", []),
    ],
)
def test_a_schedule_that_a_setting_casts(dtype: str, expected: list[str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCHEDULE.format(dtype=dtype), encoding="utf-8")
    assert [each.code for each in check_paths([tmp_path]).findings] == expected


WIDENED = """
import torch
import torch.nn.functional as F


class Loop:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def step(self, u, i):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            a, b, scale = self.model(u, i)
        logits = {logits}
        loss = F.cross_entropy(logits, torch.arange(len(u), device=u.device))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
"""


@pytest.mark.parametrize(
    "logits",
    ["scale * (a.float() @ b.float().t())", "(a.float() @ b.float().t()) / scale", "a.float() @ b.float().t()"],
)
def test_a_float32_operand_makes_the_loss_float32(logits: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WIDENED.format(logits=logits), encoding="utf-8")
    assert check_paths([tmp_path]).findings == []
