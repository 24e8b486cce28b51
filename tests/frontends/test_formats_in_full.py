"""Every format for other programs, in full: two findings with all possible data, with manually written output."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_amp_check.frontends import ci_formats, formats, json_formats, rule_text, source_lines
from pytest_amp_check.protocol.finding import Finding, TraceStep
from pytest_amp_check.protocol.fix import SAFE, Edit, Fix
from pytest_amp_check.protocol.rules import RULES
from pytest_amp_check.protocol.sites import Site

SOURCE = "é = scale(x)\nclip(é); y = 1\n"


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a folder that is no repository, and no documentation URL."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(json_formats, "find_documentation_url", lambda: "")
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


def findings() -> list[Finding]:
    first, clip = Site("a.py", 1, 4, 1, 12), Site("a.py", 2, 0, 2, 7)
    error = Finding(
        "AMP201", "clip-before-unscale", "error", "scaled: unscale", clip, trace=(TraceStep(first, "scales"),)
    )
    error.fix = Fix(SAFE, "Unscale first", lambda: [Edit(2, 9, 2, 9, "u()\n")])
    rare = Finding(
        "AMP503", "scaler-with-bf16", "info", "useless", Site("b/c d.py", 7, 2, 8, 3), certain=False, condition="if x"
    )
    return [rare, error]


def shown(name: str, found: Sequence[Finding], summary: str = "Found 2.") -> str:
    stream = io.StringIO()
    formats.FORMATS[name].write(
        formats.OutputData(list(found), summary, source_lines.SourceLines({"a.py": SOURCE}), include_unsafe=False),
        stream,
    )
    return stream.getvalue()


def region(*numbers: int) -> dict[str, int]:
    return dict(zip(("startLine", "startColumn", "endLine", "endColumn"), numbers, strict=True))


def test_github() -> None:
    assert shown("github", findings()) == (
        "::error title=AMP201 clip-before-unscale,file=a.py,line=2,col=1,endLine=2,endColumn=8::scaled: unscale\n"
        "::notice title=AMP503 scaler-with-bf16,file=b/c d.py,line=7,col=3,endLine=8,endColumn=4::useless\n"
        "::notice title=amp-check::Found 2.\n"
    )
    assert shown("github", findings(), "").count("\n") == 2
    assert shown("github", []) == ""
    warning = Finding("AMP201", "clip", "warning", "100%", Site("a,b:c.py", 0, 0))
    assert shown("github", [warning]).splitlines()[0] == (
        "::warning title=AMP201 clip,file=a%2Cb%3Ac.py,line=1,col=1,endLine=1,endColumn=1::100%25"
    )


def test_azure() -> None:
    assert shown("azure", findings()) == (
        "##vso[task.logissue type=warning;sourcepath=b/c d.py;linenumber=7;columnnumber=3;code=AMP503;]"
        "scaler-with-bf16: useless\n"
        "##vso[task.logissue type=error;sourcepath=a.py;linenumber=2;columnnumber=1;code=AMP201;]"
        "clip-before-unscale: scaled: unscale\n"
    )


def test_gitlab() -> None:
    rare, error = json.loads(shown("gitlab", findings()))
    prints = {rare.pop("fingerprint"), error.pop("fingerprint")}
    assert all(len(each) == 32 for each in prints)
    assert len(prints) == 2
    assert error == {
        "description": "AMP201 clip-before-unscale: scaled: unscale",
        "check_name": "AMP201",
        "severity": "major",
        "location": {
            "path": "a.py",
            "lines": {"begin": 2, "end": 2},
            "positions": {"begin": {"line": 2, "column": 1}, "end": {"line": 2, "column": 8}},
        },
    }
    assert (rare["severity"], rare["location"]["lines"]) == ("info", {"begin": 7, "end": 8})
    warning = Finding("AMP201", "clip", "warning", "x", Site("a.py", 1, 0))
    assert json.loads(shown("gitlab", [warning]))[0]["severity"] == "minor"


def test_reviewdog() -> None:
    reported = json.loads(shown("rdjson", findings()))
    assert (reported["source"], reported["severity"]) == ({"name": "amp-check"}, "WARNING")
    rare, error = reported["diagnostics"]
    # Columns count bytes: a letter of two bytes precedes the edit.
    assert error == {
        "message": "clip-before-unscale: scaled: unscale",
        "location": {
            "path": "a.py",
            "range": {"start": {"line": 2, "column": 1}, "end": {"line": 2, "column": 9}},
        },
        "severity": "ERROR",
        "code": {"value": "AMP201"},
        "related_locations": [
            {
                "message": "scales",
                "location": {
                    "path": "a.py",
                    "range": {"start": {"line": 1, "column": 6}, "end": {"line": 1, "column": 14}},
                },
            }
        ],
        "suggestions": [
            {"range": {"start": {"line": 2, "column": 11}, "end": {"line": 2, "column": 11}}, "text": "u()\n"}
        ],
    }
    assert rare == {
        "message": "scaler-with-bf16: useless",
        "location": {
            "path": "b/c d.py",
            "range": {"start": {"line": 7, "column": 3}, "end": {"line": 8, "column": 4}},
        },
        "severity": "INFO",
        "code": {"value": "AMP503"},
    }
    warning = Finding("AMP201", "clip", "warning", "x", Site("a.py", 1, 0))
    assert json.loads(shown("rdjson", [warning]))["diagnostics"][0]["severity"] == "WARNING"


def test_several_edits_are_no_suggestion() -> None:
    _, error = findings()
    error.fix = Fix(SAFE, "Unscale first", lambda: [Edit(1, 0, 1, 0, "a"), Edit(2, 0, 2, 0, "b")])
    assert "suggestions" not in json.loads(shown("rdjson", [error]))["diagnostics"][0]


def test_junit() -> None:
    assert shown("junit", findings()) == (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        '<testsuites name="amp-check" tests="2" failures="2" errors="0">\n'
        '  <testsuite name="b/c d.py" tests="1" failures="1" errors="0">\n'
        '    <testcase name="AMP503 scaler-with-bf16 (7:3)" classname="b/c d.py">\n'
        '      <failure message="useless" type="info">b/c d.py:7:3: useless</failure>\n'
        "    </testcase>\n"
        "  </testsuite>\n"
        '  <testsuite name="a.py" tests="1" failures="1" errors="0">\n'
        '    <testcase name="AMP201 clip-before-unscale (2:1)" classname="a.py">\n'
        '      <failure message="scaled: unscale" type="error">a.py:2:1: scaled: unscale\na.py:1: scales</failure>\n'
        "    </testcase>\n"
        "  </testsuite>\n"
        "</testsuites>\n"
    )
    assert shown("junit", []) == (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        '<testsuites name="amp-check" tests="1" failures="0" errors="0">\n'
        '  <testsuite name="amp-check" tests="1" failures="0" errors="0">\n'
        '    <testcase name="no findings" classname="amp-check"/>\n'
        "  </testsuite>\n"
        "</testsuites>\n"
    )
    odd = Finding("AMP201", "clip", "error", "a\x00\t\n\x1b\ud800\ufffeb\r", Site("a.py", 1, 0))
    # Characters that XML cannot represent, and line breaks, after which a CI host may see a command.
    assert r">a.py:1:1: a\x00" + "\t" + r"\x0a\x1b??b\x0d<" in shown("junit", [odd])


def test_sarif() -> None:
    log = json.loads(shown("sarif", findings()))
    assert (log["$schema"], log["version"]) == ("https://json.schemastore.org/sarif-2.1.0.json", "2.1.0")
    (run,) = log["runs"]
    assert set(run) == {"tool", "columnKind", "results"}
    assert run["columnKind"] == "unicodeCodePoints"
    driver = run["tool"]["driver"]
    assert (driver["name"], driver["version"]) == ("amp-check", driver["semanticVersion"])
    assert "informationUri" not in driver
    clip, bf16 = driver["rules"]
    rule = RULES["AMP201"]
    assert clip == {
        "id": "AMP201",
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": rule_text.short_reason(rule)},
        "help": {
            "text": f"{rule.rationale.strip()}\n\n{rule.fix_advice.strip()}",
            "markdown": rule_text.rule_markdown(rule),
        },
        "defaultConfiguration": {"level": "error"},
        "properties": {"tags": ["amp", "mixed-precision", "pytorch"], "problem.severity": "error"},
    }
    assert bf16["defaultConfiguration"] == {"level": "note"}
    assert bf16["properties"]["problem.severity"] == "recommendation"
    rare, error = run["results"]
    prints = [result.pop("partialFingerprints") for result in (rare, error)]
    assert [set(each) for each in prints] == [{"ampCheck/v1"}] * 2
    here = {"uri": "a.py", "uriBaseId": "%SRCROOT%"}
    scales = {
        "physicalLocation": {"artifactLocation": here, "region": region(1, 5, 1, 13)},
        "message": {"text": "scales"},
    }
    assert error == {
        "ruleId": "AMP201",
        "ruleIndex": 0,
        "level": "error",
        "message": {"text": "scaled: unscale"},
        "locations": [{"physicalLocation": {"artifactLocation": here, "region": region(2, 1, 2, 8)}}],
        "relatedLocations": [{"id": 1, **scales}],
        "codeFlows": [{"threadFlows": [{"locations": [{"location": scales}]}]}],
        "fixes": [
            {
                "description": {"text": "Unscale first"},
                "artifactChanges": [
                    {
                        "artifactLocation": here,
                        "replacements": [{"deletedRegion": region(2, 10, 2, 10), "insertedContent": {"text": "u()\n"}}],
                    }
                ],
            }
        ],
    }
    assert rare == {
        "ruleId": "AMP503",
        "ruleIndex": 1,
        "level": "note",
        "message": {"text": "useless (only if x)"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": "b/c%20d.py", "uriBaseId": "%SRCROOT%"},
                    "region": region(7, 3, 8, 4),
                }
            }
        ],
    }
    bare = Finding("AMP201", "clip", "warning", "x", Site("/abs/a.py", 1, 0), certain=False)
    (result,) = json.loads(shown("sarif", [bare]))["runs"][0]["results"]
    assert (result["level"], result["message"]) == (
        "warning",
        {"text": "x (possible: it depends on values that the code does not show)"},
    )
    assert result["locations"][0]["physicalLocation"]["artifactLocation"] == {"uri": "file:///abs/a.py"}


def test_json_and_lines_of_it() -> None:
    rare, error = json.loads(shown("json", findings()))
    lines = shown("json-lines", findings()).splitlines()
    assert [json.loads(line) for line in lines] == [rare, error]
    assert (error["code"], error["filename"], error["severity"]) == ("AMP201", "a.py", "error")
    assert (error["location"], error["end_location"]) == ({"row": 2, "column": 1}, {"row": 2, "column": 8})
    assert error["fix"] == {
        "applicability": "safe",
        "message": "Unscale first",
        "edits": [
            {
                "content": "u()\n",
                "location": {"row": 2, "column": 10},
                "end_location": {"row": 2, "column": 10},
            }
        ],
    }
    assert (rare["certain"], rare["condition"], rare["fix"]) == (False, "if x", None)
    assert shown("json", []) == "[]\n"
    assert shown("json-lines", []) == ""


def test_counts_as_json() -> None:
    shape = formats.OutputData(
        [], "", source_lines.SourceLines(), include_unsafe=False, rule_counts=[{"code": "AMP201", "count": 2}]
    )
    shape.passed_over = {"no training": ["a.py", "b.py"]}
    stream = io.StringIO()
    formats.FORMATS["json"].write(shape, stream)
    assert json.loads(stream.getvalue()) == [
        {"code": "AMP201", "count": 2},
        {
            "code": None,
            "name": "passed-over",
            "severity": "info",
            "count": 2,
            "reason": "no training",
            "paths": ["a.py", "b.py"],
        },
    ]


def test_the_summary_of_a_step() -> None:
    sources = source_lines.SourceLines()
    assert ci_formats.summary_markdown([], "All is well.", sources) == "### amp-check\n\nAll is well.\n"
    odd = Finding("AMP201", "clip", "error", "a|b\nc", Site("a.py", 3, 0, cell=2))
    assert ci_formats.summary_markdown([odd], "Found 1.", sources) == (
        "### amp-check\n\nFound 1.\n\n"
        "| Rule | Severity | Place | What is wrong |\n| --- | --- | --- | --- |\n"
        "| AMP201 clip | error | `a.py:1` | cell 2, line 3: a\\|b c |\n"
    )
    many = [Finding("AMP201", "clip", "error", "x", Site("a.py", 1, 0))] * 1201
    reported = ci_formats.summary_markdown(many, "Found 1,201.", sources)
    assert reported.count("| AMP201 clip |") == 200
    assert reported.endswith("\nand 1,001 more.\n")


def test_the_summary_of_a_step_is_added_to_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "summary.md"
    path.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(path))
    shown("github", findings())
    assert path.read_text().startswith("before\n### amp-check\n\nFound 2.\n")
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    shown("github", findings())
    assert capsys.readouterr().err == (
        f"amp-check: warning: the summary of this step cannot be written to {tmp_path}: Is a directory\n"
    )


def test_grouped() -> None:
    assert shown("grouped", findings()) == (
        "b/c d.py:\n"
        "  7:3: AMP503 [info] scaler-with-bf16: useless\n"
        "\n"
        "a.py:\n"
        "  2:1: AMP201 [*] [error] clip-before-unscale: scaled: unscale\n"
        "\n"
        "Found 2.\n"
    )


def test_full() -> None:
    assert shown("full", findings()) == (
        "b/c d.py:7:3: AMP503 [info] scaler-with-bf16: useless\n"
        "  only if x\n"
        "  more: amp-check explain AMP503\n"
        "\n"
        "a.py:2:1: AMP201 [*] [error] clip-before-unscale: scaled: unscale\n"
        "  |\n"
        "1 | é = scale(x)\n"
        "2 | clip(é); y = 1\n"
        "  | ^^^^^^^\n"
        "  |\n"
        "  trace:\n"
        "    1. a.py:1: scales\n"
        "  fix: Unscale first (--fix)\n"
        "  more: amp-check explain AMP201\n"
        "\n"
        "Found 2.\n"
    )


def test_formats_say_what_they_hold() -> None:
    def those(name: str) -> list[str]:
        return [each for each, form in formats.FORMATS.items() if getattr(form, name)]

    assert those("can_count") == ["full", "concise", "agent", "json"]
    assert those("shows_run") == ["full"]
    assert those("shows_edits") == ["agent", "json", "json-lines", "rdjson", "sarif"]
    assert [name for name in formats.FORMATS if name not in those("shows_fixes")] == [
        "junit",
        "github",
        "gitlab",
        "azure",
        "pylint",
    ]
    assert formats.list_counting_formats() == "full, concise, agent or json"
