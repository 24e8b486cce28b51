"""Machine-readable findings: JSON, GitHub's workflow commands, SARIF."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from ..protocol.finding import Finding
from ..protocol.severities import ERROR, INFO, SEVERITIES, WARNING
from .finding_text import relative_path
from .printable import make_visible
from .rule_text import rule_markdown, short_reason
from .source_lines import SourceLines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..protocol.fix import Fix
    from ..protocol.sites import Site

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_COMMANDS = {ERROR: "error", WARNING: "warning", INFO: "notice"}
_LEVELS = {ERROR: "error", WARNING: "warning", INFO: "note"}


def dump_json(value: Any) -> str:
    import json

    # ASCII, so that every encoding of standard output is sufficient, also for lone surrogates in unusual file names.
    return escape_json_command(json.dumps(value, indent=2)) + "\n"


def escape_json_command(held: str) -> str:
    """Return JSON that contains no command of Azure Pipelines. Two number signs occur only in JSON strings."""
    return held.replace("##", "#\\u0023")


def format_json(findings: Iterable[Finding]) -> str:
    return dump_json([make_record(finding) for finding in findings])


def make_record(finding: Finding) -> dict[str, Any]:
    """Return a finding for JSON, with the address of the rule's page if the documentation has a public address."""
    found = finding.as_dict()
    found["url"] = find_rule_page(finding.code) or None
    return found


def make_passed_over_records(paths: Mapping[str, list[str]]) -> list[dict[str, Any]]:
    """Return records of skipped paths in the format of rule counts, without a rule."""
    shape = {"code": None, "name": "passed-over", "severity": INFO}
    return [{**shape, "count": len(found), "reason": reason, "paths": found} for reason, found in paths.items()]


def format_github(findings: Iterable[Finding], summary: str, sources: SourceLines) -> str:
    """Return workflow commands, most severe first.

    GitHub keeps ten commands of a severity in a step and silently drops the rest.
    """
    lines = []
    for finding in sorted(findings, key=lambda f: (SEVERITIES.index(f.severity), f.order())):
        site = finding.site
        line, column, end_line, end_column = _find_region(site, sources)
        properties = {
            "title": f"{finding.code} {finding.name}",
            "file": _relative_path(site.path),
            "line": line,
            "col": column,
            "endLine": end_line,
            "endColumn": end_column,
        }
        place = ",".join(f"{key}={_escape_property(str(value))}" for key, value in properties.items())
        address = find_rule_page(finding.code)
        text = _format_cell_prefix(site) + finding.message + (f"\n{address}" if address else "")
        lines.append(f"::{_COMMANDS[finding.severity]} {place}::{_escape_data(text)}\n")
    if lines and summary:
        lines.append(f"::notice title=amp-check::{_escape_data(summary)}\n")
    return "".join(lines)


def _find_region(site: Site, sources: SourceLines) -> tuple[int, int, int, int]:
    """Return first line, first column, last line and last column of a location in the file, all from 1.

    A line of a cell is no line of the file, so the position of the JSON string with the line is returned.
    """
    if site.cell is not None:
        line, column, _ = sources.locate_in_notebook(site, site.line)
        end_line, _, end_column = sources.locate_in_notebook(site, max(site.line, site.end_line))
        return line, column + 1, end_line, end_column + 1
    return max(site.line, 1), site.column + 1, max(site.end_line, site.line, 1), site.end_column + 1


def _format_cell_prefix(site: Site) -> str:
    return f"cell {site.cell}, line {site.line}: " if site.cell is not None else ""


def _escape_data(text: str) -> str:
    return make_visible(text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A"))


def _escape_property(text: str) -> str:
    return _escape_data(text).replace(":", "%3A").replace(",", "%2C")


def _relative_path(path: str) -> str:
    """Return a path for hosts: with forward slashes, relative to the repository, or else to the working folder."""
    root = _find_repository(os.getcwd())
    absolute = os.path.abspath(path)
    if root is not None and absolute.startswith(os.path.join(root, "")):
        return os.path.relpath(absolute, root).replace(os.sep, "/")
    return relative_path(os.path.normpath(path)).replace(os.sep, "/")


@cache
def _find_repository(folder: str) -> str | None:
    """Return the root folder of the repository that contains a folder, or None."""
    from ..static.sources.source_files import work_tree

    return work_tree(folder)


def format_sarif(findings: Sequence[Finding], sources: SourceLines) -> str:
    """Return SARIF 2.1.0: the broken rules with their texts, and the findings with traces."""
    from .. import __version__

    order = sorted({finding.code for finding in findings})
    index = {code: number for number, code in enumerate(order)}
    prints = _compute_fingerprints(findings, sources)
    results = [
        _make_sarif_result(finding, index[finding.code], prints[number], sources)
        for number, finding in enumerate(findings)
    ]
    driver: dict[str, Any] = {
        "name": "amp-check",
        "semanticVersion": __version__,
        "version": __version__,
        "rules": [_make_sarif_rule(code) for code in order],
    }
    if find_documentation_url():
        driver["informationUri"] = find_documentation_url()
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return dump_json({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]})


