"""Tests of many quick cases at once, because pytest and its workers take 5 ms for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import pytest

Case = TypeVar("Case")

#: Cases in a group: few enough for workers to share them, and to find a failing case in its output.
SIZE = 40


def in_groups(cases: Mapping[str, Case] | Iterable[tuple[str, Case]]) -> pytest.MarkDecorator:
    """Parametrize a test by ``cases``: a dict of named cases, of which the first names the group."""
    named = list(cases.items() if isinstance(cases, Mapping) else cases)
    assert len({name for name, _ in named}) == len(named), "two cases have the same name"
    groups = [dict(named[start : start + SIZE]) for start in range(0, len(named), SIZE)]
    return pytest.mark.parametrize("cases", groups, ids=[next(iter(group)) for group in groups])


def check_each(cases: Mapping[str, Case], check: Callable[[str, Case], object]) -> None:
    """Check all cases of a group, each by its name and itself. A failure has each failing case and its assertion."""
    failures = []
    for name, case in cases.items():
        try:
            check(name, case)
        except Exception as error:  # noqa: BLE001 - a crash is a failure of its case as well
            failures.append(f"{name}\n{type(error).__name__}: {error}")
    assert not failures, "\n\n".join([f"{len(failures)} of {len(cases)} cases fail", *failures])
