"""Chains of calls: code many calls below a loop is checked as if it were inside the loop."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from marks import marks, places

from pytest_amp_check.static.engine import check_paths, check_source

LOOP = """\
import torch
from torch.amp import GradScaler, autocast
{imports}

def train(loader, net, criterion):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with autocast("cuda"):
            loss = criterion(net(x), y)
        {call}
"""
#: Body of the last function of a chain, and the call of the first.
ENDS = {
    "a clip without unscale_": (
        "scaler.scale(loss).backward()\n{first}(scaler, optimizer, net, loss)",
        "torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)  # AMP201\ns.step(o)\ns.update()",
    ),
    "a clip after unscale_": (
        "scaler.scale(loss).backward()\n{first}(scaler, optimizer, net, loss)",
        "s.unscale_(o)\ntorch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)\ns.step(o)\ns.update()",
    ),
    "a backward without scale": (
        "{first}(scaler, optimizer, net, loss)\nscaler.step(optimizer)\nscaler.update()",
        "loss.backward()  # AMP203",
    ),
    "a backward with scale": (
        "{first}(scaler, optimizer, net, loss)\nscaler.step(optimizer)\nscaler.update()",
        "s.scale(loss).backward()",
    ),
    "a step of its own": (
        "scaler.scale(loss).backward()\n{first}(scaler, optimizer, net, loss)\nscaler.update()",
        "o.step()  # AMP204",
    ),
}


def chain_of(count: int, last: str) -> str:
    """Return a module with functions that each call the previous function. The names have no meaning."""
    text = "import torch\n\n\ndef f0(s, o, m, loss):\n" + textwrap.indent(last, "    ") + "\n"
    for number in range(1, count):
        text += f"\n\ndef f{number}(s, o, m, loss):\n    f{number - 1}(s, o, m, loss)\n"
    return text


def loop(count: int, call: str, imports: str = "") -> str:
    return LOOP.format(imports=imports, call=call.format(first=f"f{count - 1}").replace("\n", "\n        "))


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("count", [2, 8, 9, 30])
def test_a_chain_in_one_file(name: str, count: int) -> None:
    call, last = ENDS[name]
    source = chain_of(count, last) + "\n\n" + loop(count, call)
    assert places(check_source(source, "train.py")) == marks(source)


@pytest.mark.parametrize("name", ENDS)
def test_a_chain_through_another_file(name: str, tmp_path: Path) -> None:
    call, last = ENDS[name]
    below = chain_of(12, last)
    (tmp_path / "below.py").write_text(below, encoding="utf-8")
    (tmp_path / "train.py").write_text(loop(12, call, "from below import f11\n"), encoding="utf-8")
    found = check_paths([str(tmp_path)]).findings
    assert {code for _, code in places(found)} == {code for _, code in marks(below)}


def test_a_chain_of_methods() -> None:
    methods = "".join(
        f"    def part{number}(self, loss):\n        self.part{number - 1}(loss)\n\n" for number in range(1, 10)
    )
    source = f"""\
import torch


class Learner:
    def __init__(self, net):
        self.net = net
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cuda")

{methods}    def part0(self, loss):
        self.scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)  # AMP201
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()

    def train(self, loader, criterion):
        for x, y in loader:
            with torch.autocast("cuda"):
                loss = criterion(self.net(x), y)
            self.part9(loss)
"""
    assert places(check_source(source, "train.py")) == marks(source)


def test_what_calls_itself_by_ever_other_names_comes_to_an_end() -> None:
    call, last = ENDS["a clip after unscale_"]
    source = chain_of(400, last) + "\n\n" + loop(400, call)
    assert check_source(source, "train.py") == []