@functools.cache
def find_documentation_url() -> str:
    """Return the address of the documentation in the metadata of this distribution, or ""."""
    from importlib.metadata import PackageNotFoundError, metadata

    try:
        urls = metadata("pytest-amp-check").get_all("Project-URL") or ()
    except PackageNotFoundError:
        return ""
    for text in urls:
        label, _, url = str(text).partition(",")
        if label.strip().lower() == "documentation":
            return url.strip().rstrip("/")
    return ""


def find_rule_page(code: str) -> str:
    """Return the address of the page of a rule, or ""."""
    # The URL layout of mkdocs.
    return f"{find_documentation_url()}/rules/{code}/" if find_documentation_url() else ""


def _make_sarif_rule(code: str) -> dict[str, Any]:
    from ..protocol.rules import RULES

    rule = RULES[code]
    url = find_rule_page(code)
    address = {"helpUri": url} if url else {}
    return {
        "id": code,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": short_reason(rule)},
        **address,
        "help": {"text": f"{rule.rationale.strip()}\n\n{rule.fix_advice.strip()}", "markdown": rule_markdown(rule)},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
        "properties": {
            "tags": ["amp", "mixed-precision", "pytorch"],
            "problem.severity": "recommendation" if rule.severity == INFO else rule.severity,
        },
    }


def _make_sarif_result(finding: Finding, rule: int, fingerprint: str, sources: SourceLines) -> dict[str, Any]:
    message = _format_cell_prefix(finding.site) + finding.message
    if not finding.certain:
        message += f" ({finding.uncertainty})"
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": rule,
        "level": _LEVELS[finding.severity],
        "message": {"text": message},
        "locations": [_make_sarif_location(finding.site, sources)],
        "partialFingerprints": {"ampCheck/v1": fingerprint},
    }
    if finding.effect:
        result["properties"] = {"effect": finding.effect}
    if finding.trace:
        steps = [(step.site, step.text) for step in finding.trace]
        result["relatedLocations"] = [
            {"id": number, **_make_sarif_location(site, sources, text)} for number, (site, text) in enumerate(steps, 1)
        ]
        flow = [{"location": _make_sarif_location(site, sources, text)} for site, text in steps]
        result["codeFlows"] = [{"threadFlows": [{"locations": flow}]}]
    if finding.fix is not None and finding.cell is None:
        # Only in a plain file: the lines of a fix in a notebook are no lines of the file.
        result["fixes"] = [_make_sarif_fix(finding.site.path, finding.fix)]
    return result


def _make_sarif_fix(path: str, fix: Fix) -> dict[str, Any]:
    replacements = []
    for edit in fix.edits:
        names = ("startLine", "startColumn", "endLine", "endColumn")
        span = (edit.line, edit.column + 1, edit.end_line, edit.end_column + 1)
        replacements.append(
            {"deletedRegion": dict(zip(names, span, strict=True)), "insertedContent": {"text": edit.content}}
        )
    change = {"artifactLocation": _make_sarif_artifact(path), "replacements": replacements}
    return {"description": {"text": fix.message}, "artifactChanges": [change]}


def _make_sarif_artifact(path: str) -> dict[str, Any]:
    from urllib.parse import quote

    path = _relative_path(path)
    artifact: dict[str, Any] = {"uri": quote(path, errors="surrogateescape")}
    if os.path.isabs(path):
        artifact["uri"] = "file://" + ("" if path.startswith("/") else "/") + artifact["uri"]
    else:
        artifact["uriBaseId"] = "%SRCROOT%"
    return artifact


def _make_sarif_location(site: Site, sources: SourceLines, text: str = "") -> dict[str, Any]:
    names = ("startLine", "startColumn", "endLine", "endColumn")
    region = dict(zip(names, _find_region(site, sources), strict=True))
    location: dict[str, Any] = {
        "physicalLocation": {"artifactLocation": _make_sarif_artifact(site.path), "region": region}
    }
    if text:
        location["message"] = {"text": _format_cell_prefix(site) + text}
    return location


def _compute_fingerprints(findings: Sequence[Finding], sources: SourceLines) -> list[str]:
    """Return fingerprints that stay stable when lines move.

    A fingerprint is a hash of rule, file, source line, and number of the repetition.
    """
    from hashlib import sha256

    seen: dict[tuple[str, str, str], int] = {}
    prints = [""] * len(findings)
    for number in sorted(range(len(findings)), key=lambda i: findings[i].order()):
        finding = findings[number]
        line = " ".join((sources.find_line_at(finding.site, finding.line) or "").split())
        key = (finding.code, _relative_path(finding.filename), line)
        seen[key] = seen.get(key, 0) + 1
        text = "\0".join((*key, str(seen[key])))
        prints[number] = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return prints
