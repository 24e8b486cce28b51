"""Moving averages of the weights of a model in low precision (AMP508), and checkpoints with low weights (AMP501)."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_amp_check import check_paths
from pytest_amp_check.static.engine import check_source

HEAD = """\
import copy
import torch
from diffusers.training_utils import EMAModel
from timm.utils import ModelEmaV2
from torch import nn
from torch.optim.swa_utils import AveragedModel
from mine import EMA, MasterAdam


class Average:
    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

    def update(self, model):
        for name, p in model.named_parameters():
            self.shadow[name].mul_(self.decay).add_(p.detach(), alpha=1 - self.decay)


class WideAverage(Average):
    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = {name: p.detach().float().clone() for name, p in model.named_parameters()}


class CopiedAverage:
    def __init__(self, model):
        self.model = copy.deepcopy(model)

    def update(self, model):
        for kept, p in zip(self.model.parameters(), model.parameters()):
            kept.data.mul_(0.999).add_(p.data, alpha=0.001)


class Teacher:
    def __init__(self, model):
        self.model = copy.deepcopy(model)


"""
TRAIN = """\
def main(loader):
    model = nn.Linear(8, 8).cuda(){cast}
    optimizer = MasterAdam(model.parameters())
    {made}
    for x in loader:
        model(x).float().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        {update}
"""
LERP = "for e, p in zip(ema.parameters(), model.parameters()):\n            e.data.lerp_(p.data, 0.001)"
LIST = "for e, p in zip(ema, model.parameters()):\n            e.mul_(0.999).add_(p.detach(), alpha=0.001)"
DICT = "for n, p in model.named_parameters():\n            ema[n] = 0.999 * ema[n] + 0.001 * p.detach()"


def found(made: str, update: str, cast: str = ".to(torch.bfloat16)") -> list[str]:
    """Line text of each AMP508."""
    source = HEAD + TRAIN.format(made=made, update=update, cast=cast)
    return [source.splitlines()[f.line - 1].strip() for f in check_source(source) if f.code == "AMP508"]


@pytest.mark.parametrize(
    ("made", "update"),
    [
        ("ema = AveragedModel(model)", "ema.update_parameters(model)"),
        ("ema = AveragedModel(model, avg_fn=average).cuda()", "ema.update_parameters(model)"),
        ("ema = ModelEmaV2(model, decay=0.999)", "ema.update(model)"),
        ("ema = EMAModel(model.parameters(), decay=0.999)", "ema.step(model.parameters())"),
        ("ema = copy.deepcopy(model)", LERP),
        ("ema = [p.detach().clone() for p in model.parameters()]", LIST),
        ("ema = {n: p.detach().clone() for n, p in model.named_parameters()}", DICT),
    ],
)
def test_an_average_of_a_low_model(made: str, update: str) -> None:
    assert found(made, update) == [made]
    assert found(made, update, cast="") == []


def test_the_copy_in_a_class_is_reported_where_it_is_made() -> None:
    lines = {
        "Average(model, 0.999)": "self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}",
        "CopiedAverage(model)": "self.model = copy.deepcopy(model)",
    }
    for made, line in lines.items():
        assert found(f"ema = {made}", "ema.update(model)") == [line]
        assert found(f"ema = {made}", "ema.update(model)", cast="") == []


@pytest.mark.parametrize(("wide", "expected"), [("", ["AMP508"]), (".float()", [])])
def test_the_code_of_an_average_in_another_file_decides(tmp_path: Path, wide: str, expected: list[str]) -> None:
    (tmp_path / "mine.py").write_text(
        "import copy\n\n\nclass EMA:\n    def __init__(self, model):\n"
        f"        self.model = copy.deepcopy(model){wide}\n\n    def step(self, model):\n"
        "        for kept, p in zip(self.model.parameters(), model.parameters()):\n"
        "            kept.mul_(0.999).add_(p, alpha=0.001)\n"
    )
    fit = HEAD + TRAIN.format(made="ema = EMA(model)", update="ema.step(model)", cast=".to(torch.bfloat16)")
    (tmp_path / "fit.py").write_text(fit)
    codes = [finding.code for finding in check_paths([tmp_path]).findings]
    assert [code for code in codes if code == "AMP508"] == expected


@pytest.mark.parametrize(
    ("made", "update"),
    [
        ("ema = AveragedModel(model).float()", "ema.update_parameters(model)"),
        ("ema = AveragedModel(model)\n    ema.to(torch.float32)", "ema.update_parameters(model)"),
        ("ema = WideAverage(model, 0.999)", "ema.update(model)"),
        ("ema = copy.deepcopy(model).float()", LERP),
        ("ema = [p.detach().float().clone() for p in model.parameters()]", LIST),
        # A class of unknown code may keep its average in float32.
        ("ema = EMA(model, config)", "ema.step(model)"),
        # A copy that is not averaged.
        ("ema = copy.deepcopy(model)", "ema(x)"),
        ("ema = Teacher(model)", "ema.model(x)"),
        ("ema = [p.detach().clone() for p in model.parameters()]", "print(ema[0])"),
    ],
)
def test_a_wide_average_or_a_mere_copy(made: str, update: str) -> None:
    assert found(made, update) == []


SAVE = """\
import copy
import torch


