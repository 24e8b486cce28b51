"""Output formats of CI hosts and review tools: JUnit, GitLab, reviewdog, Azure, pylint, GitHub's summary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..protocol.finding import Finding
from ..protocol.severities import ERROR, INFO, WARNING
from .json_formats import (
    _compute_fingerprints,
    _find_region,
    _format_cell_prefix,
    _relative_path,
    dump_json,
    escape_json_command,
    find_rule_page,
    make_record,
)
from .printable import escape_command, is_hidden, make_single_line, make_visible
from .source_lines import SourceLines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..protocol.sites import Site

#: Severity names of each format. Azure has only two levels, and neither level fails a build.
_GITLAB = {ERROR: "major", WARNING: "minor", INFO: "info"}
_REVIEWDOG = {ERROR: "ERROR", WARNING: "WARNING", INFO: "INFO"}
_AZURE = {ERROR: "error", WARNING: "warning", INFO: "warning"}
#: Maximum number of rows in a GitHub summary, which is limited to one megabyte.
ROWS = 200


def format_json_lines(findings: Iterable[Finding]) -> str:
    import json

    return "".join(escape_json_command(json.dumps(make_record(finding))) + "\n" for finding in findings)


def format_pylint(findings: Iterable[Finding], sources: SourceLines) -> str:
    """Return the findings in pylint's parseable format, also known as pylint format in flake8."""
    lines = []
    for finding in findings:
        line = _find_region(finding.site, sources)[0]
        said = f"{finding.name}: {_format_cell_prefix(finding.site)}{finding.message}"
        lines.append(make_single_line(f"{_relative_path(finding.filename)}:{line}: [{finding.code}] {said}") + "\n")
    return "".join(lines)


def format_azure(findings: Iterable[Finding], sources: SourceLines) -> str:
    """Return the findings as logging commands of Azure Pipelines."""
    lines = []
    for finding in findings:
        line, column, _, _ = _find_region(finding.site, sources)
        properties = {
            "type": _AZURE[finding.severity],
            "sourcepath": _relative_path(finding.filename),
            "linenumber": line,
            "columnnumber": column,
            "code": finding.code,
        }
        place = "".join(f"{key}={_escape_azure_property(str(value))};" for key, value in properties.items())
        said = f"{finding.name}: {_format_cell_prefix(finding.site)}{finding.message}"
        lines.append(f"##vso[task.logissue {place}]{_escape_azure_data(said)}\n")
    return "".join(lines)


def _escape_azure_data(text: str) -> str:
    return make_visible(text.replace("%", "%AZP25").replace("\r", "%0D").replace("\n", "%0A"))


def _escape_azure_property(text: str) -> str:
    return _escape_azure_data(text).replace(";", "%3B").replace("]", "%5D")


def format_gitlab(findings: Sequence[Finding], sources: SourceLines) -> str:
    """Return the findings as code quality report for a GitLab merge request."""
    prints = _compute_fingerprints(findings, sources)
    issues = []
    for finding, fingerprint in zip(findings, prints, strict=True):
        line, column, end_line, end_column = _find_region(finding.site, sources)
        issues.append(
            {
                "description": f"{finding.code} {finding.name}: {_format_cell_prefix(finding.site)}{finding.message}",
                "check_name": finding.code,
                "fingerprint": fingerprint,
                "severity": _GITLAB[finding.severity],
                "location": {
                    "path": _relative_path(finding.filename),
                    "lines": {"begin": line, "end": end_line},
                    "positions": {
                        "begin": {"line": line, "column": column},
                        "end": {"line": end_line, "column": end_column},
                    },
                },
            }
        )
    return dump_json(issues)


def format_rdjson(findings: Iterable[Finding], sources: SourceLines) -> str:
    """Return the findings in reviewdog's diagnostic format, with columns in bytes of UTF-8."""
    return dump_json(
        {
            "source": {"name": "amp-check"},
            "severity": "WARNING",
            "diagnostics": [_make_diagnostic(finding, sources) for finding in findings],
        }
    )


def _make_diagnostic(finding: Finding, sources: SourceLines) -> dict[str, Any]:
    code = {"value": finding.code}
    url = find_rule_page(finding.code)
    if url:
        code["url"] = url
    made: dict[str, Any] = {
        "message": f"{finding.name}: {_format_cell_prefix(finding.site)}{finding.message}",
        "location": _make_location(finding.site, sources),
        "severity": _REVIEWDOG[finding.severity],
        "code": code,
    }
    if finding.trace:
        made["related_locations"] = [
            {"message": _format_cell_prefix(step.site) + step.text, "location": _make_location(step.site, sources)}
            for step in finding.trace
        ]
    if finding.fix is not None and finding.cell is None:
        # The lines of a fix in a notebook are no lines of the file. Reviewdog applies each suggestion separately.
        edits = finding.fix.edits
        if len(edits) == 1:
            edit = edits[0]
            span = (edit.line, edit.column + 1, edit.end_line, edit.end_column + 1)
            made["suggestions"] = [{"range": _make_range(finding.site, span, sources), "text": edit.content}]
    return made


