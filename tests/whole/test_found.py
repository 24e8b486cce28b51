"""The page of mistakes in public projects, against the list that a benchmark checks."""

from __future__ import annotations

import csv
import re
import runpy
from pathlib import Path

import pytest

from pytest_amp_check.protocol.rules import RULES

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def rows() -> list[dict[str, str]]:
    with (ROOT / "benchmarks" / "found.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_each_listed_mistake_is_complete(rows: list[dict[str, str]]) -> None:
    for row in rows:
        assert all(re.fullmatch("[0-9a-f]{40}", row[name]) for name in ("before", "fix")), row
        assert row["code"] in RULES
        assert int(row["line"]) > 0
        assert row["path"].endswith(".py")
        assert row["mistake"]


def test_the_page_has_listed_mistakes_and_their_number(
    rows: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    made = runpy.run_path(str(ROOT / "benchmarks" / "found.py"))
    shown = (ROOT / "docs" / "found.md").read_text(encoding="utf-8")
    named = [
        fix
        for fix in made["listed_fixes"]()
        if f"/{fix.repository}/commit/{fix.fix})" in shown and f"{fix.path.rpartition('/')[2]}:{fix.line}` " in shown
    ]
    assert len(named) > 30
    assert shown == made["page"](named, len(rows))
