"""Training in float8: the order of calls of torchao, and arguments of TransformerEngine."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

HEAD = """\
import torch
import transformer_engine.pytorch as te
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torchao.float8 import convert_to_float8_training, precompute_float8_dynamic_scale_for_fsdp
from transformer_engine.common.recipe import DelayedScaling, Format, MXFP8BlockScaling


"""
#: Lines of a function before the first of the tested statements.
FIRST = HEAD.count("\n") + 2


def found(body: str) -> list[tuple[int, str, bool]]:
    """Labels in a function by their line, from 1 in the body."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    source = f"{HEAD}def train(model, loader):\n{lines}\n"
    return [(f.line - FIRST + 1, f.label, f.certain) for f in check_source(source) if f.code == "AMP512"]


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("model = torch.compile(model)", [(2, "float8:late-compile", True)]),
        ("fully_shard(model)", [(2, "float8:late-shard", True)]),
        ("model = FSDP(model, use_orig_params=True)", [(2, "float8:late-shard", True)]),
        # Only float8 all-gather replaces the parameters.
        ("optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)", [(2, "float8:late-optimizer", False)]),
        ("model = model.cuda()", []),
        ("model = DistributedDataParallel(model)", []),
        ("other = torch.compile(nn.Linear(8, 8))", []),
        ("optimizer = torch.optim.AdamW(other.parameters(), lr=1e-4)", []),
    ],
)
def test_a_model_is_converted_first(before: str, expected: list[tuple[int, str, bool]]) -> None:
    assert found(f"{before}\nconvert_to_float8_training(model)") == expected
    assert found(f"{before}\nconvert_to_float8_training(module=model)") == expected
    assert found(f"convert_to_float8_training(model)\n{before}") == []


def test_a_model_of_an_attribute() -> None:
    body = "self.model = torch.compile(self.model)\nself.model = convert_to_float8_training(self.model)"
    assert found(body) == [(2, "float8:late-compile", True)]


STEP = "for x in loader:\n    model(x).sum().backward()\n    {}\n    {}\n    optimizer.zero_grad()"
SCALES, UPDATE = "precompute_float8_dynamic_scale_for_fsdp(model)", "optimizer.step()"


def test_scales_are_computed_after_the_step() -> None:
    assert found(STEP.format(SCALES, UPDATE)) == [(3, "float8:scales-early", True)]
    assert found(STEP.format(UPDATE, SCALES)) == []
    # A scheduler changes no weights.
    assert found(STEP.format(SCALES, "scheduler.step()")) == []


@pytest.mark.parametrize(
    ("recipe", "reported"),
    [
        ("MXFP8BlockScaling(fp8_format=Format.HYBRID)", True),
        ("MXFP8BlockScaling(fp8_format=Format.E4M3)", False),
        ("MXFP8BlockScaling()", False),
        ("DelayedScaling(fp8_format=Format.HYBRID)", False),
    ],
)
def test_the_format_of_blocks(recipe: str, reported: bool) -> None:
    assert found(f"recipe = {recipe}") == ([(1, "float8:format", True)] if reported else [])


@pytest.mark.parametrize(
    ("calls", "label"),
    [
        ("y = model(x, is_first_microbatch=False)", "float8:old-weights"),
        ("y = model(x, is_first_microbatch=i == 0)", "float8:first-once"),
        ("first = i == 0; y = model(x, is_first_microbatch=first)", "float8:first-once"),
        ("first = epoch == 0 and i == 0; y = model(x, is_first_microbatch=first)", "float8:first-once"),
        ("y = model(x, is_first_microbatch=i % 4 == 0)", ""),
        ("y = model(x, is_first_microbatch=fresh)", ""),
        ("y = model(x, is_first_microbatch=True); y = model(x, is_first_microbatch=False)", ""),
    ],
)
def test_weights_are_cast_after_each_step(calls: str, label: str) -> None:
    body = f"for i, x in enumerate(loader):\n    {calls}\n    y.sum().backward()\n    optimizer.step()"
    assert found(body) == ([(2, label, False)] if label else [])
    # Nothing is trained.
    assert found(f"for i, x in enumerate(loader):\n    {calls}") == []


def test_the_first_micro_batch_of_each_window() -> None:
    window = (
        "for i, x in enumerate(window):\n        y = model(x, is_first_microbatch=i == 0)\n        y.sum().backward()"
    )
    assert found(f"for window in loader:\n    {window}\n    optimizer.step()") == []
    once = window.replace("i == 0", "step == 0 and i == 0")
    assert found(f"for step, window in enumerate(loader):\n    {once}\n    optimizer.step()") == [
        (3, "float8:first-once", False)
    ]


@pytest.mark.parametrize(
    ("lines", "is_early"),
    [
        (("loss.backward()", SCALES, UPDATE), True),
        (("loss.backward()", UPDATE, SCALES), False),
        # Before the first step, or in a function without a backward.
        ((SCALES, "loss.backward()", UPDATE), False),
        ((SCALES, UPDATE), False),
    ],
)
def test_scales_in_a_function_that_does_one_step(lines: tuple[str, ...], is_early: bool) -> None:
    assert found("\n".join(lines)) == ([(lines.index(SCALES) + 1, "float8:scales-early", True)] if is_early else [])


def test_a_test_compares_formats() -> None:
    source = f"{HEAD}def test_formats():\n    recipe = MXFP8BlockScaling(fp8_format=Format.HYBRID)\n"
    assert [f.code for f in check_source(source, "tests/test_recipes.py")] == []
    assert [f.code for f in check_source(source, "recipes.py")] == ["AMP512"]