def save(path, model, optimizer, ema):
    {state}
    torch.save({saved}, path)
"""
LOW_STATE = "state = {k: v.to('cpu', torch.bfloat16) for k, v in model.state_dict().items()}"


@pytest.mark.parametrize(
    ("state", "saved", "line"),
    [
        (LOW_STATE, '{"model": state, "optimizer": optimizer.state_dict()}', 6),
        ("pass", '{"net": {k: v.half() for k, v in model.state_dict().items()}, "opt": optimizer.state_dict()}', 7),
        ("pass", '{"model": model.bfloat16().state_dict(), "optim": optimizer.state_dict()}', 7),
        ("pass", '{"model": copy.deepcopy(model).half(), "optimizer": optimizer.state_dict()}', 7),
        # Nothing resumes from it.
        (LOW_STATE, '{"model": state}', 0),
        (LOW_STATE, '{"model": model.state_dict(), "optimizer": optimizer.state_dict()}', 0),
        ("pass", '{"model": model.state_dict(), "optimizer": {k: v.half() for k, v in optimizer.state_dict()}}', 0),
        ("pass", '{"model": {k: v.cpu() for k, v in model.state_dict().items()}, "opt": optimizer.state_dict()}', 0),
    ],
)
def test_a_checkpoint_for_resuming_with_low_weights(state: str, saved: str, line: int) -> None:
    source = SAVE.format(state=state, saved=saved)
    found = [(f.line, f.label, f.certain) for f in check_source(source) if f.code == "AMP501"]
    assert found == ([(line, "parameter:saved", False)] if line else [])


SETTINGS = """\
from dataclasses import dataclass


@dataclass
class Settings:
    ema_dtype: str = "{dtype}"
"""
AVERAGE = """\
import copy


class Averaged:
    def __init__(self, model, dtype=None):
        self.shadow = copy.deepcopy(model).eval()
        if dtype is not None:
            self.shadow.to(dtype=dtype)

    def update(self, model):
        for s, p in zip(self.shadow.parameters(), model.parameters()):
            s.mul_(0.999).add_(p.detach().to(s.dtype), alpha=0.001)
"""
FIT = """\
import torch
from torch import nn

from averaging import Averaged
from settings import Settings


def fit(loader, s: Settings):
    {low}
    model = nn.Linear(8, 8).cuda()
    ema = Averaged(model, dtype={argument})
    optimizer = torch.optim.AdamW(model.parameters())
    for x in loader:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(x).float().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        ema.update(model)
"""


@pytest.mark.parametrize(
    ("low", "argument", "dtype", "expected"),
    [
        ("low = getattr(torch, s.ema_dtype)", "low", "bfloat16", ["AMP508"]),
        ("pass", "getattr(torch, s.ema_dtype)", "bfloat16", ["AMP508"]),
        ("low = torch.bfloat16", "low", "float32", ["AMP508"]),
        ("low = getattr(torch, s.ema_dtype)", "low", "float32", []),
        ("low = getattr(torch, s.ema_dtype)", "None", "bfloat16", []),
    ],
)
def test_a_setting_that_makes_an_average_low(
    tmp_path: Path, low: str, argument: str, dtype: str, expected: list[str]
) -> None:
    (tmp_path / "settings.py").write_text(SETTINGS.format(dtype=dtype))
    (tmp_path / "averaging.py").write_text(AVERAGE)
    (tmp_path / "fit.py").write_text(FIT.format(low=low, argument=argument))
    assert [finding.code for finding in check_paths([tmp_path]).findings] == expected


STATISTICS = """\
import torch
from torch import nn


class Running(nn.Module):
    def __init__(self, dim, dtype=torch.float32):
        super().__init__()
        {created}

    @torch.no_grad()
    def update(self, x):
        mean = x.mean(0)
        {update}


def main(loader):
    compute = torch.bfloat16
    model = nn.Linear(8, 8).cuda()
    running = Running(8, dtype={dtype})
    optimizer = torch.optim.AdamW(model.parameters())
    for x in loader:
        running.update(x)
        with torch.autocast("cuda", dtype=compute):
            loss = model(x).float().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
BUFFER = 'self.register_buffer("mean", torch.zeros(dim, dtype=dtype))'


@pytest.mark.parametrize(
    ("created", "update", "dtype", "expected"),
    [
        (BUFFER, "self.mean += 0.01 * (mean - self.mean)", "compute", ["AMP508"]),
        (BUFFER, "self.mean.lerp_(mean, 0.01)", "torch.bfloat16", ["AMP508"]),
        ("self.mean = torch.ones(dim, dtype=dtype)", "self.mean.mul_(0.99).add_(mean)", "compute", ["AMP508"]),
        (BUFFER, "self.mean += 0.01 * (mean - self.mean)", "torch.float32", []),
        (BUFFER, "self.last = mean", "compute", []),
        ('self.register_buffer("mean", torch.zeros(dim))', "self.mean += 0.01 * (mean - self.mean)", "compute", []),
    ],
)
def test_running_statistics_in_the_dtype_of_a_caller(
    created: str, update: str, dtype: str, expected: list[str]
) -> None:
    source = STATISTICS.format(created=created, update=update, dtype=dtype)
    assert [finding.code for finding in check_source(source)] == expected
