"""Sizes in bytes: formatting and parsing."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_amp_check.protocol.byte_sizes import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0 B", 0),
        ("1B", 1),
        ("1 KB", 1000),
        ("1 KiB", 1024),
        ("1.5 GiB", 1_610_612_736),
        ("80 GB", 80_000_000_000),
        ("2 tib", 2_199_023_255_552),
        ("0.1 MB", 100_000),
        (" 1_000 MiB ", 1_048_576_000),
        (".5KiB", 512),
        ("1.0009765625 KiB", 1025),
        (12345, 12345),
        (0, 0),
    ],
)
def test_sizes_are_read(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "GiB", "1.5", "1 Gib/s", "-1 GiB", "1,5 GiB", "1 GiBs", "one GiB", "1 MiB 2", -1, 1.5, None, True]
)
def test_what_is_no_size_is_refused_with_an_example(text: Any) -> None:
    with pytest.raises(ValueError, match=r"1\.5 GiB"):
        parse_size(text)


@given(st.integers(0, 2**60))
def test_a_size_is_written_as_it_is_read(size: int) -> None:
    written = format_size(size)
    unit = parse_size(f"1 {written.split()[1]}")
    assert abs(parse_size(written) - size) <= unit / 200 + 1
    assert unit == 1 or size >= unit


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (-1023, "-1023 B"),
        (1024, "1.00 KiB"),
        (2**20 - 1, "1024.00 KiB"),
        (2**20, "1.00 MiB"),
        (-3 * 2**20, "-3.00 MiB"),
        (2**30 - 1, "1024.00 MiB"),
        (2**30, "1.00 GiB"),
        (1_610_612_736, "1.50 GiB"),
        (2**40 - 1, "1024.00 GiB"),
        (2**40, "1.00 TiB"),
        (2**50, "1024.00 TiB"),
    ],
)
def test_sizes_are_written(size: int, text: str) -> None:
    assert format_size(size) == text


UNITS = "B, KB, MB, GB, TB, KiB, MiB, GiB or TiB"


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (-1, "A size cannot be negative, but this one is -1: give bytes, or text such as '1.5 GiB'."),
        ("1 PB", f"'1 PB' is not a size: write a number and a unit ({UNITS}), as in '1.5 GiB'."),
    ],
)
def test_what_is_wrong_with_a_size_is_said(size: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_size(size)
