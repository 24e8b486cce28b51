"""Every rule finds the marks of its bad example, and nothing in the good example or the negative examples."""

from __future__ import annotations

import pytest
from marks import MISTAKES, marks, places, shown, unsaid
from negative_examples import negative_examples

from pytest_amp_check.protocol.rule import RUNTIME, Rule
from pytest_amp_check.protocol.rules import RULES
from pytest_amp_check.static.engine import check_source
from pytest_amp_check.static.settings import Settings

STATIC = {code: rule for code, rule in RULES.items() if rule.detected_by != RUNTIME}
#: Settings with all rules, so that rules that are off by default are also checked.
EVERYTHING = Settings(select=MISTAKES)

every_rule = pytest.mark.parametrize("rule", STATIC.values(), ids=STATIC)


@every_rule
def test_the_bad_example_gives_exactly_its_marks(rule: Rule) -> None:
    findings = check_source(rule.bad_example, "bad.py", Settings(select=MISTAKES | {rule.code}))
    assert marks(rule.bad_example), "the example marks nothing"
    assert places(findings) == marks(rule.bad_example), shown(findings)


@every_rule
def test_the_bad_example_is_found_by_its_own_rule(rule: Rule) -> None:
    # A suppression is known to be unused only if the rules that it names are on.
    select = frozenset(RULES) if rule.code == "AMP902" else frozenset({rule.code})
    alone = check_source(rule.bad_example, "bad.py", Settings(select=select))
    assert {finding.code for finding in alone} == {rule.code}
    for finding in alone:
        assert finding.name == rule.name
        assert finding.message
        assert not any(brace in finding.message for brace in "{}")
    assert not unsaid(alone)


@every_rule
def test_the_good_example_gives_nothing(rule: Rule) -> None:
    findings = check_source(rule.good_example, "good.py", EVERYTHING)
    assert not findings, shown(findings)


@every_rule
def test_negative_examples_stay_silent(rule: Rule) -> None:
    """A failure names every negative example of the rule that has a finding."""
    settings = Settings(select=frozenset({rule.code}))
    found = {
        reason: shown(findings)
        for reason, source in negative_examples(rule)
        if (findings := check_source(source, "negative_example.py", settings))
    }
    assert found == {}
