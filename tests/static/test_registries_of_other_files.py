"""Registries that another file fills: functions and classes that a training gets by a key."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_amp_check.static.engine import check_paths

TRAIN = """\
import torch
from torch import nn
{imports}


def main(loader, kind="norm"):
    net = nn.Linear(2, 2).cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cuda")
    clip = {lookup}
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(net(x), y)
        scaler.scale(loss).backward()
{unscale}        clip(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
"""
BY_NORM = "def by_norm(parameters, limit):\n    torch.nn.utils.clip_grad_norm_(parameters, limit)\n"
KEYED = """\
def register(name):
    def keep(function):
        CLIPS[name] = function
        return function
    return keep
"""
NAMED = """\
CLIPS = {}


def register(function):
    CLIPS[function.__name__] = function
    return function


@register
"""
IN_BLOCKS = """\
if True:
    pass
try:
    CLIPS["none"] = None
finally:
    pass


@register("norm")
"""
REGISTRY = """\
class Registry:
    def __init__(self):
        self.known = {}

    def register(self, name):
        def keep(function):
            self.known[name] = function
            return function
        return keep

    def get(self, name):
        return self.known[name]


CLIPS = Registry()
"""


@pytest.mark.parametrize(
    ("registry", "lookup"),
    [
        (f"CLIPS = {{}}\n{KEYED}\n\n@register('norm')\n{BY_NORM}", "CLIPS[kind]"),
        (NAMED + BY_NORM, "CLIPS[kind]"),
        (f"CLIPS = {{}}\n{BY_NORM}\n\nCLIPS['norm'] = by_norm\n", "CLIPS[kind]"),
        (f"CLIPS = {{}}\n{BY_NORM}\n\nCLIPS.update(norm=by_norm)\n", "CLIPS['norm']"),
        (f"CLIPS = []\n{BY_NORM}\n\nCLIPS.append(by_norm)\n", "CLIPS[0]"),
        (f"CLIPS = {{}}\n{KEYED}\n{BY_NORM}\n\nregister('norm')(by_norm)\n", "CLIPS[kind]"),
        (f"CLIPS = {{}}\n{KEYED}\n{IN_BLOCKS}{BY_NORM}", "CLIPS['norm']"),
        (f"{REGISTRY}\n\n@CLIPS.register('norm')\n{BY_NORM}", "CLIPS.get('norm')"),
    ],
)
@pytest.mark.parametrize("imports", ["from clips import CLIPS", "import clips"])
@pytest.mark.parametrize(("unscale", "found"), [("", ["AMP201"]), ("        scaler.unscale_(optimizer)\n", [])])
def test_a_function_got_from_a_registry(
    registry: str, lookup: str, imports: str, unscale: str, found: list[str], tmp_path: Path
) -> None:
    (tmp_path / "clips.py").write_text(f"import torch\n\n{registry}")
    called = lookup if "from" in imports else f"clips.{lookup}"
    (tmp_path / "train.py").write_text(TRAIN.format(imports=imports, lookup=called, unscale=unscale))
    assert [finding.code for finding in check_paths([str(tmp_path)]).findings] == found
