"""Fills whose number, or whose float16, stands in another file: each with the right project beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
from trees import found, marks, write

MODEL = """
=== lib/__init__.py
=== lib/layers/__init__.py
=== lib/layers/attention.py
import torch
from torch import nn
{imports}

class Attend(nn.Module):
    def forward(self, query, keys, mask):
        scores = torch.bmm(query, keys.transpose(1, 2))
        {fill}
        return scores.softmax(-1)
=== lib/limits.py
BIG = {number}
=== lib/main.py
from lib.layers.attention import Attend

def build(options):
    model = Attend()
    {cast}
    return model
"""
REGISTERED = """
=== lib/__init__.py
=== lib/models/__init__.py
=== lib/models/attention.py
import torch
from torch import nn
from lib.tables import {table}

{decorator}
class Attend(nn.Module):
    def forward(self, query, keys, mask):
        scores = torch.bmm(query, keys.transpose(1, 2))
        scores = scores.masked_fill(mask, -1e9){mark}
        return scores.softmax(-1)
=== lib/tables.py
{table} = make_table()
=== lib/engine/__init__.py
=== lib/engine/loop.py
{training}
"""
AUTOCAST = """
import torch
def step(model, batch, scaler):
    with torch.autocast("cuda", dtype=torch.{dtype}):
        return model(batch)
"""
APEX = """
from apex import amp
def prepare(model, optimizer, level):
    return amp.initialize(model, optimizer, opt_level={level})
"""
CASES: dict[str, str] = {}
for _import, _name in (
    ("from lib.limits import BIG", "BIG"),
    ("from ..limits import BIG as LARGE", "LARGE"),
):
    for _number, _cast, _mark in (
        ("1e20", "model.half()", "  # AMP506"),
        ("1e20", "model.float()", ""),
        ("65504", "model.half()", ""),
        ('float("inf")', "model.half()", ""),
    ):
        for _fill in (
            "scores.masked_fill_(~mask, -{})",
            "scores[~mask] = -{}",
            "scores = scores.masked_fill(mask, -{})",
        ):
            CASES[f"{_fill.format(_name)} of {_number}, {_cast}"] = MODEL.format(
                imports=_import, fill=_fill.format(_name) + _mark, number=_number, cast=_cast
            )
for _decorator, _table in (('@TABLE.register("attend")', "TABLE"), ("@register_model", "register_model")):
    for _training, _mark in (
        (AUTOCAST.format(dtype="float16"), "  # AMP506"),
        (AUTOCAST.format(dtype="bfloat16"), ""),
        (APEX.format(level='"O1"'), "  # AMP506"),
        (APEX.format(level="level"), "  # AMP506"),
        (APEX.format(level='"O0"'), ""),
    ):
        CASES[f"{_decorator}: {_training.splitlines()[-1]}"] = REGISTERED.format(
            decorator=_decorator, table=_table, training=_training, mark=_mark
        )
CASES["not registered"] = REGISTERED.format(
    decorator="", table="TABLE", training=AUTOCAST.format(dtype="float16"), mark=""
)

# Directories without __init__.py: the name in an import shows where imports begin.
NAMESPACE = """
=== layers/shared/attention.py
import torch
from torch import nn

class Attend(nn.Module):
    def forward(self, query, keys, mask):
        scores = torch.bmm(query, keys.transpose(1, 2))
        scores = scores.masked_fill(mask, -1e9){mark}
        return scores.softmax(-1)
=== tasks/speech/task.py
from layers.shared.attention import Attend
{imports}

class Task:
    def build(self):
        return Attend()
=== engine/shared/loop.py
{training}
=== examples/shared/demo.py
{demo}
"""
for _imports in (
    "from engine.shared.loop import step",
    "from engine.shared import loop",
    "import engine.shared.loop",
    "from engine.shared.loop import (\n    step,\n)",
):
    for _dtype, _mark in (("float16", "  # AMP506"), ("bfloat16", "")):
        CASES[f"{_imports}, {_dtype}"] = NAMESPACE.format(
            imports=_imports, training=AUTOCAST.format(dtype=_dtype), demo="", mark=_mark
        )
CASES["an engine that no task imports"] = NAMESPACE.format(
    imports="", training=AUTOCAST.format(dtype="float16"), demo="", mark=""
)
CASES["an example of its own"] = NAMESPACE.format(
    imports="",
    training="",
    demo="from layers.shared.attention import Attend\nimport helper\n=== examples/shared/helper.py"
    + AUTOCAST.format(dtype="float16"),
    mark="",
)


@pytest.mark.parametrize("name", CASES)
def test_fill(name: str, tmp_path: Path) -> None:
    write(tmp_path, CASES[name])
    assert found(tmp_path) == marks(tmp_path), CASES[name]
