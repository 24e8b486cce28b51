"""Suppression comments: the findings that they suppress, and unused comments."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_amp_check import check_source
from pytest_amp_check.protocol.finding import Finding
from pytest_amp_check.protocol.rule import STATIC, Rule
from pytest_amp_check.protocol.rules import RULES
from pytest_amp_check.protocol.severities import WARNING
from pytest_amp_check.protocol.sites import Site
from pytest_amp_check.protocol.suppressions import Suppressions


def finding(line: int, end_line: int | None = None, code: str = "AMP201") -> Finding:
    return Finding(code, RULES[code].name, WARNING, "message", Site("train.py", line, 0, end_line))


def silenced(text: str, code: str = "AMP201") -> list[int]:
    """Return the lines on which a finding of a code is suppressed."""
    suppressions = Suppressions.from_text(text)
    return [
        line for line in range(1, text.count("\n") + 2) if suppressions.suppresses_finding(finding(line, code=code))
    ]


def idle(text: str, *findings: Finding, active: Iterable[str] = RULES) -> list[str]:
    """Return the unused suppressions after suppressing these findings."""
    suppressions = Suppressions.from_text(text)
    for each in findings:
        assert suppressions.suppresses_finding(each), each
    return [words for _, _, _, words in suppressions.find_unused(frozenset(active))]


class TestComments:
    @pytest.mark.parametrize(
        "comment",
        [
            "# amp: ignore[AMP201]",
            "# amp: ignore[AMP201] the threshold was tuned like this",
            "# amp: ignore[AMP201], it was tuned [sic]",
            "# amp: ignore [ AMP301 ,AMP201 ]",
            "#amp:ignore[AMP201]",
            "## amp: ignore[amp201]",
            "# amp: ignore[clip-before-unscale]",
            "# amp: ignore[AMP2]",
            "# amp: ignore[ALL]",
            "# amp: ignore[AMP201",
            "# amp: ignore AMP201 it was tuned",
            "# amp: ignore: AMP301, AMP201",
            "# amp: ignore amp201",
            "# amp: ignore - AMP201 was tuned",
            "# amp: ignore, AMP201",
            "# amp: ignore clip-before-unscale it was tuned",
            "# amp: ignore: missing-scaler-update, clip-before-unscale",
            "# amp: ignore clip-before-unscaled gradients",
            "# amp: ignore",
            "# amp: ignore it was tuned",
            "# type: ignore[arg-type]  # amp: ignore[AMP201]",
            "# amp: ignore[AMP201]  # type: ignore[arg-type]",
            "# noqa: AMP201",
            "# noqa:AMP201",
            "# noqa AMP201 it is meant",
            "# noqa[AMP201]",
            "# NoQA : amp201",
            "# noqa: E501,AMP201",
            "# noqa: E501 AMP201",
            "# noqa: AMP2",
            "# noqa",
            "#noqa it is meant",
            "# amp: ignore[AMP301] # noqa: AMP201",
        ],
    )
    def test_silences(self, comment: str) -> None:
        assert silenced(f"a = 1\nb = 2  {comment}\nc = 3\n") == [2]

    @pytest.mark.parametrize(
        "comment",
        [
            "# amp: ignore[AMP301]",
            "# amp: ignore[]",
            "# amp: ignore AMP301",
            "# amp: ignore amp301",
            "# amp: ignore - AMP301 was tuned",
            "# amp: ignore, AMP301",
            "# amp: ignore missing-scaler-update",
            "# amp: ignore: missing-scaler-update, AMP301",
            "# amp: ignore-AMP201",
            "# amp: ignored",
            "# amp: ignore-files",
            "# amp ignore[AMP301]",
            "# lamp: ignore",
            "# to silence it, write `# amp: ignore`",
            "# to silence it, write `# noqa`",
            "# noqa: E501",
            "# noqa: E501 and not AMP201",
            "# noqa: this one is meant",
            "# noqa: clip-before-unscale",
            "# noqaAMP201",
            "# noqa AMP202",
            "# noqa[AMP202]",
            "# noqa(AMP201)",
            "# noqa=AMP201",
            "# noqa - AMP201",
            "# noqa: [AMP201]",
            "# noqa: E501; AMP201",
            "# noqa[clip-before-unscale]",
            "# ruff: noqa",
            "# flake8: noqa: AMP201",
        ],
    )
    def test_does_not_silence(self, comment: str) -> None:
        assert silenced(f"a = 1\nb = 2  {comment}\nc = 3\n") == []

    @pytest.mark.parametrize("text", ["x = '# amp: ignore'\n", "x = '''\n# amp: ignore\n'''\n", 'x = f"{y}  # noqa"\n'])
    def test_strings_are_no_comments(self, text: str) -> None:
        assert silenced(text) == []
        assert idle(text) == []

    def test_windows_and_old_mac_line_ends(self) -> None:
        assert silenced("a = 1\r\nb = 2  # amp: ignore\r\nc = 3\r\n") == [2]
        assert Suppressions.from_text("a = 1\rb = 2  # amp: ignore\rc = 3\r").suppresses_finding(finding(2))
        for end in ("\r\n", "\r"):
            text = f"a = 1{end}# amp: ignore{end}b = 2{end}"
            assert [line for line in (1, 2, 3) if Suppressions.from_text(text).suppresses_finding(finding(line))] == [3]

    def test_form_feeds_end_no_line(self) -> None:
        assert silenced("a = 1\n\x0c\nb = 2  # amp: ignore\nc = '\x0c'\nd = 4\n") == [3]


CALL = """\
a = 1
clip(
    model,
    1.0,
)
b = 2
"""


def commented(text: str, line: int, comment: str = "# amp: ignore[AMP201]") -> str:
    """Return the text with a comment at the end of a line."""
    lines = text.split("\n")
    lines[line - 1] += f"  {comment}"
    return "\n".join(lines)


class TestReach:
    @pytest.mark.parametrize(
        ("line", "reach"), [(1, [1]), (2, [2, 3, 4, 5]), (3, [3]), (4, [4]), (5, [2, 3, 4, 5]), (6, [6])]
    )
    def test_a_trailing_comment_speaks_of_its_line_and_of_the_statement_that_begins_or_ends_there(
        self, line: int, reach: list[int]
    ) -> None:
        assert silenced(commented(CALL, line)) == reach

    @pytest.mark.parametrize("line", [2, 3, 4, 5])
    def test_a_finding_of_several_lines_is_silenced_from_each(self, line: int) -> None:
        assert Suppressions.from_text(commented(CALL, line)).suppresses_finding(finding(2, 5))
        assert not Suppressions.from_text(commented(CALL, 1)).suppresses_finding(finding(2, 5))
        assert not Suppressions.from_text(commented(CALL, 6)).suppresses_finding(finding(2, 5))

    def test_a_finding_for_a_block_is_silenced_from_its_head_alone(self) -> None:
        block = "with autocast():\n    a = 1\n    b = 2\n"
        assert Suppressions.from_text(commented(block, 1)).suppresses_finding(finding(1, 3))
        assert not Suppressions.from_text(commented(block, 2)).suppresses_finding(finding(1, 3))
        assert not Suppressions.from_text(commented(block, 3, "# noqa")).suppresses_finding(finding(1, 3))
        assert not Suppressions.from_text(commented(block, 1)).suppresses_finding(finding(2))

    def test_multi_line_strings_and_continued_lines(self) -> None:
        assert silenced("a = 1\nb = '''\nx\n'''  # amp: ignore\nc = 3\n") == [2, 3, 4]
        assert silenced("a = 1 + \\\n    2  # amp: ignore\nc = 3\n") == [1, 2]

    def test_several_statements_on_one_line(self) -> None:
        assert silenced("a = 1; b = 2  # amp: ignore\nif a: b = 3\n") == [1]

    def test_a_comment_on_a_line_of_its_own_speaks_of_the_next_statement(self) -> None:
        assert silenced("a = 1\n# amp: ignore[AMP201]\n# because\n\nb = (\n    2\n)\nc = 3\n") == [5, 6, 7]
        assert silenced("if a:\n    # noqa: AMP201\n    b = 2\n    c = 3\n") == [3]
        assert silenced("if a:\n    b = 2\n# amp: ignore\nelse:\n    c = 3\n") == [4]
        assert silenced("a = 1\n# amp: ignore[AMP201]\n") == []

    def test_decorators_belong_to_what_they_decorate(self) -> None:
        text = "# amp: ignore\n@autocast()\n@other(\n    1\n)\ndef f(\n    x\n):\n    pass\n"
        assert silenced(text) == [2, 3, 4, 5, 6, 7, 8]

    def test_a_comment_on_a_line_of_its_own_inside_brackets_speaks_of_the_next_line(self) -> None:
        assert silenced("clip(\n    a,\n    # amp: ignore\n    # because\n    b,\n    c,\n)\n") == [5]

    def test_a_bare_noqa_on_a_line_of_its_own_means_nothing(self) -> None:
        assert silenced("# noqa\na = 1\n") == []

    def test_text_that_breaks_off(self) -> None:
        assert silenced("a = 1  # amp: ignore\nb = (\n") == [1]
        assert silenced("# amp: ignore\na = (  # amp: ignore\n") == [2]
        assert silenced("a = 1  # amp: ignore\nif b:\n        c\n    d  # amp: ignore\n")[0] == 1


class TestWholeFile:
    @pytest.mark.parametrize(
        "head",
        [
            "",
            "#!/usr/bin/env python\n",
            '"""Trains."""\n',
            "import torch\nfrom torch import (\n    nn\n)\n\n",
        ],
    )
    def test_above_the_first_statement(self, head: str) -> None:
        text = f"{head}# amp: ignore-file[AMP201, AMP3] a demonstration\na = 1\n"
        every = list(range(1, text.count("\n") + 2))
        assert silenced(text) == every
        assert silenced(text, "AMP301") == every
        assert silenced(text, "AMP202") == []

    def test_of_every_rule(self) -> None:
        assert silenced("# amp: ignore-file\na = 1\n", "AMP110") == [1, 2, 3]

    @pytest.mark.parametrize("text", ["a = 1\n# amp: ignore-file[AMP201]\n", "a = 1  # amp: ignore-file[AMP201]\n"])
    def test_too_low(self, text: str) -> None:
        assert silenced(text) == []
        assert idle(text) == ["AMP201, below the first statement"]

    def test_too_low_of_every_rule(self) -> None:
        assert idle("a = 1\n# amp: ignore-file\n") == ["ignore-file must come before the first statement"]


class TestUnused:
    def test_where_it_stands(self) -> None:
        suppressions = Suppressions.from_text("a = 'é'  # why: # amp: ignore[AMP201] because\n")
        assert suppressions.find_unused(RULES) == [(1, 16, 37, "AMP201")]

    def test_used(self) -> None:
        assert idle("a = 1  # amp: ignore[AMP201]\n", finding(1)) == []
        assert idle("a = 1  # amp: ignore\n", finding(1)) == []
        assert idle("a = 1  # noqa: AMP201\n", finding(1)) == []
        assert idle("a = 1  # amp: ignore[clip-before-unscale]\n", finding(1)) == []
        assert idle("# amp: ignore-file[AMP2]\na = 1\n", finding(2)) == []

    def test_only_what_is_idle_in_a_list(self) -> None:
        text = "a = 1  # amp: ignore[AMP201, AMP301, step-without-update]\n"
        assert idle(text, finding(1)) == ["AMP301; step-without-update is no rule"]

    @pytest.mark.parametrize(
        ("comment", "words"),
        [
            ("# amp: ignore[AMP201]", ["AMP201"]),
            ("# amp: ignore[AMP999]", ["AMP999 is no rule"]),
            ("# amp: ignore[AMP201 it was tuned", ["AMP201; it is no rule; was is no rule; tuned is no rule"]),
            ("# amp: ignore[]", ["its list is empty"]),
            ("# amp: ignore", ["no rule finds anything here"]),
            ("# amp: ignore[AMP2]", ["AMP2"]),
            ("# amp: ignore - AMP201", ["AMP201"]),
            ("# amp: ignore clip-before-unscale, AMP202 it was tuned", ["clip-before-unscale; AMP202"]),
            ("# noqa: AMP201, E501", ["AMP201"]),
            ("# noqa AMP201", ["AMP201"]),
            ("# noqa[AMP201, AMP202]", ["AMP201; AMP202"]),
            ("# noqa: AMP999", ["AMP999 is no rule"]),
            ("# amp: ignore[AMP201] # noqa: AMP201", ["AMP201", "AMP201"]),
            ("# noqa: E501", []),
            ("# noqa", []),
        ],
    )
    def test_unused(self, comment: str, words: list[str]) -> None:
        assert idle(f"a = 1  {comment}\n") == words

    def test_what_was_not_looked_for_is_not_reported(self) -> None:
        text = "a = 1  # amp: ignore[AMP201, AMP204]\nb = 2  # amp: ignore[AMP2]\nc = 3  # amp: ignore\n"
        assert idle(text, active=["AMP204", "AMP902"]) == ["AMP204"]
        assert idle(text, active=()) == []
        # A rule that is off by default is still reported as unused if it is selected.
        assert idle("a = 1  # amp: ignore[AMP702]\n", active=["AMP702"]) == ["AMP702"]
        assert idle("a = 1  # amp: ignore[AMP702]\n", active=["AMP204"]) == []
        assert idle(text, active=[code for code in RULES if code.startswith("AMP2")]) == ["AMP201; AMP204", "AMP2"]

    def test_rules_that_are_off_by_default_do_not_protect_a_wide_suppression(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        example = RULES["AMP201"]
        seldom = Rule(
            "AMP299",
            "seldom",
            WARNING,
            "A rule that is off.",
            effect="training fails",
            violations=example.violations,
            rationale="why",
            harm="harm",
            bad_example="x = 1  # AMP299",
            good_example="x = 1",
            fix_advice="fix",
            sources=("source",),
            detected_by=STATIC,
            on_by_default=False,
        )
        active = frozenset(RULES)
        monkeypatch.setitem(RULES, "AMP299", seldom)
        assert idle("a = 1  # amp: ignore[AMP2]\n", active=active) == ["AMP2"]
        assert idle("a = 1  # amp: ignore[AMP299]\n", active=active) == []

    def test_only_its_own_name_silences_the_finding_about_a_suppression(self) -> None:
        assert silenced("a = 1  # amp: ignore\n", "AMP902") == []
        assert silenced("a = 1  # amp: ignore[AMP9]\n", "AMP902") == []
        assert silenced("a = 1  # noqa\n", "AMP902") == []
        assert silenced("a = 1  # amp: ignore[AMP201, AMP902]\n", "AMP902") == [1]
        assert silenced("a = 1  # amp: ignore[AMP201, unused-suppression]\n", "AMP902") == [1]
        assert idle("a = 1  # amp: ignore[AMP902]\n") == []


FRAGMENTS = ["a = 1", "(", ")", "  b", "'''", "@d", "def f():", "    pass", "\\", "\x0c", "é", "if a:"]
COMMENTS = [
    "",
    "  # amp: ignore",
    "# amp: ignore[AMP201]",
    "# noqa",
    "# amp: ignore-file",
    "# amp: ignore[",
    "# noqa: AMP2,x",
]


@given(st.lists(st.tuples(st.sampled_from(FRAGMENTS), st.sampled_from(COMMENTS)), max_size=12))
def test_any_text_is_read(lines: list[tuple[str, str]]) -> None:
    text = "\n".join(code + comment for code, comment in lines)
    suppressions = Suppressions.from_text(text)
    count = text.count("\n") + 1
    before = suppressions.find_unused(RULES)
    used = [line for line in range(1, count + 1) if suppressions.suppresses_finding(finding(line))]
    after = suppressions.find_unused(RULES)
    # A used suppression is no longer reported, and nothing else changes.
    assert set(after) <= set(before)
    assert after == before or used
    for line, column, end_column, words in before:
        source = text.split("\n")[line - 1]
        assert source[column] == "#"
        assert column < end_column <= len(source)
        assert words


@pytest.mark.parametrize(
    ("text", "ours"),
    [
        ("x = 1  # amp: ignore\n", True),
        ("if args.amp: pass\n", True),
        ("x = 1  # noqa: AMP201\n", True),
        ("x = 1  # noqa: E501, AMP201\n", True),
        ("AMP = 1  # noqa: E501\n", False),
        ("AMP = 1  # noqa\n", False),
        ("x = 1  # noqa\n", False),
        ("AMP = 1\n", False),
        ("x = 1\n", False),
    ],
)
def test_whether_a_text_may_hold_a_comment_for_this_tool(text: str, ours: bool) -> None:
    assert Suppressions.has_own_comment(text) is ours


def test_a_finding_of_the_first_statement_is_silenced_from_each_of_its_lines() -> None:
    first = "clip(\n    model,\n    1.0,\n)\n"
    for line in range(1, 5):
        assert Suppressions.from_text(commented(first, line)).suppresses_finding(finding(1, 4))


def test_a_comment_behind_a_line_that_goes_on_speaks_of_no_statement() -> None:
    assert silenced("a = 1 + 1 \\\n# amp: ignore[AMP201]\n\nb = 2\n") == []


@pytest.mark.parametrize(
    ("text", "late"),
    [
        ("'A docstring.'\n# amp: ignore-file[AMP201]\n", False),
        ("import X\nfrom X import y\n# amp: ignore-file[AMP201]\n", False),
        ("X = 1\n# amp: ignore-file[AMP201]\n", True),
        ("x()  # amp: ignore-file[AMP201]\n", True),
    ],
)
def test_a_comment_for_a_file_stands_above_its_first_statement(text: str, late: bool) -> None:
    assert idle(text) == ["AMP201, below the first statement" if late else "AMP201"]


def test_above_a_statement_that_breaks_off_a_comment_speaks_of_its_beginning() -> None:
    assert Suppressions.from_text("# amp: ignore[AMP201]\nclip(model,\n").suppresses_finding(finding(2))


def test_a_word_that_is_no_rule_silences_nothing() -> None:
    assert silenced("a = 1  # amp: ignore[AMP999]\n") == []


def test_unused_comments_are_found_with_their_positions() -> None:
    text = "a = 1  # E1 noqa: AMP201 # noqa: AMP202\nb = 2  # note # amp: ignore[AMP207]\n"
    places = Suppressions.from_text(text).find_unused(frozenset(RULES))
    assert [(line, text.split("\n")[line - 1][start:end], words) for line, start, end, words in places] == [
        (1, "# noqa: AMP202", "AMP202"),
        (2, "# amp: ignore[AMP207]", "AMP207"),
    ]


@pytest.mark.parametrize(
    ("comment", "remedy"),
    [
        ("# amp: ignore(AMP401)", "`# amp: ignore[AMP401]`"),
        ("# amp: ignore (AMP401, AMP201)", "`# amp: ignore[AMP401, AMP201]`"),
        ("# amp: ignored[AMP201]", "`# amp: ignore[AMP201]`"),
        ("# amp: noqa[AMP201]", "`# amp: ignore[AMP201]`"),
        ("# amp: noqa", "`# amp: ignore[CODE]`"),
        ("# amp: skip[AMP201]", "`# amp: ignore[AMP201]`"),
        ("# amp: disable", "`# amp: disable[CODE]`"),
        ("# amp: disable=AMP201", "`# amp: disable[AMP201]`"),
        ("# amp: ignore {AMP201}", "`# amp: ignore[AMP201]`"),
        ("# amp: ignore<AMP201>", "`# amp: ignore[AMP201]`"),
        ("# amp: ignore=AMP201", "`# amp: ignore[AMP201]`"),
        ("# amp: ignore-AMP201", "`# amp: ignore[AMP201]`"),
        ("# amp: ignore - AMP201", None),
        ("# amp: ignore clip-before-unscale", None),
        ("# AMP: ignore[AMP201]", "`# amp: ignore[AMP201]`"),
        ("# amp: IGNORE[AMP201]", "`# amp: ignore[AMP201]`"),
        ("# Amp: Disable[amp201, AMP2]", "`# amp: disable[AMP201, AMP2]`"),
        ("# amp : ignore[AMP201]", "`# amp: ignore[AMP201]`"),
        ("# amp ignore[AMP201]", "`# amp: ignore[AMP201]`"),
        ("# amp: ignore_file[AMP2]", "`# amp: ignore-file[AMP2]`"),
        ("# amp_check: ignore[AMP201]", "`# amp: ignore[AMP201]`"),
        ("# ampcheck: noqa: AMP201", "`# amp: ignore[AMP201]`"),
        ("# AMP: disabled for float32", None),
        ("# AMP: ignore the scale (see AMP201)", None),
        ("# amp: ignore[amp201]", None),
        ("# amp: disable: AMP201", "`# amp: disable[AMP201]`"),
        ("# amp-check: ignore[AMP201] reason", "`# amp: ignore[AMP201]`"),
        ("# pytest-amp-check: ignore-file[AMP201]", "`# amp: ignore-file[AMP201]`"),
        ("# amp: enable[AMP201]", "`# amp: disable[AMP201]` above it, with the same list"),
        ("# amp: ignore[AMP201]", None),
        ("# amp: ignore: AMP201", None),
        ("# amp: ignore AMP201 the reason", None),
        ("# amp: disable it while the model is evaluated", None),
        ("# amp: this region runs in float16 (see AMP201)", None),
        ("# see amp: torch.amp", None),
        ("# noqa(AMP201)", "`# noqa: AMP201`"),
        ("# noqa: (AMP201, AMP301)", "`# noqa: AMP201, AMP301`"),
        ("# noqa=AMP201", "`# noqa: AMP201`"),
        ("# noqa-AMP201", "`# noqa: AMP201`"),
        ("# NOQA - amp201", "`# noqa: AMP201`"),
        ("# noqaAMP201", "`# noqa: AMP201`"),
        ("# noqa: [AMP201]", "`# noqa: AMP201`"),
        ("# noqa: AMP-201", "`# noqa: AMP201`"),
        ("# noqa: E501; AMP201", "`# noqa: E501, AMP201`"),
        ("# noqa: clip-before-unscale", "`# noqa: AMP201`"),
        ("# noqa[clip-before-unscale]", "`# noqa: AMP201`"),
        ("# ruff: noqa: AMP201", "`# amp: ignore-file[AMP201]` above the first statement"),
        ("# noqa: AMP201", None),
        ("# noqa: E501, AMP201", None),
        ("# noqa", None),
        ("# noqa: E501", None),
        ("# noqa[E501]", None),
        ("# noqa(E501)", None),
        ("# noqa[]", None),
        ("# noqa because of AMP201", None),
        ("# noqa: E501 and not AMP201", None),
        ("# flake8: noqa", None),
    ],
)
def test_a_comment_in_another_form_silences_nothing_and_is_reported(comment: str, remedy: str | None) -> None:
    text = f"a = 1  {comment}\n"
    read = Suppressions.from_text(text)
    assert [each.remedy for each in read.malformed_comments] == ([] if remedy is None else [remedy])
    if remedy is not None:
        assert silenced(text) == []
        (found,) = read.malformed_comments
        assert text[found.column : found.end_column] == comment


@pytest.mark.parametrize(
    ("comment", "remedy"),
    [
        ("# noqa[AMP201]", "`# noqa: AMP201`"),
        ("# noqa AMP201 it is meant", "`# noqa: AMP201`"),
        ("# noqa[E501, AMP201]", "`# noqa: E501, AMP201`"),
    ],
)
def test_a_noqa_that_other_linters_take_for_all_rules_silences_its_codes_and_is_reported(
    comment: str, remedy: str
) -> None:
    text = f"a = 1  {comment}\n"
    assert silenced(text) == [1]
    assert silenced(text, "AMP301") == []
    (found,) = Suppressions.from_text(text).malformed_comments
    assert (found.remedy, found.is_read) == (remedy, True)


@pytest.mark.parametrize(
    ("comment", "message"),
    [
        ("# noqa[AMP201]", "Other linters take this comment for a suppression of every rule: write `# noqa: AMP201`"),
        ("# noqa[AMP301]", "This suppression silences nothing (AMP301): remove it"),
        ("# noqa(AMP201)", "This comment silences nothing: write `# noqa: AMP201`"),
        ("# noqa: AMP201", None),
        ("# noqa: E501", None),
        ("# noqa", None),
    ],
)
def test_a_check_reports_a_noqa_in_another_form_once(comment: str, message: str | None) -> None:
    text = f"""\
