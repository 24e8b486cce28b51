"""Sides of a matrix product that are unfavorable for Tensor Cores."""

from __future__ import annotations

import pytest

from pytest_amp_check.protocol.sizes import describe_sizes, find_odd_sides


@pytest.mark.parametrize(
    ("sides", "expected"),
    [
        ([256, 257, 1024], [257]),
        ([128, 129], [129]),
        ([131, 260, 136], [131, 260]),
        ([256, 512], []),
        # If one side is short, the others do not matter.
        ([127, 257], []),
        ([], []),
    ],
)
def test_sides_that_are_no_multiple_of_eight(sides: list[int], expected: list[int]) -> None:
    assert find_odd_sides(sides) == expected


def test_sides_had_better_be_the_next_multiple_of_eight() -> None:
    assert describe_sizes([129, 255]) == {"sizes": "129 and 255", "better": "136 and 256"}
    assert describe_sizes([257]) == {"sizes": "257", "better": "264"}
