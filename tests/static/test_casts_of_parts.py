"""Trained modules that the code casts part by part: submodules, parameters, and functions that ``apply`` calls."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

TRAIN = """\
import torch
from torch import nn

{defined}
def train(args, loader):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).cuda()
    teacher = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).cuda()
    {cast}
    optimizer = torch.optim.AdamW(model.parameters())
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x).float(), y)
        loss.backward()
        optimizer.step()
"""
LOOP = "for p in model.parameters():\n        "
APPLIED = "def cast(m):\n    if isinstance(m, nn.Linear):\n        {}\n"
NESTED = "def shrink(net):\n    def cast(layer):\n        {}\n    net.apply(cast)\n"
WRONG = [
    ("", "model.requires_grad_(args.lora)\n    if args.lora:\n        model.half()"),
    ("", "model.requires_grad_(not args.lora)\n    if args.other:\n        model.half()"),
    ("", f"{LOOP}p.data = p.data.half()"),
    ("", f"{LOOP}p.data = p.to(torch.bfloat16)"),
    ("", f"{LOOP}p.data = p.data.to(dtype=torch.float16)"),
    ("", "for name, p in model.named_parameters():\n        if args.low:\n            p.data = p.data.bfloat16()"),
    ("def shrink(net):\n    for p in net.parameters():\n        p.data = p.data.half()\n", "shrink(model)"),
    ("", "for m in model.modules():\n        if isinstance(m, nn.Linear):\n            m.half()"),
    ("", 'for name, m in model.named_modules():\n        if "norm" not in name:\n            m.to(torch.bfloat16)'),
    ("", "for m in model.children():\n        m.bfloat16()"),
    ("", "for name, m in model.named_children():\n        m.to(dtype=torch.float16)"),
    ("", "model.apply(lambda m: m.half())"),
    (APPLIED.format("m.half()"), "model.apply(cast)"),
    (APPLIED.format("m.to(torch.bfloat16)"), "model.apply(cast)"),
    (APPLIED.format("m.weight.data = m.weight.data.half()"), "model.apply(cast)"),
    (NESTED.format("layer.half()"), 'if args.precision == "fp16":\n        shrink(model)'),
    (NESTED.format("layer.weight.data = layer.weight.data.half()"), "shrink(model)"),
    ("", "kind = torch.float16 if args.low else torch.float32\n    for m in model.modules():\n        m.to(kind)"),
]
RIGHT = [
    ("", f"{LOOP}p.data = p.data.float()"),
    ("", f"{LOOP}if not p.requires_grad:\n            p.data = p.data.half()"),
    ("", f"{LOOP}copy = p.data.half()"),
    ("", "for p in teacher.parameters():\n        p.data = p.data.half()"),
    ("", "for m in model.modules():\n        m.eval()"),
    ("", "for m in teacher.modules():\n        m.half()"),
    ("", "for m in model.modules():\n        m.to(args.device)"),
    ("", "for m in model.modules():\n        x = m.weight.half()"),
    (APPLIED.format("m.half()"), "teacher.apply(cast)"),
    (APPLIED.format("nn.init.zeros_(m.weight)"), "model.apply(cast)"),
    (NESTED.format("layer.half()"), "shrink(teacher)"),
    (NESTED.format("layer.half()"), f"shrink(model)\n    {LOOP}p.data = p.data.float()"),
    ("", "model.requires_grad_(False)\n    for m in model.modules():\n        m.half()"),
    ("", "model.requires_grad_(not args.lora)\n    if args.lora:\n        model.half()"),
    ("", "model.requires_grad_(args.full and args.unet)\n    if not args.full:\n        model.half()"),
    ("", "if args.lora:\n        model.half()\n    model.requires_grad_(not args.lora)"),
]


def found(defined: str, cast: str) -> list[tuple[str, int]]:
    source = TRAIN.format(defined=defined, cast=cast)
    return [(each.code, each.line) for each in check_source(source, "train.py")]


@pytest.mark.parametrize(("defined", "cast"), WRONG)
def test_casts_of_parts(defined: str, cast: str) -> None:
    lines = TRAIN.format(defined=defined, cast=cast).split("\n")
    casts = [n for n, line in enumerate(lines, 1) if any(word in line for word in (".half(", "bfloat16", ".to("))]
    assert found(defined, cast) == [("AMP501", casts[-1])]


@pytest.mark.parametrize(("defined", "cast"), RIGHT)
def test_casts_of_parts_that_nothing_trains(defined: str, cast: str) -> None:
    assert found(defined, cast) == []


def test_one_finding_for_all_parts_that_a_function_casts() -> None:
    cast = APPLIED.format("m.weight.data = m.weight.data.half()\n        m.bias.data = m.bias.data.half()")
    assert [code for code, _ in found(cast, "model.apply(cast)")] == ["AMP501"]


def test_weights_that_are_cast_back_lose_no_precision_any_more() -> None:
    source = TRAIN.format(
        defined=NESTED.format("layer.half()"), cast=f"shrink(model)\n    {LOOP}p.data = p.data.float()"
    )
    assert check_source(source.replace("model(x).float()", "model(x)"), "train.py") == []