import torch

def train(model, optimizer, batches, scaler=torch.amp.GradScaler("cuda")):
    for batch in batches:
        with torch.autocast("cuda"):
            loss = model(batch)
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  {comment}
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""
    found = [finding.message for finding in check_source(text) if finding.code == "AMP902"]
    assert found == ([] if message is None else [message])


def test_a_check_reports_the_comment_and_what_it_does_not_silence() -> None:
    text = """\
import torch

def train(model, optimizer, batches, scaler=torch.amp.GradScaler("cuda")):
    for batch in batches:
        with torch.autocast("cuda"):
            loss = model(batch)
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP: ignore[AMP201]
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""
    assert [(found.code, found.line) for found in check_source(text)] == [("AMP201", 8), ("AMP902", 8)]
    assert check_source(text.replace("# AMP:", "# amp:")) == []


def test_a_range_ends_with_its_own_list_or_the_file() -> None:
    text = """\
a = 1
# amp: disable[AMP201]
b = 2
# amp: disable[AMP202]
c = 3
# amp: enable[AMP201]
d = 4
"""
    assert silenced(text) == [2, 3, 4, 5, 6]
    assert silenced(text, "AMP202") == [4, 5, 6, 7, 8]
    assert silenced(text, "AMP203") == []


def test_an_idle_range_is_reported() -> None:
    assert idle("# amp: disable[AMP201]\na = 1\n# amp: enable[AMP201]\n") == ["AMP201"]
    assert idle("# amp: disable[AMP201]\na = 1\n# amp: enable[AMP201]\n", finding(2)) == []
