"""The texts of all rules, compared with a file that reads from top to bottom and is written by hand.

Each block of the file is one rule: code and name, the summary, then each message after its label. A message for several
places of a file comes first, after ``grouped``.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

from pytest_amp_check.protocol.rule import Rule
from pytest_amp_check.protocol.rules import RULES

TEXTS = Path(__file__).with_name("texts_of_rules.txt")


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
