"""Forms in which a file defines a scaler or a method, and chains of definitions across files."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_amp_check.static.engine import check_paths, check_source

PROGRAM = """\
import torch
from torch import nn

def build(*values):
    return torch.amp.GradScaler("cuda"{enabled}), 4

model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{made}

def train(loader):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = nn.functional.mse_loss(model(x), y)
        {scaler}.scale(loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        {scaler}.step(optimizer)
        {scaler}.update()
"""


@pytest.mark.parametrize(
    ("made", "scaler"),
    [
        ("scaler = NEW", "scaler"),
        ("scaler: object = NEW", "scaler"),
        ("other = scaler = NEW", "scaler"),
        ("other = NEW\nscaler = other", "scaler"),
        ("scaler = None\nscaler = NEW", "scaler"),
        ("scaler, k = NEW, 4", "scaler"),
        ("k, scaler = 4, NEW", "scaler"),
        ("(k, (scaler, n)) = 4, (NEW, 1)", "scaler"),
        ("[scaler, k] = [NEW, 4]", "scaler"),
        ("scaler, *rest = NEW, 4, 5", "scaler"),
        ("*rest, scaler = 4, NEW", "scaler"),
        ("scaler, k = build()", "scaler"),
        ("scaler, *rest = build()", "scaler"),
        ("scaler = build()[0]", "scaler"),
        ("if (scaler := NEW): pass", "scaler"),
        ("with open('a') as file: scaler = NEW", "scaler"),
        ("held = dict(a=NEW)", "held['a']"),
        ("held = [4, NEW]", "held[1]"),
    ],
)
@pytest.mark.parametrize("call", ["", "train(loader)\n"], ids=["not called", "called"])
def test_where_a_scaler_is_made(made: str, scaler: str, call: str) -> None:
    for enabled in ("", ", enabled=False"):
        new = f'torch.amp.GradScaler("cuda"{enabled})'
        text = PROGRAM.format(enabled=enabled, made=made.replace("NEW", new), scaler=scaler)
        codes = [finding.code for finding in check_source(text + call)]
        # A disabled scaler does not scale, so the clip is right.
        assert ("AMP201" in codes) is (not enabled)


BASE = """\
import torch
from abc import ABC, abstractmethod
from torch import nn

class Base(ABC):
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cuda")

    {method}

    def run(self, loader):
        for x, y in loader:
            self.optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = nn.functional.mse_loss(self.model(x), y)
            self.scaler.scale(loss).backward()
            self.prepare()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.scaler.step(self.optimizer)
            self.scaler.update()
"""


@pytest.mark.parametrize(
    ("method", "is_implemented"),
    [
        # Only subclasses implement the method: it does not end the program there.
        ("def prepare(self):\n        raise NotImplementedError", False),
        ("def prepare(self):\n        raise NotImplementedError('later')", False),
        ('def prepare(self):\n        """Prepare."""\n        raise NotImplementedError', False),
        ("@abstractmethod\n    def prepare(self):\n        pass", False),
        ('@abstractmethod\n    def prepare(self):\n        """Prepare."""\n        raise ValueError', False),
        # Every call ends the program before the clip.
        ("def prepare(self):\n        raise ValueError", True),
        ("def prepare(self):\n        print(1)\n        raise NotImplementedError", True),
    ],
)
def test_a_method_that_only_raises(method: str, is_implemented: bool) -> None:
    findings = check_source(BASE.format(method=method))
    assert [finding.code for finding in findings] == ([] if is_implemented else ["AMP201"])


def chain(length: int) -> str:
    """Return a file whose function ``f0`` unscales through a number of other functions."""
    last = f"def f{length}(scaler, optimizer):\n    scaler.unscale_(optimizer)\n"
    others = [f"def f{n}(scaler, optimizer):\n    f{n + 1}(scaler, optimizer)\n" for n in range(length)]
    return "\n\n".join([*others, last])


@pytest.mark.parametrize("imports", ["from tools import f0", "from tools import f0 as f0", "from tools import *"])
@pytest.mark.parametrize("length", [0, 1, 2, 5])
def test_a_function_of_another_file_unscales_through_other_functions(length: int, imports: str, tmp_path: Path) -> None:
    train = PROGRAM.format(enabled="", made='scaler = torch.amp.GradScaler("cuda")', scaler="scaler")
    clip = "        nn.utils.clip_grad_norm_"
    (tmp_path / "tools.py").write_text(chain(length), encoding="utf-8")
    (tmp_path / "train.py").write_text(
        f"{imports}\n" + train.replace(clip, f"        f0(scaler, optimizer)\n{clip}"), encoding="utf-8"
    )
    assert check_paths([str(tmp_path)]).findings == []
    # Without the last call, the chain does nothing.
    (tmp_path / "tools.py").write_text(chain(length).replace("scaler.unscale_(optimizer)", "pass"), encoding="utf-8")
    assert [finding.code for finding in check_paths([str(tmp_path)]).findings] == ["AMP201"]
