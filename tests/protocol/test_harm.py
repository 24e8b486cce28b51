"""The measured tables equal the results of the examples, and of the additional programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from benchmarking import benchmark

from pytest_amp_check.frontends.rule_text import rule_markdown
from pytest_amp_check.protocol.measured_harm import MEASURED, NOT_HERE, SHOWN, TORCH
from pytest_amp_check.protocol.rules import RULES

torch = pytest.importorskip("torch")

HARM = benchmark("harm")
measure: Callable[[str], str] = HARM["measure"]
show: Callable[[str], str] = HARM["consequences"].measure
same_torch = pytest.mark.skipif(
    torch.__version__.partition("+")[0] != TORCH, reason=f"the tables were measured with torch {TORCH}"
)


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_every_rule_is_measured_or_says_why_not() -> None:
    assert {*MEASURED, *SHOWN, *NOT_HERE} == set(RULES)
    assert not {*MEASURED, *SHOWN} & set(NOT_HERE)
    assert {*SHOWN} == {*HARM["consequences"].SHOWN}
    assert HARM["consequences"].NOT_HERE == NOT_HERE


@same_torch
@pytest.mark.parametrize("code", ["AMP102", "AMP201", "AMP204", "AMP206", "AMP215", "AMP801"])
def test_the_table_says_what_a_run_says(code: str) -> None:
    assert measure(code) == MEASURED[code]


@same_torch
@pytest.mark.parametrize("code", ["AMP110", "AMP205", "AMP207", "AMP402", "AMP503", "AMP504"])
def test_what_was_made_to_show_more_shows_it(code: str) -> None:
    assert show(code) == SHOWN[code]


def test_a_page_says_what_was_run() -> None:
    assert "A demonstration program with the mistake" in rule_markdown(RULES["AMP402"])
    assert "The bad example below, compared with the good one" in rule_markdown(RULES["AMP201"])
    assert f"Not measured: {NOT_HERE['AMP109']}." in rule_markdown(RULES["AMP109"])


def test_of_what_is_printed_the_lines_are_quoted_that_tell() -> None:
    def ran(*lines: str) -> Any:
        figures = HARM["Figures"]()
        figures.printed = list(lines)
        return figures

    assert HARM["sentence"](ran("a", "a", "c"), ran("b")) == "it prints `a`, `c`, where the good example prints `b`"
    assert HARM["sentence"](ran(*"12345"), ran(*"67890")) == "it prints `5`, where the good example prints `0`"
    assert HARM["sentence"](ran(*"12345"), ran("6")) == "it prints `1`, where the good example prints `6`"
    assert HARM["sentence"](ran("x"), ran()) == "it prints `x`"
    assert HARM["sentence"](ran("x"), ran("x")) == ""


def test_what_does_not_differ_is_not_claimed() -> None:
    figures = HARM["run"](RULES["AMP201"].good_example)
    assert HARM["sentence"](figures, figures) == ""
    assert figures.taken == 8
    assert figures.skipped == 0


def test_a_run_leaves_torch_as_it_was() -> None:
    before = torch.compile, torch.amp.GradScaler.update
    HARM["run"]("raise ValueError('no')")
    assert (torch.compile, torch.amp.GradScaler.update) == before
