"""Appearance of findings: on a terminal, in a pipe, as JSON, for GitHub, and in SARIF."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any, TextIO

import pytest

from pytest_amp_check.frontends import finding_text, formats, json_formats, output, source_lines, summaries
from pytest_amp_check.frontends.cli import main
from pytest_amp_check.protocol.finding import Finding, TraceStep
from pytest_amp_check.protocol.rules import RULES
from pytest_amp_check.protocol.sites import Site

SCRIPT = """\
import torch

for x, y in loader:
    scaler.scale(model(x)).backward()
    clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
"""
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def finding(
    path: str = "train.py", line: int = 5, column: int = 4, end_column: int = 44, *, code: str = "AMP201", **more: Any
) -> Finding:
    more = {"name": "clip-before-unscale", "severity": "error", "message": "gradients are scaled: unscale first"} | more
    end_line = more.pop("end_line", line)
    site = Site(path, line, column, end_line, end_column, caller=more.pop("caller", None), cell=more.pop("cell", None))
    return Finding(code, more.pop("name"), more.pop("severity"), more.pop("message"), site, **more)


def full(*findings: Finding, script: str = SCRIPT) -> str:
    return "".join(
        output.render_plain(finding_text.format_full(findings, source_lines.SourceLines({"train.py": script})))
    )


def deprecated(path: str, line: int, **more: Any) -> Finding:
    return finding(path, line, code="AMP901", name="deprecated-amp-api", severity="info", message=f"old {line}", **more)


def test_deprecated_names_of_a_file_are_reported_in_one_sentence() -> None:
    found = [deprecated("a.py", 3), finding("a.py", 4), deprecated("a.py", 9), deprecated("b.py", 2)]
    assert output.render_plain(finding_text.format_concise(found)) == [
        (
            "a.py:3:5: AMP901 [info] deprecated-amp-api: Deprecated AMP entry points are used in 2 places "
            "(lines 3, 9): use those of `torch.amp`\n"
        ),
        "a.py:4:5: AMP201 [error] clip-before-unscale: gradients are scaled: unscale first\n",
        "b.py:2:5: AMP901 [info] deprecated-amp-api: old 2\n",
    ]


def test_full_shows_no_frame_for_findings_that_are_reported_together() -> None:
    assert full(deprecated("train.py", 4), deprecated("train.py", 5)) == (
        "train.py:4:5: AMP901 [info] deprecated-amp-api: Deprecated AMP entry points are used in 2 places "
        "(lines 4, 5): use those of `torch.amp`\n"
        "  more: amp-check explain AMP901\n"
        "\n"
    )


def test_many_places_are_counted_and_those_of_a_notebook_have_their_cells() -> None:
    (line,) = output.render_plain(
        finding_text.format_concise([deprecated("train.py", number) for number in range(1, 16)])
    )
    assert "in 15 places (lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 and 3 more)" in line
    (line,) = output.render_plain(
        finding_text.format_concise([deprecated("n.ipynb", 2, cell=1), deprecated("n.ipynb", 7, cell=4)])
    )
    assert "in 2 places (cell 1 line 2, cell 4 line 7)" in line


def test_full_shows_frame_marks_trace_and_the_next_command() -> None:
    steps = (
        TraceStep(Site("train.py", 4, 4, 4, 37), "the loss is scaled"),
        TraceStep(Site("train.py", 5, 4, 5, 44), "the gradients are clipped"),
    )
    assert full(finding(trace=steps)) == (
        "train.py:5:5: AMP201 [error] clip-before-unscale: gradients are scaled: unscale first\n"
        "  |\n"
        "4 |     scaler.scale(model(x)).backward()\n"
        "5 |     clip_grad_norm_(model.parameters(), 1.0)\n"
        "  |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "6 |     scaler.step(optimizer)\n"
        "  |\n"
        "  trace:\n"
        "    1. train.py:4: the loss is scaled\n"
        "    2. train.py:5: the gradients are clipped\n"
        "  more: amp-check explain AMP201\n"
        "\n"
    )


def test_full_says_on_which_paths_it_holds_and_from_where_a_helper_was_called() -> None:
    caller = Site("train.py", 4, 4)
    shown = full(finding(certain=False, condition="when `use_amp` is true", caller=caller))
    assert "\n  only on some paths, when `use_amp` is true\n" in shown
    assert "\n  called from:\n    train.py:4\n         scaler.scale(model(x)).backward()\n" in shown
    step = TraceStep(Site("train.py", 5, 4, caller=caller), "the gradients are clipped")
    assert "    1. train.py:5 (called from train.py:4): the gradients are clipped\n" in full(finding(trace=(step,)))
    assert "\n  possible: it depends on values that the code does not show\n" in full(finding(certain=False))
    shown = full(finding(certain=False, trace=(step,)))
    assert "paths" not in shown
    assert "\n  trace of one path with the mistake:\n    1. " in shown
    assert "paths" not in full(finding())


def test_a_call_is_named_once_while_a_path_stays_in_it() -> None:
    caller, other = Site("train.py", 2), Site("train.py", 3)
    where = [None, caller, caller, other, None, other]
    steps = tuple(TraceStep(Site("train.py", 4, caller=site), f"step {n}") for n, site in enumerate(where))
    called = [line.partition("train.py:4")[2] for line in full(finding(trace=steps)).splitlines() if ": step " in line]
    assert called == [
        ": step 0",
        " (called from train.py:2): step 1",
        ": step 2",
        " (called from train.py:3): step 3",
        ": step 4",
        " (called from train.py:3): step 5",
    ]


def frame(script: str, **place: Any) -> list[str]:
    return full(finding(**place), script=script).split("\n")[1:-3]


def test_marks_stand_under_the_blamed_text_behind_tabs_and_wide_characters() -> None:
    assert frame("\tclip(x)\n", line=1, column=1, end_column=8) == [
        "  |",
        "1 |     clip(x)",
        "  |     ^^^^^^^",
        "  |",
    ]
    wide = frame('s = "日本"; clip(x)\n', line=1, column=10, end_column=17)
    assert wide[1:3] == ['1 | s = "日本"; clip(x)', "  |             ^^^^^^^"]


def test_a_range_of_several_lines_is_marked_line_by_line_and_cut_when_it_is_tall() -> None:
    script = "clip(\n    model,\n    1.0,\n)\n"
    assert frame(script, line=1, column=0, end_line=4, end_column=1) == [
        "  |",
        "1 | clip(",
        "  | ^^^^^",
        "2 |     model,",
        "  |     ^^^^^^",
        "3 |     1.0,",
        "  |     ^^^^",
        "4 | )",
        "  | ^",
        "  |",
    ]
    tall = frame("clip(\n" + "    1,\n" * 50 + ")\n", line=1, column=0, end_line=52, end_column=1)
    assert len(tall) < 20
    assert tall[-2] == "  | ..."


def test_a_very_long_line_is_cut_around_the_mark() -> None:
    script = "x = [" + "1234, " * 5000 + "clip(y)" + ", 5678" * 5000 + "]\n"
    column = script.index("clip")
    _, code, marks, _ = frame(script, line=1, column=column, end_column=column + 7)
    assert len(code) < 200
    assert code[marks.index("^") : marks.rindex("^") + 1] == "clip(y)"


@pytest.mark.parametrize(
    ("line", "column", "end_column"),
    [(6, 40, 90), (6, 0, 0), (7, 0, 0), (1, 500, 600)],
)
def test_a_place_beyond_the_text_still_has_one_mark(line: int, column: int, end_column: int) -> None:
    shown = full(finding(line=line, column=column, end_column=end_column))
    assert "^" in shown
    assert "more: amp-check explain AMP201" in shown


@pytest.mark.parametrize("line", [0, 8, 10_000])
def test_a_line_that_is_not_there_has_no_frame(line: int) -> None:
    assert full(finding(line=line)).split("\n")[1] == "  more: amp-check explain AMP201"


def test_control_characters_of_a_source_do_not_reach_the_terminal() -> None:
    shown = full(finding(line=1, message="\x1b[2Jgone\nnext"), script="x = '\x1b[31m'\x0c + 1\n")
    assert "\x1b" not in shown
    assert "\x0c" not in shown
    assert shown.startswith("train.py:1:5: AMP201 [error] clip-before-unscale: \N{REPLACEMENT CHARACTER}[2Jgone next\n")


def test_lines_are_counted_as_python_counts_them(tmp_path: Path) -> None:
    path = tmp_path / "odd.py"
    path.write_bytes("a = 1\x0c\r\nb = '\u2028'\rc = 3\n".encode())
    sources = source_lines.SourceLines()
    assert [sources.find_line(str(path), n) for n in (1, 2, 3)] == ["a = 1\x0c", "b = '\u2028'", "c = 3"]


@pytest.mark.parametrize(
    ("data", "line"),
    [
        ("\ufeffx = 'é'\n".encode(), "x = 'é'"),
        ("# coding: latin-1\nx = 'é'\n".encode("latin-1"), "# coding: latin-1"),
        (b"x = '\xff'\n", "x = '\ufffd'"),
        (b"# coding: no-such\n\xff\n", "# coding: no-such"),
        (b"", ""),
    ],
)
def test_sources_are_decoded_or_read_as_well_as_can_be(tmp_path: Path, data: bytes, line: str) -> None:
    path = tmp_path / "x.py"
    path.write_bytes(data)
    assert source_lines.SourceLines().find_line(str(path), 1) == line


def test_a_source_that_cannot_be_read_has_no_lines(tmp_path: Path) -> None:
    sources = source_lines.SourceLines()
    assert (
        sources.find_line(str(tmp_path / "gone.py"), 1) is None or sources.find_line(str(tmp_path / "gone.py"), 1) == ""
    )
    assert sources.find_line(str(tmp_path), 2) is None


def test_a_notebook_names_the_cell_and_shows_no_lines_of_its_json(tmp_path: Path) -> None:
    path = tmp_path / "train.ipynb"
    path.write_text('{\n"cells": []\n}\n')
    shown = "".join(
        output.render_plain(finding_text.format_full([finding(str(path), 2, cell=3)], source_lines.SourceLines()))
    )
    assert shown.startswith(f"{path}:cell 3:2:5: AMP201 [error]")
    assert '"cells"' not in shown


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("listed", [True, False])
def test_what_counts_lines_of_files_gets_those_of_the_json(tmp_path: Path, indent: int | None, listed: bool) -> None:
    lines = ["a = 1\n", 'b = "\\n"\n', "c = 3"]
    source = {"cell_type": "code", "source": lines if listed else "".join(lines)}
    notebook = {"cells": [{"cell_type": "markdown", "source": ["# c = 3"]}, source]}
    path = tmp_path / "train.ipynb"
    path.write_text(json.dumps(notebook, indent=indent))
    rows = path.read_text().split("\n")
    for number in (1, 2, 3):
        found = [finding(str(path), number, column=0, end_column=5, cell=2)]
        (result,) = json.loads(json_formats.format_sarif(found, source_lines.SourceLines()))["runs"][0]["results"]
        region = result["locations"][0]["physicalLocation"]["region"]
        row = rows[region["startLine"] - 1]
        assert region["endLine"] == region["startLine"]
        held = json.loads(row[region["startColumn"] - 1 : region["endColumn"] - 1])
        assert held == (lines[number - 1] if listed else "".join(lines))
        assert f"line={region['startLine']},col={region['startColumn']}," in json_formats.format_github(
            found, "", source_lines.SourceLines()
        )


def test_a_place_that_a_notebook_does_not_have_is_its_first_line(tmp_path: Path) -> None:
    path = tmp_path / "train.ipynb"
    path.write_text('{"cells": []}')
    shown = json_formats.format_github([finding(str(path), 3, cell=9)], "", source_lines.SourceLines())
    assert ",line=1,col=1,endLine=1,endColumn=1::" in shown


def test_colour_changes_no_character() -> None:
    steps = (TraceStep(Site("train.py", 4, 4, 4, 37), "the loss is scaled"),)
    found = [
        finding(trace=steps, message="`x[0]` [red]is[/red] :smile: 'quoted' 123 https://a.b"),
        finding(line=1, column=0, end_column=3, severity="info", certain=False),
        finding(line=3, column=0, end_line=6, end_column=2, severity="warning", message="x" * 300),
    ]
    script = SCRIPT.replace("1.0)", '\'[bold]\' """open)')
    lines = finding_text.format_full(found, source_lines.SourceLines({"train.py": script}))
    coloured = io.StringIO()
    output.write_lines(lines, coloured, use_color=True)
    assert "\x1b[" in coloured.getvalue()
    plain = io.StringIO()
    output.write_lines(lines, plain, use_color=False)
    assert ANSI.sub("", coloured.getvalue()) == plain.getvalue()


