"""The texts of all rules, compared with a file that reads from top to bottom and is written by hand.

Each block of the file is one rule: code and name, the summary, the effect on training, then each message after its
label, with its own effect if it has one. A more precise effect follows the value of the finding that chooses it. The
assumption of a possible violation begins with "only if", and an edit at another location with "where" and how the
location is found. A message for several places of a file comes first, after ``grouped``.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

from pytest_amp_check import check_source
from pytest_amp_check.protocol.rule import Rule
from pytest_amp_check.protocol.rules import RULES
from pytest_amp_check.static.settings import Settings

TEXTS = Path(__file__).with_name("texts_of_rules.txt")
FIXTURES = Path(__file__).parents[2] / "fixtures"
#: Characters of a message without its remedy.
LONGEST = 120


def _wrap(text: str, indent: int) -> list[str]:
    space = " " * indent
    return textwrap.wrap(
        text, 100, initial_indent=space, subsequent_indent=space, break_long_words=False, break_on_hyphens=False
    )


def list_lines(rule: Rule) -> Iterator[str]:
    """Yield the lines of one rule in the file, without line breaks."""
    yield f"{rule.code} {rule.name}"
    yield from _wrap(rule.summary, 0)
    yield from _wrap(f"effect: {rule.effect}", 0)
    yield from _list_cases(rule.effect_cases, 0)
    if rule.grouped_message:
        yield "  grouped"
        yield from _wrap(rule.grouped_message, 6)
    for label, kind in rule.violations.items():
        yield f"  {label}"
        yield from _wrap(kind.message, 6)
        if kind.effect:
            yield from _wrap(f"effect: {kind.effect}", 6)
        yield from _list_cases(kind.effect_cases, 6)
        if kind.certainty.assumption:
            yield from _wrap(f"only if {kind.certainty.assumption}", 6)
        for edit in kind.trace_context.edits:
            yield from _wrap(f"where ({edit.search}): {edit.text}", 6)


def _list_cases(cases: Mapping[str, str], indent: int) -> Iterator[str]:
    """Yield the lines of the effects that a value of the finding chooses."""
    for case, effect in cases.items():
        yield from _wrap(f"effect with {case}: {effect}", indent)


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


def test_the_problem_of_each_message_fits_into_a_line() -> None:
    problems = {
        label: kind.message.partition(": ")[0] for rule in RULES.values() for label, kind in rule.violations.items()
    }
    assert len(problems) > 300
    assert {label: len(problem) for label, problem in problems.items() if len(problem) > LONGEST} == {}
