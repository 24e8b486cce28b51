"""Conditions whose other answer ends the program: they leave a finding certain, and are not named."""

from __future__ import annotations

import pytest

from pytest_amp_check.static.engine import check_source

#: Gradients that nothing clears, which a finding shows in the next iteration.
PROGRAM = """\
import os, sys, torch
size = int(os.environ["WORLD_SIZE"])
options = parse()
model = torch.nn.Linear(10, 10)
{before}
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
for step in range(10):
    batch = fetch(step)
    {first}
    model(batch).sum().backward()
    optimizer.step()
"""


def found(before: str = "pass", first: str = "pass") -> list[tuple[str, bool, str]]:
    source = PROGRAM.format(before=before, first=first)
    return [(finding.code, finding.certain, finding.condition) for finding in check_source(source, "train.py")]


@pytest.mark.parametrize(
    "before",
    [
        "assert size % 2 == 0, 'an even number of ranks'",
        "if size % 2: raise ValueError(size)",
        "if size % 2: sys.exit('an even number of ranks')",
        "if not options.data: exit(2)",
    ],
)
def test_what_ends_before_the_loop(before: str) -> None:
    assert found(before=before) == [("AMP215", True, "")]


@pytest.mark.parametrize("first", ["assert batch is not None", "if batch is None: raise ValueError(step)"])
def test_what_ends_in_the_loop(first: str) -> None:
    assert found(first=first) == [("AMP215", True, "")]


def test_what_goes_on_with_the_next_batch_is_named() -> None:
    assert found(first="if batch is None: continue") == [("AMP215", False, "when `batch is None` is false")]


@pytest.mark.parametrize(
    "first",
    [
        "if batch is None:\n        optimizer.zero_grad()\n        continue",
        "try: assert batch is not None\n    except AssertionError:\n        optimizer.zero_grad()\n        continue",
    ],
)
def test_a_branch_that_clears_is_no_end(first: str) -> None:
    assert found(first=first) == []


def test_only_what_decides_is_named() -> None:
    named = [("AMP215", False, "when `batch is None` is false")]
    assert found(before="assert options.seed", first="if batch is None: continue") == named
