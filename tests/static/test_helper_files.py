"""Helper files without a word of AMP: gradients, windows, averages and checkpoints in functions of other files."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_amp_check.static.engine import check_paths

TRAINING = """\
import torch
from helpers import act


def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        with torch.autocast("cuda"):
            loss = model(x).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        {unscale}
        act(model, scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
"""
HELPERS = {
    "a division by the scale": ("p.grad.div_(scale)", "AMP210"),
    "a division of data": ("p.grad.data /= scale", "AMP210"),
    "a bound": ("p.grad.clamp_(-1, 1)", "AMP202"),
    "a norm": ("print(p.grad.norm())", "AMP202"),
}


def codes(folder: Path, helper: str, unscale: str) -> list[str]:
    (folder / "helpers.py").write_text(
        f"import torch\n\n\ndef act(model, scale):\n    for p in model.parameters():\n        {helper}\n",
        encoding="utf-8",
    )
    (folder / "train.py").write_text(TRAINING.format(unscale=unscale), encoding="utf-8")
    return [finding.code for finding in check_paths([str(folder)]).findings]


@pytest.mark.parametrize(("helper", "code"), HELPERS.values(), ids=list(HELPERS))
def test_a_helper_that_gets_scaled_gradients(helper: str, code: str, tmp_path: Path) -> None:
    assert codes(tmp_path, helper, "pass") == [code]


@pytest.mark.parametrize("helper", ["p.grad.clamp_(-1, 1)", "print(p.grad.norm())"])
def test_a_helper_that_gets_unscaled_gradients(helper: str, tmp_path: Path) -> None:
    assert codes(tmp_path, helper, "scaler.unscale_(optimizer)") == []


def test_a_helper_beside_an_optimizer_of_the_project(tmp_path: Path) -> None:
    step = "    def step(self):\n        for p in self.params:\n            p.add_(p.grad)"
    beside = f"\n\n\nclass Own(torch.optim.Optimizer):\n{step}"
    assert codes(tmp_path, "p.grad.div_(scale)" + beside.replace("torch.optim.", ""), "pass") == ["AMP210"]


def test_a_helper_that_computes_gradients_of_its_own(tmp_path: Path) -> None:
    assert codes(tmp_path, "print(torch.autograd.grad(p.sum(), p))", "pass") == []


WINDOW = """\
class Window:
    def __init__(self, size):
        self.size = size

    def is_end(self, i):
        return {test}
"""
LOOP = """\
import torch
from windows import Window


def train(model, loader, optimizer, k):
    scaler = torch.amp.GradScaler()
    window = Window(k)
    for i, x in enumerate(loader):
        with torch.autocast("cuda"):
            loss = model(x).mean() / k
        scaler.scale(loss).backward()
        if window.is_end(i):
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("test", "is_found"),
    [("i % self.size == 0", True), ("not i % self.size", True), ("(i + 1) % self.size == 0", False)],
)
def test_a_window_that_a_class_of_another_file_counts(test: str, is_found: bool, tmp_path: Path) -> None:
    (tmp_path / "windows.py").write_text(WINDOW.format(test=test), encoding="utf-8")
    (tmp_path / "train.py").write_text(LOOP, encoding="utf-8")
    assert [finding.code for finding in check_paths([str(tmp_path)]).findings] == ["AMP304"] * is_found


AVERAGE = """\
class Average:
    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = {n: p.data.clone()FLOAT for n, p in model.named_parameters()}

    def update(self, model):
        for n, p in model.named_parameters():
            self.shadow[n] = self.decay * self.shadow[n] + (1 - self.decay) * p.data
"""
FOLLOWED = """\
import torch
from averages import Average


def train(model, loader):
    model = model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    average = Average(model, 0.999)
    for x in loader:
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update(model)
"""


@pytest.mark.parametrize(("cast", "codes"), [("", {"AMP501", "AMP508"}), (".float()", {"AMP501"})])
def test_an_average_of_low_weights_in_another_file(cast: str, codes: set[str], tmp_path: Path) -> None:
    (tmp_path / "averages.py").write_text(AVERAGE.replace("FLOAT", cast), encoding="utf-8")
    (tmp_path / "train.py").write_text(FOLLOWED, encoding="utf-8")
    assert {finding.code for finding in check_paths([str(tmp_path)]).findings} == codes


CHECKPOINT = """\
def collect(model, opt, step):
    return {"model": model.state_dict(), "opt": opt.state_dict(), "step": step}


def restore(state, model, opt):
    model.load_state_dict(state["model"])
    opt.load_state_dict(state["opt"])
    return state["step"]
"""
SAVED = """\
import torch
from states import collect, restore


def train(model, loader, path):
    scaler = torch.amp.GradScaler()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    start = restore(torch.load(path), model, optimizer)
    for step, x in enumerate(loader):
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    torch.save(EXTRA, path)
"""


@pytest.mark.parametrize(
    ("saved", "is_found"),
    [
        ("collect(model, optimizer, step)", True),
        ("{**collect(model, optimizer, step), 'scaler': scaler.state_dict()}", False),
    ],
)
def test_a_checkpoint_that_a_function_of_another_file_collects(saved: str, is_found: bool, tmp_path: Path) -> None:
    (tmp_path / "states.py").write_text(CHECKPOINT, encoding="utf-8")
    (tmp_path / "train.py").write_text(SAVED.replace("EXTRA", saved), encoding="utf-8")
    found = [finding.code for finding in check_paths([str(tmp_path)]).findings]
    assert ("AMP401" in found) is is_found
