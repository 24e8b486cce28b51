"""A seeded part of ``benchmarks/fuzz.py``, which itself runs for minutes and hours."""

from __future__ import annotations

import pytest
from benchmarking import benchmark

FUZZ = benchmark("fuzz")


@pytest.mark.long
@pytest.mark.exhaustive
def test_a_slice_of_inputs_that_nobody_would_write() -> None:
    inputs = 400
    tally = FUZZ["fuzzed"](0, iter(range(inputs)), FUZZ["corpus"]())
    assert [f"{failure.number}: {failure.wrong}" for failure in tally.failures] == []
    assert set(tally.kinds) == {"source", "notebook", "document", "configuration", "cache"}
    # Many inputs have findings, and some have fixes. Every new test program changes which inputs are drawn.
    assert tally.found > inputs // 10
    assert tally.fixed > inputs // 40
