"""The mistakes that are inserted into public code, and the assignment of repositories to halves."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from mistakes import mutated, places  # noqa: E402
from strangers import listed  # noqa: E402

RIGHT = """\
def train(loader, net, opt, scaler, accum):
    for x in loader:
        with torch.autocast("cuda"):
            loss = net(x)
            loss = loss / accum
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
    torch.save({"opt": optim.state_dict(), "scaler": scaler.state_dict()}, "last.pt")
"""


@pytest.mark.parametrize(
    ("operator", "line", "changed"),
    [
        ("autocast dropped", 3, "        if True:"),
        ("backward indented", 6, "            scaler.scale(loss).backward()"),
        ("direct step", 9, "        opt.step()"),
        ("loss division dropped", 5, "            loss = loss"),
        ("scaler's state dropped", 12, "    torch.save({'opt': optim.state_dict()}, \"last.pt\")"),
        ("scaling dropped", 6, "        (loss).backward()"),
        ("unscale_ dropped", 7, "        pass"),
        ("unscale_ twice", 7, "        scaler.unscale_(opt); scaler.unscale_(opt)"),
        ("update dropped", 10, "        pass"),
        ("zero_grad dropped", 11, "        pass"),
    ],
)
def test_each_operator_changes_one_line(operator: str, line: int, changed: str) -> None:
    (place,) = [place for place in places(RIGHT) if place.operator == operator]
    lines = RIGHT.splitlines()
    lines[line - 1] = changed
    assert mutated(RIGHT, place).splitlines() == lines


def test_no_other_place_is_found() -> None:
    assert len(places(RIGHT)) == 10


def test_where_nothing_scales_only_the_division_is_left() -> None:
    assert {place.operator for place in places(RIGHT.replace("scaler", "engine"))} == {"loss division dropped"}


def test_there_are_enough_repositories_in_either_half() -> None:
    halves = [repository.half for repository in listed()]
    assert len(set(listed())) == len(halves) >= 150
    assert min(halves.count("read"), halves.count("scored")) >= 60
