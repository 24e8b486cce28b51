"""The texts of all rules, compared with a file that reads from top to bottom and is written by hand.

Each block of the file is one rule: code and name, the summary, then each message after its label. A message for several
places of a file comes first, after ``grouped``.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

from pytest_amp_check import check_source
from pytest_amp_check.protocol.rule import Rule
from pytest_amp_check.protocol.rules import RULES
from pytest_amp_check.static.settings import Settings

TEXTS = Path(__file__).with_name("texts_of_rules.txt")
FIXTURES = Path(__file__).parents[2] / "fixtures"
#: Characters of a message without its remedy.
LONGEST = 120


def list_lines(rule: Rule) -> Iterator[str]:
    """Yield the lines of one rule in the file, without line breaks."""
    yield f"{rule.code} {rule.name}"
    yield from textwrap.wrap(rule.summary, 100, break_long_words=False, break_on_hyphens=False)
    messages = {label: kind.message for label, kind in rule.violations.items()}
    if rule.grouped_message:
        messages = {"grouped": rule.grouped_message, **messages}
    for label, message in messages.items():
        yield f"  {label}"
        yield from textwrap.wrap(
            message,
            100,
            initial_indent=" " * 6,
            subsequent_indent=" " * 6,
            break_long_words=False,
            break_on_hyphens=False,
        )


def test_each_rule_shows_its_name_its_summary_and_its_messages() -> None:
    written = TEXTS.read_text(encoding="utf-8")
    assert "\n\n".join("\n".join(list_lines(rule)) for rule in RULES.values()) + "\n" == written


def test_every_rule_is_in_the_file() -> None:
    blocks = TEXTS.read_text(encoding="utf-8").split("\n\n")
    assert [block.split()[0] for block in blocks] == list(RULES)


def test_the_problem_of_each_example_fits_into_a_line() -> None:
    settings = Settings(select=frozenset(RULES))
    programs = {code: rule.bad_example for code, rule in RULES.items()}
    programs |= {path.stem: path.read_text(encoding="utf-8") for path in FIXTURES.rglob("*_bad.py")}
    problems = {
        finding.problem for program in programs.values() for finding in check_source(program, "train.py", settings)
    }
    assert len(problems) > 150
    assert [problem for problem in sorted(problems) if len(problem) > LONGEST] == []
