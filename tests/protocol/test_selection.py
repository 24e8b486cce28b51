"""Selected rules, from the words of a user."""

from __future__ import annotations

import pytest

from pytest_amp_check.protocol.finding import Finding
from pytest_amp_check.protocol.rule import Rule, ViolationKind
from pytest_amp_check.protocol.selection import UnknownRule, is_selected, resolve_codes, resolve_for_runs
from pytest_amp_check.protocol.sites import Site


def rule(code: str, name: str, default: bool = True) -> Rule:
    return Rule(
        code,
        name,
        "error",
        "summary",
        effect="training fails",
        violations={name: ViolationKind("message")},
        rationale="why",
        harm="harm",
        bad_example=f"x = 1  # {code}",
        good_example="x = 1",
        fix_advice="fix",
        sources=("source",),
        on_by_default=default,
    )


RULES = {
    r.code: r
    for r in (
        rule("AMP101", "stale-cache"),
        rule("AMP201", "clip-before-unscale"),
        rule("AMP202", "scaled-grad-touched"),
        rule("AMP299", "rare-thing", default=False),
    )
}


@pytest.mark.parametrize(
    ("select", "ignore", "on"),
    [
        (None, (), {"AMP101", "AMP201", "AMP202"}),
        (("ALL",), (), {"AMP101", "AMP201", "AMP202", "AMP299"}),
        (("all",), (), {"AMP101", "AMP201", "AMP202", "AMP299"}),
        (("AMP",), ("AMP1",), {"AMP201", "AMP202", "AMP299"}),
        (("AMP2",), (), {"AMP201", "AMP202", "AMP299"}),
        (("amp201",), (), {"AMP201"}),
        (("clip-before-unscale", "AMP101"), (), {"AMP101", "AMP201"}),
        (("Rare-Thing",), (), {"AMP299"}),
        (None, ("AMP2",), {"AMP101"}),
        (None, ("ALL",), set()),
        ((), (), set()),
        # The narrower word wins.
        (("AMP201",), ("AMP2",), {"AMP201"}),
        (("AMP2",), ("AMP201",), {"AMP202", "AMP299"}),
        (("AMP2", "AMP201"), ("AMP20",), {"AMP201", "AMP299"}),
        (("ALL",), ("AMP2",), {"AMP101"}),
        # A name is as narrow as its code, and the excluding word wins a tie.
        (("clip-before-unscale",), ("AMP2",), {"AMP201"}),
        (("AMP201",), ("clip-before-unscale",), set()),
        (("AMP2",), ("AMP2",), set()),
    ],
)
def test_words_become_codes(select: tuple[str, ...] | None, ignore: tuple[str, ...], on: set[str]) -> None:
    assert resolve_codes(select, ignore, RULES) == on


@pytest.mark.parametrize(
    ("word", "nearest"),
    [
        ("AMP2O1", "AMP201"),
        ("AMP102", "AMP101"),
        ("clip-before-unscal", "clip-before-unscale"),
        ("clip_before_unscale", "clip-before-unscale"),
        ("AL", "ALL"),
        ("AMP7", "AMP"),
        # Among equally similar codes, the code with the same beginning.
        ("AMP210", "AMP201"),
        ("P201", "AMP201"),
    ],
)
def test_an_unknown_word_is_answered_with_the_nearest_right_one(word: str, nearest: str) -> None:
    for select, ignore in (((word,), ()), (None, (word,))):
        with pytest.raises(UnknownRule) as caught:
            resolve_codes(select, ignore, RULES)
        assert isinstance(caught.value, ValueError)
        assert caught.value.word == word
        assert caught.value.nearest_name.startswith(nearest)
        assert f"unknown rule {word!r}: did you mean {caught.value.nearest_name!r}?" in str(caught.value)


@pytest.mark.parametrize("word", ["", "zzzzzz", "x" * 100_000, "\x00"])
def test_a_word_like_no_rule_is_sent_to_the_list(word: str) -> None:
    with pytest.raises(UnknownRule, match=r"`amp-check rules` lists them all\.$"):
        resolve_codes((word,), (), RULES)


def test_rules_without_select_are_the_default_ones_even_when_one_is_ignored() -> None:
    assert "AMP299" not in resolve_codes(None, ("AMP101",), RULES)


@pytest.mark.parametrize(
    ("select", "ignore", "extend", "on"),
    [
        # Proven findings of a run from a rule that is off are on, unless the user selects rules.
        (None, (), (), {"AMP101", "AMP201", "AMP202", "AMP299 proven"}),
        (None, ("AMP101",), (), {"AMP201", "AMP202", "AMP299 proven"}),
        (None, ("AMP299",), (), {"AMP101", "AMP201", "AMP202"}),
        (None, (), ("AMP299",), {"AMP101", "AMP201", "AMP202", "AMP299"}),
        (("AMP201",), (), (), {"AMP201"}),
        (("ALL",), (), (), {"AMP101", "AMP201", "AMP202", "AMP299"}),
    ],
)
def test_what_is_on_in_runs(
    select: tuple[str, ...] | None, ignore: tuple[str, ...], extend: tuple[str, ...], on: set[str]
) -> None:
    assert resolve_for_runs(select, ignore, RULES, extend) == on


def test_what_is_on_in_runs_may_be_said_again() -> None:
    assert resolve_for_runs(("AMP201", "AMP299 proven"), (), RULES) == {"AMP201", "AMP299 proven"}
    with pytest.raises(UnknownRule):
        resolve_codes(("AMP298 proven",), (), RULES)


@pytest.mark.parametrize(
    ("select", "proven", "shown"),
    [
        ({"AMP299"}, False, True),
        ({"AMP299"}, True, True),
        ({"AMP299 proven"}, True, True),
        ({"AMP299 proven"}, False, False),
        ({"AMP201"}, True, False),
        (set(), False, False),
    ],
)
def test_a_rule_that_is_off_shows_what_a_run_has_proven(select: set[str], proven: bool, shown: bool) -> None:
    label = "scheduler:skipped" if proven else "scheduler:micro-batch"
    finding = Finding("AMP299", "rare-thing", "error", "message", Site("train.py", 1), label=label)
    assert is_selected(select, finding) is shown