def _make_location(site: Site, sources: SourceLines) -> dict[str, Any]:
    return {"path": _relative_path(site.path), "range": _make_range(site, _find_region(site, sources), sources)}


def _make_range(site: Site, span: tuple[int, int, int, int], sources: SourceLines) -> dict[str, Any]:
    line, column, end_line, end_column = span
    return {
        "start": {"line": line, "column": _byte_column(site, line, column, sources)},
        "end": {"line": end_line, "column": _byte_column(site, end_line, end_column, sources)},
    }


def _byte_column(site: Site, line: int, column: int, sources: SourceLines) -> int:
    """Return a column in bytes of UTF-8, from 1.

    In a notebook the column stays in characters, without the JSON text.
    """
    text = sources.find_line(site.path, line) if site.cell is None else None
    return column if text is None else len(text[: column - 1].encode("utf-8", "surrogatepass")) + 1


def format_junit(findings: Sequence[Finding], sources: SourceLines) -> str:
    """Return a JUnit report with a test suite for each file, and a failed test for each finding."""
    from xml.sax.saxutils import quoteattr

    by_path: dict[str, list[Finding]] = {}
    for finding in findings:
        by_path.setdefault(_relative_path(finding.filename), []).append(finding)
    number = len(findings)
    # A check without findings is one passed test: some hosts treat a report without tests as a failure.
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>\n',
        f'<testsuites name="amp-check" tests="{number or 1}" failures="{number}" errors="0">\n',
    ]
    if not findings:
        lines += [
            '  <testsuite name="amp-check" tests="1" failures="0" errors="0">\n',
            '    <testcase name="no findings" classname="amp-check"/>\n',
            "  </testsuite>\n",
        ]
    for path, found in by_path.items():
        lines.append(
            f'  <testsuite name={quoteattr(_escape_xml(path))} tests="{len(found)}" failures="{len(found)}" '
            f'errors="0">\n'
        )
        lines += [_format_test_case(path, finding, sources) for finding in found]
        lines.append("  </testsuite>\n")
    return "".join([*lines, "</testsuites>\n"])


def _format_test_case(path: str, finding: Finding, sources: SourceLines) -> str:
    from xml.sax.saxutils import escape, quoteattr

    line, column, _, _ = _find_region(finding.site, sources)
    name = f"{finding.code} {finding.name} ({line}:{column})"
    message = _format_cell_prefix(finding.site) + finding.message
    details = f"\neffect: {finding.effect}" if finding.effect else ""
    details += "".join(f"\n{make_single_line(f'{step.site.location_text}: {step.text}')}" for step in finding.trace)
    return (
        f"    <testcase name={quoteattr(name)} classname={quoteattr(_escape_xml(path))}>\n"
        f"      <failure message={quoteattr(_escape_xml(message))} type={quoteattr(finding.severity)}>"
        f"{escape(_escape_xml(make_single_line(f'{path}:{line}:{column}: {message}') + details))}</failure>\n"
        "    </testcase>\n"
    )


def _escape_xml(text: str) -> str:
    """Return a text without characters that XML cannot contain, such as surrogates, and without hidden characters."""
    kept = (
        c if c == "\r" or not (is_hidden(c) or "\ud800" <= c < "\ue000" or c in "\f\ufffe\uffff") else "?" for c in text
    )
    return escape_command("".join(kept))


def summary_markdown(findings: Sequence[Finding], summary: str, sources: SourceLines) -> str:
    """Return the Markdown summary of a GitHub run: a table of findings, and the summary sentence."""
    lines = [f"### amp-check\n\n{summary}\n"]
    if findings:
        lines.append("\n| Rule | Severity | Place | What is wrong |\n| --- | --- | --- | --- |\n")
    for finding in findings[:ROWS]:
        place = f"{_relative_path(finding.filename)}:{_find_region(finding.site, sources)[0]}"
        cells = (
            f"{finding.code} {finding.name}",
            finding.severity,
            f"`{place}`",
            _format_cell_prefix(finding.site) + finding.message,
        )
        lines.append(
            "| " + " | ".join(make_visible(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |\n"
        )
    if len(findings) > ROWS:
        lines.append(f"\nand {len(findings) - ROWS:,} more.\n")
    return "".join(lines)


def write_step_summary(findings: Sequence[Finding], summary: str, sources: SourceLines) -> str:
    """Append the summary to the file of a GitHub step. Return the reason for a failure, or ""."""
    import os

    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return ""
    try:
        with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(summary_markdown(findings, summary, sources))
    except OSError as error:
        return f"the summary of this step cannot be written to {path}: {error.strerror}"
    return ""