@pytest.mark.parametrize(
    ("env", "terminal", "colour"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"TERM": "dumb"}, True, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "0"}, False, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
    ],
)
def test_when_there_is_colour(
    env: dict[str, str], terminal: bool, colour: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    assert output.is_color_wanted(stream) is colour


def test_concise_is_one_line_each() -> None:
    assert output.render_plain(
        finding_text.format_concise([finding(), finding(line=6, code="AMP999", name="other", severity="info")])
    ) == [
        "train.py:5:5: AMP201 [error] clip-before-unscale: gradients are scaled: unscale first\n",
        "train.py:6:5: AMP999 [info] other: gradients are scaled: unscale first\n",
    ]


@pytest.mark.parametrize(
    ("severities", "files", "summary"),
    [
        ([], 12, "No AMP mistakes found in 12 files."),
        ([], 1, "No AMP mistakes found in 1 file."),
        (["error"] * 3 + ["warning"], 12, "Found 3 errors, 1 warning in 12 files."),
        (["info", "warning", "warning"], 1, "Found 2 warnings, 1 info in 1 file."),
        (["info"] * 2, 1, "Found 2 info in 1 file."),
        (["error"] * 1234, 5678, "Found 1,234 errors in 5,678 files."),
    ],
)
def test_summary(severities: list[str], files: int, summary: str) -> None:
    assert summaries.summarize_counts(summaries.count_severities(severities), files) == summary


def test_statistics_count_by_rule_the_most_frequent_first() -> None:
    triples = [("AMP901", "deprecated", "warning")] + [("AMP201", "clip", "info"), ("AMP201", "clip", "error")] * 6
    records = summaries.count_by_rule(triples)
    assert records == [
        {"code": "AMP201", "name": "clip", "severity": "error", "count": 12},
        {"code": "AMP901", "name": "deprecated", "severity": "warning", "count": 1},
    ]
    assert output.render_plain(summaries.format_statistics(records)) == [
        "12  AMP201  [error]    clip\n",
        " 1  AMP901  [warning]  deprecated\n",
    ]


def test_json_is_the_findings_own_dictionaries() -> None:
    found = [finding(message="é \udce9"), finding("b.py", severity="info", trace=(TraceStep(Site("b.py", 1), "s"),))]
    shown = json_formats.format_json(found)
    assert shown.isascii()
    assert json.loads(shown) == [f.as_dict() for f in found]
    assert json.loads(json_formats.format_json([])) == []


def test_github_escapes_sorts_by_severity_and_ends_with_the_summary() -> None:
    found = [
        finding("a.py", severity="info"),
        finding("b,c:d%e.py", severity="warning", message="100 %: a,b\nnext\r"),
        finding("z.py", severity="error", end_line=7, end_column=2),
        finding("c.py", severity="error"),
    ]
    name, said = "title=AMP201 clip-before-unscale", "gradients are scaled: unscale first"
    assert json_formats.format_github(
        found, "Found 2 errors, 1 warning, 1 info in 4 files.", source_lines.SourceLines()
    ).split("\n") == [
        f"::error {name},file=c.py,line=5,col=5,endLine=5,endColumn=45::{said}",
        f"::error {name},file=z.py,line=5,col=5,endLine=7,endColumn=3::{said}",
        f"::warning {name},file=b%2Cc%3Ad%25e.py,line=5,col=5,endLine=5,endColumn=45::100 %25: a,b%0Anext%0D",
        f"::notice {name},file=a.py,line=5,col=5,endLine=5,endColumn=45::{said}",
        "::notice title=amp-check::Found 2 errors, 1 warning, 1 info in 4 files.",
        "",
    ]
    assert json_formats.format_github([], "No AMP mistakes found in 1 file.", source_lines.SourceLines()) == ""


def test_paths_below_the_working_folder_are_relative_for_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert ",file=src/a.py," in json_formats.format_github(
        [finding(str(tmp_path / "src" / "a.py"))], "", source_lines.SourceLines()
    )
    assert ",file=src/a.py," in json_formats.format_github([finding("./src/a.py")], "", source_lines.SourceLines())
    assert ",file=/elsewhere/a.py," in json_formats.format_github(
        [finding("/elsewhere/a.py")], "", source_lines.SourceLines()
    )


def sarif(*findings: Finding, script: str = SCRIPT, path: str = "train.py") -> dict[str, Any]:
    log = json.loads(json_formats.format_sarif(findings, source_lines.SourceLines({path: script})))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    assert isinstance(run, dict)
    return run


def test_sarif_holds_rules_results_and_the_way_to_them() -> None:
    steps = (
        TraceStep(Site("train.py", 4, 4, 4, 37), "the loss is scaled"),
        TraceStep(Site("train.py", 5, 4), "clipped"),
    )
    run = sarif(
        finding(trace=steps),
        finding(code="AMP901", severity="warning", line=1, column=0, end_column=3),
        finding(code="AMP503", severity="info", certain=False, condition="when `bf16` is true"),
    )
    driver = run["tool"]["driver"]
    assert driver["name"] == "amp-check"
    assert [rule["id"] for rule in driver["rules"]] == ["AMP201", "AMP503", "AMP901"]
    rule = driver["rules"][0]
    assert rule["name"] == "clip-before-unscale"
    assert rule["defaultConfiguration"] == {"level": "error"}
    assert rule["help"]["markdown"].startswith("# AMP201 clip-before-unscale")
    assert "helpUri" not in rule
    assert run["columnKind"] == "unicodeCodePoints"

    first, second, third = run["results"]
    assert [(r["ruleId"], driver["rules"][r["ruleIndex"]]["id"], r["level"]) for r in run["results"]] == [
        ("AMP201", "AMP201", "error"),
        ("AMP901", "AMP901", "warning"),
        ("AMP503", "AMP503", "note"),
    ]
    assert first["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "train.py", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 5, "startColumn": 5, "endLine": 5, "endColumn": 45},
    }
    flow = first["codeFlows"][0]["threadFlows"][0]["locations"]
    assert [step["location"]["message"]["text"] for step in flow] == ["the loss is scaled", "clipped"]
    assert [place["id"] for place in first["relatedLocations"]] == [1, 2]
    assert "codeFlows" not in second
    assert third["message"]["text"].endswith("(only on some paths, when `bf16` is true)")


def test_sarif_uris_are_quoted_and_absolute_where_a_file_lies_elsewhere() -> None:
    run = sarif(finding("my src/a%b.py"), finding("/else where/a.py"))
    artifacts = [r["locations"][0]["physicalLocation"]["artifactLocation"] for r in run["results"]]
    assert artifacts == [
        {"uri": "my%20src/a%25b.py", "uriBaseId": "%SRCROOT%"},
        {"uri": "file:///else%20where/a.py"},
    ]


def test_sarif_regions_start_at_line_one() -> None:
    run = sarif(finding(code="AMP903", line=0, column=0, end_column=0))
    assert run["results"][0]["locations"][0]["physicalLocation"]["region"]["startLine"] == 1


def prints(run: dict[str, Any]) -> list[str]:
    return [result["partialFingerprints"]["ampCheck/v1"] for result in run["results"]]


def test_fingerprints_stay_when_lines_move_and_differ_between_equal_lines() -> None:
    script = "clip(x)\n\nclip(x)\n"
    before = prints(sarif(finding(line=1), finding(line=3), script=script))
    assert len(set(before)) == 2
    moved = "# new\n\n    clip(x)\n\nother()\nclip(x)\n"
    assert prints(sarif(finding(line=3), finding(line=6), script=moved)) == before
    assert prints(sarif(finding(line=6), finding(line=3), script=moved)) == before[::-1]


@pytest.mark.parametrize("change", [{"code": "AMP202"}, {"path": "other.py"}, {"line": 6}])
def test_fingerprints_differ_by_rule_file_and_line_text(change: dict[str, Any]) -> None:
    assert prints(sarif(finding(**change))) != prints(sarif(finding()))


def test_fingerprints_do_not_depend_on_how_the_path_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    absolute = str(tmp_path / "train.py")
    assert prints(sarif(finding(absolute), path=absolute)) == prints(sarif(finding()))


def test_progress_is_for_large_trees_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert output.make_progress(io.StringIO())[0] is None
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    show, wipe = output.make_progress(terminal)
    assert show is not None
    show(1, 10)
    wipe()
    assert terminal.getvalue() == ""
    show(1, 3000)
    show(1500, 3000)
    wipe()
    shown = terminal.getvalue()
    assert "1500/3000" in ANSI.sub("", shown)
    # The last write clears the line.
    assert shown.endswith("\x1b[2K")


def test_a_format_is_one_row_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def codes(shown: formats.OutputData, stream: TextIO) -> None:
        stream.write(" ".join(found.code for found in shown.findings) + "\n")

    monkeypatch.setitem(formats.FORMATS, "codes", formats.OutputFormat(codes))
    script = tmp_path / "train.py"
    script.write_text(RULES["AMP201"].bad_example, encoding="utf-8")
    assert main(["check", "--output-format", "codes", str(script)]) == 1
    assert capsys.readouterr().out == "AMP201\n"
    assert main(["check", "--output-format", "codes", "--statistics", str(script)]) == 2
    assert "counts as full, concise, agent or json, not as codes" in capsys.readouterr().err


def test_the_remedy_stands_once_beside_the_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.py"
    path.write_text(RULES["AMP201"].bad_example)
    assert main(["check", "--output-format", "json", str(path)]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    remedy = "write `scaler.unscale_(optimizer)` in the line before it"
    assert found["remedy"] == remedy
    assert found["message"].endswith(f" the loss scale: {remedy}")
    assert main(["check", str(path)]) == 1
    out = capsys.readouterr().out
    assert out.splitlines()[0].endswith("clips gradients that are still multiplied by the loss scale")
    assert out.count(remedy) == 1
    assert f"\n  help: {remedy}\n" in out
    assert main(["check", "--output-format", "concise", str(path)]) == 1
    assert capsys.readouterr().out.splitlines()[0].endswith(f" the loss scale: {remedy}")
