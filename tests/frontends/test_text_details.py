"""Building blocks of text: units, shares, columns, tables, colors and streams, at the limits of each."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from pytest_amp_check.frontends import charts, finding_text, output, printable, rule_text, source_lines, summaries
from pytest_amp_check.protocol.finding import Finding, TraceStep
from pytest_amp_check.protocol.fix import SAFE, UNSAFE, Edit, Fix
from pytest_amp_check.protocol.rules import RULES
from pytest_amp_check.protocol.sites import Site

# Numbers.


@pytest.mark.parametrize(
    ("largest", "unit"),
    [
        (0, (1, "B")),
        (1023, (1, "B")),
        (1024, (1024, "KiB")),
        (2**20 - 1, (1024, "KiB")),
        (2**20, (2**20, "MiB")),
        (2**30, (2**30, "GiB")),
        (2**40, (2**40, "TiB")),
        (2**60, (2**40, "TiB")),
    ],
)
def test_bytes_are_read_in_the_largest_unit_that_fits(largest: int, unit: tuple[int, str]) -> None:
    assert charts.find_unit(largest) == unit


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (0.0, "0 %"),
        (0.0004, "<0.1 %"),
        (0.0005, "0.1 %"),
        (0.5, "50.0 %"),
        (0.9994, "99.9 %"),
        (0.9996, ">99.9 %"),
        (1.0, "100 %"),
        (2.5, "250.0 %"),
    ],
)
def test_a_share_is_never_rounded_to_nothing_or_all(share: float, said: str) -> None:
    assert charts.format_percent(share) == said


@pytest.mark.parametrize(
    ("scale", "said"),
    [
        (2.0**23, "8388608"),
        (2.0**24, "2^24"),
        (3.0 * 2.0**24, "5.03316e+07"),
        (1.0, "1"),
        (0.25, "0.25"),
        (2.0**-20, "9.53674e-07"),
        (1.5, "1.5"),
    ],
)
def test_a_scale_is_in_full_while_it_is_short(scale: float, said: str) -> None:
    assert charts.format_scale(scale) == said


@pytest.mark.parametrize(("count", "said"), [(0, "0 steps"), (1, "1 step"), (2, "2 steps"), (1234, "1,234 steps")])
def test_a_noun_has_its_number(count: int, said: str) -> None:
    assert charts.format_count(count, "step") == said


def test_dtypes_are_counted_the_most_frequent_first() -> None:
    assert charts.count_dtypes(["float32", "bfloat16, float16", "float16", ""]) == [
        ("float16", 2),
        ("bfloat16", 1),
        ("float32", 1),
    ]


# Characters.


def test_characters_that_move_the_cursor_or_change_the_order_are_escaped() -> None:
    assert printable.make_visible("a\x00\x1b[2J\x7f\x80\x9f\u202e\u2069\u061c\u200e") == (
        "a\\x00\\x1b[2J\\x7f\\x80\\x9f\\u202e\\u2069\\u061c\\u200e"
    )
    # White space that a diff needs is kept, and so are characters that are merely not printable.
    assert printable.make_visible("a\tb\nc\fd\xa0e\u2028f\u200bg\ud800") == "a\tb\nc\fd\xa0e\u2028f\u200bg\ud800"
    assert printable.make_visible("a\rb\vc") == "a\\x0db\\x0bc"
    assert [printable.is_hidden(character) for character in " \x1f~\x7f\x9f\xa0"] == [
        False,
        True,
        False,
        True,
        True,
        False,
    ]


def frame(line: str, column: int, end_column: int, end_line: int = 1, path: str = "train.py") -> list[str]:
    site = Site(path, 1, column, end_line, end_column)
    return [
        each.rstrip("\n")
        for each in output.render_plain(finding_text.format_frame(site, source_lines.SourceLines({path: line})))
    ]


def test_marks_stand_under_characters_of_every_width() -> None:
    # A wide character takes two columns, a combining character none, and a tab four.
    assert frame("\u4e16\u754c = bad", 5, 8)[1:3] == ["1 | \u4e16\u754c = bad", "  |        ^^^"]
    assert frame("e\u0301 = bad", 5, 8)[1:3] == ["1 | e\u0301 = bad", "  |     ^^^"]
    assert frame("\tx = bad", 5, 8)[1:3] == ["1 |     x = bad", "  |         ^^^"]


@pytest.mark.parametrize(
    ("start", "shown", "mark"),
    [
        # Of 400 characters, 160 are shown: from the beginning, around the mark, or up to the end.
        (0, "#" * 160 + "...", 0),
        (40, "#" * 160 + "...", 40),
        (41, "..." + "#" * 160 + "...", 43),
        (239, "..." + "#" * 160 + "...", 43),
        (281, "..." + "#" * 160, 44),
        (399, "..." + "#" * 160, 162),
    ],
)
def test_a_long_line_is_cut_around_its_mark(start: int, shown: str, mark: int) -> None:
    assert frame("#" * 400, start, start + 1)[1:3] == [f"1 | {shown}", f"  | {' ' * mark}^"]


def test_a_line_of_160_characters_is_shown_as_it_is() -> None:
    assert frame("#" * 160, 159, 160)[1:3] == [f"1 | {'#' * 160}", f"  | {' ' * 159}^"]
    assert frame("#" * 161, 0, 1)[1] == f"1 | {'#' * 160}..."


def test_a_range_of_five_lines_is_shown_in_full_and_of_six_cut() -> None:
    lines = "\n".join(f"line{number}" for number in range(1, 9))
    five, six = frame(lines, 2, 5, end_line=5), frame(lines, 2, 5, end_line=6)
    assert five == [
        "  |",
        "1 | line1",
        "  |   ^^^",
        *(row for number in (2, 3, 4) for row in (f"{number} | line{number}", "  | ^^^^^")),
        "5 | line5",
        "  | ^^^^^",
        "6 | line6",
        "  |",
    ]
    assert six[:-3] == five[:-2]
    assert six[-3:] == ["6 | line6", "  | ...", "  |"]


def test_the_numbers_of_lines_are_as_wide_as_the_last() -> None:
    lines = "\n".join(f"line{number}" for number in range(1, 12))
    shown = output.render_plain(
        finding_text.format_frame(Site("a.py", 9, 0, 9, 4), source_lines.SourceLines({"a.py": lines}))
    )
    assert [line.split("|")[0] for line in shown] == ["   ", " 8 ", " 9 ", "   ", "10 ", "   "]


def test_blank_lines_around_a_finding_are_left_out() -> None:
    site = Site("a.py", 2, 0, 2, 3)
    shown = output.render_plain(finding_text.format_frame(site, source_lines.SourceLines({"a.py": "  \nbad\n\n"})))
    assert [line.rstrip("\n") for line in shown] == ["  |", "2 | bad", "  | ^^^", "  |"]


# Tables.


def test_counts_of_rules_stand_in_columns() -> None:
    records = summaries.count_by_rule([("AMP201", "clip", "error")] * 1000 + [("AMP301", "sum", "info")] * 2)
    assert output.render_plain(summaries.format_statistics(records)) == [
        "1000  AMP201  [error]  clip\n",
        "   2  AMP301  [info]   sum\n",
    ]
    assert summaries.format_statistics([]) == []


def test_what_was_passed_over_is_named_where_it_is_little() -> None:
    few, many = [f"{number}.py" for number in range(12)], [f"{number}.py" for number in range(1013)]
    assert output.render_plain(summaries.format_passed_over({"no training": many, "too large": few})) == [
        "1,013  passed over, no training\n",
        f"   12  passed over, too large: {', '.join(few)}\n",
    ]
    assert summaries.format_passed_over({}) == []


def test_places_of_one_rule_are_named_up_to_the_twelfth() -> None:
    def found(count: int, cell: int | None = None) -> list[Finding]:
        sites = [Site("a.py", number, 0, number, 3, cell=cell) for number in range(1, count + 1)]
        return [Finding("AMP901", "deprecated-amp-api", "info", "old", site) for site in sites]

    (line,) = output.render_plain(finding_text.format_concise(found(12)))
    assert "in 12 places (lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12): use" in line
    (line,) = output.render_plain(finding_text.format_concise(found(1013)))
    assert "in 1,013 places (lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 and 1,001 more): use" in line
    (line,) = output.render_plain(finding_text.format_concise(found(2, cell=3)))
    assert "in 2 places (cell 3 line 1, cell 3 line 2): use" in line


def test_the_catalogue_says_what_is_off_and_what_can_be_fixed() -> None:
    rows = dict(zip(RULES, output.render_plain(rule_text.format_rules(RULES.values())), strict=True))
    for code, rule in RULES.items():
        assert rows[code].endswith(
            rule.summary
            + ("" if rule.on_by_default else " (off unless selected)")
            + {None: "", SAFE: " [--fix]", UNSAFE: " [--fix --unsafe-fixes]"}[rule.applicability or None]
            + "\n"
        )
    # Names and severities are in columns, with two spaces after the longest of each.
    wide = max(len(rule.name) for rule in RULES.values())
    starts = {
        (rows[code].index(rule.severity, 8 + wide), rows[code].index(rule.summary)) for code, rule in RULES.items()
    }
    assert starts == {(6 + 2 + wide + 2, 6 + 2 + wide + 2 + len("warning") + 2)}


def test_a_page_of_a_rule_says_how_its_fix_is_made_and_who_finds_it() -> None:
    for rule in RULES.values():
        page = rule_text.rule_markdown(rule)
        assert ("The fix is safe: " in page) is (rule.applicability == SAFE)
        assert ("The fix is opt-in: " in page) is (rule.applicability == UNSAFE)
        assert ("`amp-check check --fix`" in page) is (rule.applicability == SAFE)
        assert ("`amp-check check --fix --unsafe-fixes`" in page) is (rule.applicability == UNSAFE)
        assert ("It is off unless selected" in page) is (not rule.on_by_default)
        assert (" Found in source only." in page) is (rule.detected_by == "static")
        assert (" Found in runs only." in page) is (rule.detected_by == "runtime")
        assert "## Correct code that is not reported" not in page
        shown = rule_text.rule_markdown(rule, [("it is right", "x = 1\n")])
        assert shown == f"{page}\n## Correct code that is not reported\n\n- it is right\n\n```python\nx = 1\n```\n"
        assert f'```toml\n[tool.amp-check]\nignore = ["{rule.code}"]\n```\n\n## Sources\n\n- ' in page


def test_the_short_reason_of_a_rule_ends_with_a_sentence() -> None:
    for rule in RULES.values():
        reason = rule_text.short_rule_markdown(rule).split("\n\n## Change\n")[0].rsplit("\n\n", 1)[1]
        assert reason.endswith("."), rule.code
        assert reason.count("`") % 2 == 0, rule.code
        assert " ".join(reason.split()) in rule_text.rule_summary_markdown(rule, "")


# Findings.


def finding(applicability: str | None = None, **more: Any) -> Finding:
    found = Finding("AMP201", "clip", "error", "scaled", Site("a.py", 2, 0, 2, 4), **more)
    if applicability is not None:
        edits = (Edit(2, 0, 2, 0, "scaler.unscale_(optimizer)\n"),)
        found.fix = Fix(applicability, "unscale first", lambda: edits)
    return found


@pytest.mark.parametrize(
    ("applicability", "unsafe", "marked"),
    [(None, True, False), (SAFE, False, True), (SAFE, True, True), (UNSAFE, False, False), (UNSAFE, True, True)],
)
def test_a_finding_is_marked_where_its_fix_would_be_made(applicability: str | None, unsafe: bool, marked: bool) -> None:
    (line,) = output.render_plain(finding_text.format_concise([finding(applicability)], unsafe=unsafe))
    assert line == f"a.py:2:1: AMP201{' [*]' if marked else ''} [error] clip: scaled\n"
    for shown in (
        output.render_plain(
            finding_text.format_full([finding(applicability)], source_lines.SourceLines({"a.py": ""}), unsafe=unsafe)
        ),
        output.render_plain(finding_text.format_grouped([finding(applicability)], unsafe=unsafe)),
    ):
        assert (" [*]" in "".join(shown)) is marked


@pytest.mark.parametrize(("applicability", "flags"), [(SAFE, "--fix"), (UNSAFE, "--fix --unsafe-fixes")])
def test_a_fix_says_with_which_flags_it_is_made(applicability: str, flags: str) -> None:
    shown = output.render_plain(
        finding_text.format_full([finding(applicability)], source_lines.SourceLines({"a.py": "x = 1\nclip()\n"}))
    )
    assert shown[-3:] == [f"  fix: unscale first ({flags})\n", "  more: amp-check explain AMP201\n", "\n"]


@pytest.mark.parametrize(
    ("condition", "has_trace", "lead"),
    [
        ("", False, "  possible: it depends on values that the code does not show\n"),
        ("if the inputs are in low precision", False, "  only if the inputs are in low precision\n"),
        ("when use_amp is true", False, "  only on some paths, when use_amp is true\n"),
        ("", True, "  trace of one path with the mistake:\n"),
    ],
)
def test_a_finding_that_is_not_certain_says_on_which_paths(condition: str, has_trace: bool, lead: str) -> None:
    steps = (
        (TraceStep(Site("a.py", 1, 0, 1, 3), "scales"), TraceStep(Site("a.py", 2, 0, 2, 3), "clips"))
        if has_trace
        else ()
    )
    shown = output.render_plain(
        finding_text.format_full(
            [finding(certain=False, condition=condition, trace=steps)],
            source_lines.SourceLines({"a.py": "one()\ntwo()\n"}),
        )
    )
    assert lead in shown
    assert ("    1. a.py:1: scales\n" in shown) is has_trace
    # The code frame shows the line.
    assert "         one()\n" not in shown


def test_the_places_of_a_remedy_stand_below_the_help() -> None:
    found = finding(remedy="call it before the step")
    found.edit_places = (
        TraceStep(Site("a.py", 9, function="train"), "move it here", is_event=False),
        TraceStep(Site("b.py", 2, function="<module>"), "pass `scaler`", is_event=False),
    )
    shown = "".join(
        output.render_plain(finding_text.format_full([found], source_lines.SourceLines({"a.py": "one()\n"})))
    )
    said = "  help: call it before the step\n  where: a.py:9 in `train`: move it here\n"
    assert said + "  where: b.py:2: pass `scaler`\n  more:" in shown
    # A line beside the cause is in the code frame.
    sources = source_lines.SourceLines({"a.py": "one()\n" * 8 + "    step()\n", "b.py": "1\nsave()\n"})
    quoted = "".join(output.render_plain(finding_text.format_full([found], sources)))
    assert f"{said}         step()\n  where: b.py:2: pass `scaler`\n         save()\n  more:" in quoted
    near = finding(remedy="call it before the step")
    near.edit_places = (TraceStep(Site("a.py", 2), "move it here", is_event=False),)
    assert "move it here\n  more:" in "".join(output.render_plain(finding_text.format_full([near], sources)))
    found.edit_places = ()
    without = output.render_plain(finding_text.format_full([found], source_lines.SourceLines({})))
    assert not any("where:" in line for line in without)


# Streams.


def test_a_trace_quotes_each_line_once_and_none_of_the_code_frame() -> None:
    rows = "one()\ntwo()\nthree()\nfour()\nfive()\n"
    steps = [TraceStep(Site("a.py", row, 0, row, 3), f"step {number}") for number, row in enumerate((1, 4, 1, 5, 3))]
    made = Finding("AMP000", "clip", "error", "m", Site("a.py", 4, 0, 4, 4), trace=tuple(steps))
    events = finding_text.finding_data(made, source_lines.SourceLines({"a.py": rows}))["events"]
    assert [event["source"] for event in events] == ["one()", "", "", "", ""]
    assert [event["text"] for event in events] == [f"step {number}" for number in range(5)]


def test_a_trace_of_the_shown_line_alone_is_left_out() -> None:
    site, caller = Site("a.py", 2, 0, 2, 3), Site("a.py", 1, 0, 1, 3)
    called = Site("a.py", 2, 0, 2, 3, caller=caller)
    for step, shown in ((site, False), (called, True), (caller, True)):
        made = Finding("AMP000", "clip", "error", "m", site, trace=(TraceStep(step, "clips"),))
        data = finding_text.finding_data(made, source_lines.SourceLines({"a.py": "one()\ntwo()\n"}))
        assert bool(data["events"]) is shown


def _lines_of(finding: Finding) -> list[str]:
    return "".join(output.render_plain(finding_text.format_finding(finding, source_lines.SourceLines()))).splitlines()


def test_a_finding_says_what_its_violation_does_to_training() -> None:
    site = Site("train.py", 3)
    clipped = Finding("AMP201", "clip-before-unscale", "error", "m: r", site, label="clip@scaled", remedy="r")
    late = Finding("AMP201", "clip-before-unscale", "error", "m: r", site, label="clip@stepped", remedy="r")
    assert clipped.effect == RULES["AMP201"].effect != late.effect == RULES["AMP201"].violations["clip@stepped"].effect
    assert f"  effect: {clipped.effect}" in _lines_of(clipped)
    assert f"  effect: {late.effect}" in _lines_of(late)
    assert late.as_dict()["effect"] == late.effect


def test_a_finding_of_no_rule_has_no_effect() -> None:
    finding = Finding("AMP000", "other", "error", "m", Site("train.py", 3))
    assert not [line for line in _lines_of(finding) if "effect" in line]
    assert finding.as_dict()["effect"] is None


@pytest.mark.parametrize("style", sorted({*output.STYLES, "source"}))
def test_every_style_can_be_painted(style: str) -> None:
    (line,) = output.render_colored([[("x = 1", style)]], use_color=True)
    assert output.render_colored([[("x = 1", style)]], use_color=False) == ["x = 1"]
    assert ("\x1b[" in line) is (style != "")


def test_everything_that_is_shown_can_be_painted() -> None:
    """Each of these texts uses only known styles."""
    rules = rule_text.format_rules(RULES.values())
    records = summaries.count_by_rule((rule.code, rule.name, rule.severity) for rule in RULES.values())
    found = [finding(applicability, certain=False, condition="when x") for applicability in (SAFE, UNSAFE, None)]
    lines = [
        *rules,
        *summaries.format_statistics(records),
        *summaries.format_passed_over({"no training": ["a.py"]}),
        *finding_text.format_full(found, source_lines.SourceLines({"a.py": "one()\n" + "#" * 9 + "\n" + "three()\n"})),
        *finding_text.format_grouped(found),
        *finding_text.format_concise(found),
    ]
    assert output.render_colored(lines, use_color=True) != output.render_colored(lines, use_color=False)


def test_a_command_line_decides_about_colour_and_warnings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    try:
        for colour, wanted in (("always", True), ("never", False), ("auto", False)):
            output.configure_output(color_mode=colour, is_silent=False)
            assert output.is_color_wanted(io.StringIO()) is wanted
        output.write_warning("a\x1bb")
        output.configure_output(color_mode="auto", is_silent=True)
        output.write_warning("nothing")
    finally:
        output.configure_output(color_mode="auto", is_silent=False)
    assert capsys.readouterr().err == "amp-check: warning: a\\x1bb\n"


def test_a_file_that_was_asked_for_by_name_gets_no_forced_colour(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with open(tmp_path / "out.txt", "w", encoding="utf-8") as file:
        assert output.is_color_wanted(file) is False
    assert output.is_color_wanted(io.StringIO()) is True


def test_markdown_is_rendered_for_a_terminal_and_left_alone_elsewhere() -> None:
    plain, painted = io.StringIO(), io.StringIO()
    source = "# Title\n\nsome `code`\n\n" + "word " * 60 + "\n"
    output.write_markdown(source, plain, use_color=False)
    assert plain.getvalue() == source
    output.write_markdown(source, painted, use_color=True)
    assert "\x1b[" in painted.getvalue()
    lines = [line.rstrip() for line in painted.getvalue().splitlines()]
    assert "`" not in painted.getvalue()
    # Without a terminal width, the width is optimal for reading.
    assert 95 <= max(len(line) for line in lines if line.startswith("word")) <= 100


def test_standard_input_that_is_closed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(
        source_lines.NoStandardInput, match=r"^standard input is closed, so nothing can be read from it$"
    ):
        source_lines.open_standard_input()


def test_standard_input_takes_what_is_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\xffb"), encoding="utf-8"))
    assert source_lines.open_standard_input().read() == "a\ufffdb"
    plain = io.StringIO("as it is")
    monkeypatch.setattr(sys, "stdin", plain)
    assert source_lines.open_standard_input() is plain


def test_outputs_take_every_character_and_may_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(kept, encoding="ascii"))
    monkeypatch.setattr(sys, "stderr", None)
    output.configure_streams()
    sys.stdout.write("\u4e16 \udc80")
    sys.stdout.flush()
    assert kept.getvalue() == b"\\u4e16 \\udc80"
    closed: Any = sys.stderr
    closed.write("nowhere")
    closed.close()
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    output.configure_streams()
    nowhere: Any = sys.stdout
    nowhere.write("nowhere")
    nowhere.close()


def test_a_bar_has_colour_only_where_that_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")

    def drawn(colour: str) -> str:
        terminal = io.StringIO()
        monkeypatch.setattr(terminal, "isatty", lambda: True)
        output.configure_output(color_mode=colour, is_silent=False)
        try:
            show, wipe = output.make_progress(terminal, large=2)
            assert show is not None
            show(1, 1)
            assert terminal.getvalue() == ""
            show(1, 2)
            wipe()
        finally:
            output.configure_output(color_mode="auto", is_silent=False)
        return terminal.getvalue()

    assert "\x1b[38;" in drawn("always") or "\x1b[3" in drawn("always").replace("\x1b[2K", "")
    assert "\x1b[3" not in drawn("never").replace("\x1b[?25", "")


@pytest.mark.parametrize("why", ["silent", "dumb", "pipe"])
def test_no_bar_is_drawn_where_nobody_sees_it(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb" if why == "dumb" else "xterm")
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: why != "pipe")
    output.configure_output(color_mode="auto", is_silent=why == "silent")
    try:
        show, wipe = output.make_progress(stream)
    finally:
        output.configure_output(color_mode="auto", is_silent=False)
    assert show is None
    wipe()
    assert stream.getvalue() == ""
