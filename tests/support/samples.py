"""Samples of large generators and tables, so that the suite takes minutes. EXHAUSTIVE_TESTS=1 takes every case."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import pytest

Case = TypeVar("Case")

#: True if the environment asks for every case.
EXHAUSTIVE = bool(os.environ.get("EXHAUSTIVE_TESTS"))


def sample(cases: Iterable[Case], every: int, offset: int = 0) -> list[Case]:
    """Return every n-th case, beginning at an offset. Offsets from zero to n - 1 together take all cases."""
    return list(cases) if EXHAUSTIVE else list(cases)[offset % every :: every]


def reduced(number: int, share: float) -> int:
    """Return a share of a number of cases."""
    return number if EXHAUSTIVE else round(number * share)


def deselect_exhaustive(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests of the marker ``exhaustive``, unless the environment asks for every case.

    ``exhaustive`` deselects a test, or the marked case of a parametrized test. ``exhaustive(every=n)`` keeps the first
    case of a parametrized test, and every n-th case after it.
    """
    if EXHAUSTIVE:
        return
    kept: list[pytest.Item] = []
    deselected: list[pytest.Item] = []
    cases: Counter[str] = Counter()
    for item in items:
        marker = item.get_closest_marker("exhaustive")
        if marker is None:
            kept.append(item)
            continue
        function = item.nodeid.partition("[")[0]
        every = marker.kwargs.get("every")
        (deselected if every is None or cases[function] % every else kept).append(item)
        cases[function] += 1
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = kept
