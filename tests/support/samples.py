"""Samples of large generators, so that the whole suite takes minutes. EXHAUSTIVE_TESTS=1 takes every case."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

Case = TypeVar("Case")

#: True if the environment asks for every case.
EXHAUSTIVE = bool(os.environ.get("EXHAUSTIVE_TESTS"))


def sample(cases: Iterable[Case], every: int, turn: int = 0) -> list[Case]:
    """Return every n-th case. Successive turns begin one case later each, and together take all cases."""
    return list(cases) if EXHAUSTIVE else list(cases)[turn % every :: every]


def reduced(number: int, share: float) -> int:
    """Return a share of a number of cases."""
    return number if EXHAUSTIVE else round(number * share)
