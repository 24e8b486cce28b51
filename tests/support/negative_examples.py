"""Negative examples of rules: correct programs that are close to a mistake."""

from __future__ import annotations

from pathlib import Path

from pytest_amp_check.protocol.rule import Rule
from pytest_amp_check.protocol.rules import module_name

#: The programs, in a folder for each rule, below a folder for each family of rules.
FOLDER = Path(__file__).resolve().parents[1] / "protocol" / "negative_examples"


def negative_examples(rule: Rule) -> list[tuple[str, str]]:
    """Return the programs that must give no finding of a rule, each with the reason from its first line."""
    found = []
    for path in sorted(FOLDER.glob(f"*/{module_name(rule.name)}/*.py")):
        reason, _, source = path.read_text(encoding="utf-8").partition("\n\n")
        found.append((reason.removeprefix("# "), source))
    return found
