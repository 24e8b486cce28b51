"""Correct programs, some of which once had false findings: each is rewritten from a pattern in real code."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_amp_check import check_source
from pytest_amp_check.static.settings import Settings

PROGRAMS = sorted((Path(__file__).parent / "silent").glob("*.py"))


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_right_program_is_silent(path: Path) -> None:
    # Only the name is passed: a path below a folder of tests would be analyzed as a test.
    findings = [f for f in check_source(path.read_text(encoding="utf-8"), path.name) if f.code != "AMP901"]
    assert findings == []


def test_a_hook_that_only_looks_is_no_averaging() -> None:
    text = (Path(__file__).parent / "silent" / "diagnostic_hooks.py").read_text(encoding="utf-8")
    assert {f.code for f in check_source(text.replace(".mean() / k", ".mean()"))} == {"AMP301"}
    averaging = text.replace("        log(gradient)\n", "        return gradient / 4\n").replace(
        ".mean() / k", ".mean()"
    )
    assert check_source(averaging) == []


def test_rules_that_are_off_are_silent_too() -> None:
    text = (Path(__file__).parent / "silent" / "accumulated_features.py").read_text(encoding="utf-8")
    assert check_source(text, "train.py", Settings(select=frozenset({"AMP701"}))) == []
