"""The source reader finds in every fixture exactly what the fixture marks."""

from __future__ import annotations

from pathlib import Path

import pytest
from marks import MISTAKES, marks, places, shown, unsaid

from pytest_amp_check.protocol.rules import RULES
from pytest_amp_check.static.engine import Settings, check_paths, check_source

FIXTURES = Path(__file__).parents[2] / "fixtures"
SCRIPTS = sorted(FIXTURES.rglob("*.py"))
#: Rules that are off unless they are selected are marked too.
EVERYTHING = Settings(select=MISTAKES)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.relative_to(FIXTURES).as_posix())
def test_a_fixture_gives_exactly_its_marks(script: Path) -> None:
    text = script.read_text(encoding="utf-8")
    findings = check_source(text, str(script), EVERYTHING)
    assert places(findings) == marks(text), shown(findings)
    assert not unsaid(findings)


def test_the_names_of_fixtures_are_true() -> None:
    """What is called bad marks something, whatever else there is marks nothing."""
    for script in SCRIPTS:
        text = script.read_text(encoding="utf-8")
        marked = marks(text) | marks(text, "runtime")
        assert bool(marked) == (script.stem.endswith("_bad") or script.stem == "headline"), script
        assert {code for _, code in marked} <= set(RULES), script


def test_the_tree_as_a_whole_gives_what_its_files_give() -> None:
    """Except that a file which enters no autocast may be used by one that does."""
    report = check_paths([str(FIXTURES)], EVERYTHING)
    assert report.files == len(SCRIPTS)
    expected = {
        (str(script), line, code)
        for script in SCRIPTS
        for line, code in marks(script.read_text(encoding="utf-8"))
        if code != "AMP110"
    }
    assert expected
    assert {(f.filename, f.line, f.code) for f in report.findings if f.code != "AMP110"} == expected
