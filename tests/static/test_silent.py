"""Programs that are right, and of which some were once taken for wrong: each was met in real code, and written anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_amp_check import check_source
from pytest_amp_check.static.engine import Settings

PROGRAMS = sorted((Path(__file__).parent / "silent").glob("*.py"))


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_right_program_is_silent(path: Path) -> None:
    # By its name alone: below a folder of tests it would be judged as a test is.
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
