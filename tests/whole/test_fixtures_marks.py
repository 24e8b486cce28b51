"""The analyzer finds in every fixture exactly the marks."""

from __future__ import annotations

from pathlib import Path

import pytest
from marks import MISTAKES, marks, places, shown, unsaid

from pytest_amp_check.protocol.rules import RULES
from pytest_amp_check.static.engine import check_paths, check_source
from pytest_amp_check.static.settings import Settings

FIXTURES = Path(__file__).parents[2] / "fixtures"
SCRIPTS = sorted(FIXTURES.rglob("*.py"))
#: Settings with all rules, because the marks include rules that are off by default.
EVERYTHING = Settings(select=MISTAKES)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.relative_to(FIXTURES).as_posix())
def test_a_fixture_gives_exactly_its_marks(script: Path) -> None:
    text = script.read_text(encoding="utf-8")
    findings = check_source(text, str(script), EVERYTHING)
    assert places(findings) == marks(text), shown(findings)
    assert not unsaid(findings)


def test_the_names_of_fixtures_are_true() -> None:
    """Fixtures named bad have marks, and all other fixtures have none."""
    for script in SCRIPTS:
        text = script.read_text(encoding="utf-8")
        marked = marks(text) | marks(text, "runtime")
        assert bool(marked) == (script.stem.endswith("_bad") or script.stem == "headline"), script
        assert {code for _, code in marked} <= set(RULES), script


@pytest.mark.exhaustive
def test_the_tree_as_a_whole_gives_what_its_files_give() -> None:
    """Exception: a file without autocast may be used by a file that enters autocast."""
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
