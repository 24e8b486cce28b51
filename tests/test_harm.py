"""The measured table says what a run of the examples says."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_amp_check.protocol.measured import MEASURED, TORCH
from pytest_amp_check.protocol.rules import RULES

torch = pytest.importorskip("torch")

HARM: dict[str, Any] = runpy.run_path(str(Path(__file__).resolve().parents[1] / "benchmarks" / "harm.py"))
measure: Callable[[str], str] = HARM["measure"]


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_only_rules_are_measured() -> None:
    assert set(MEASURED) <= set(RULES)
    assert len(MEASURED) > len(RULES) / 2


@pytest.mark.skipif(torch.__version__.partition("+")[0] != TORCH, reason=f"the table was measured with torch {TORCH}")
@pytest.mark.parametrize("code", ["AMP102", "AMP201", "AMP204", "AMP206", "AMP215", "AMP801"])
def test_the_table_says_what_a_run_says(code: str) -> None:
    assert measure(code) == MEASURED[code]


def test_what_does_not_differ_is_not_claimed() -> None:
    figures = HARM["run"](RULES["AMP201"].good)
    assert HARM["sentence"](figures, figures) == ""
    assert figures.taken == 8
    assert figures.skipped == 0


def test_a_run_leaves_torch_as_it_was() -> None:
    before = torch.compile, torch.amp.GradScaler.update
    HARM["run"]("raise ValueError('no')")
    assert (torch.compile, torch.amp.GradScaler.update) == before
