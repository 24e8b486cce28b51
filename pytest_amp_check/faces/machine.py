"""Findings for other programs: JSON, GitHub's workflow commands, SARIF."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from ..protocol.finding import ERROR, INFO, SEVERITIES, WARNING, Finding
from .text import Sources, below, rule_markdown, visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..protocol.events import Site
    from ..protocol.fix import Fix

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_COMMANDS = {ERROR: "error", WARNING: "warning", INFO: "notice"}
_LEVELS = {ERROR: "error", WARNING: "warning", INFO: "note"}


def dumps(value: Any) -> str:
    import json

    # ASCII, so that every encoding of standard output can hold it, lone surrogates of odd file names too.
    return no_command(json.dumps(value, indent=2)) + "\n"


def no_command(held: str) -> str:
    """Return JSON in which Azure Pipelines finds no command: two such characters stand in its strings alone."""
    return held.replace("##", "#\\u0023")


def json_text(findings: Iterable[Finding]) -> str:
    return dumps([record(finding) for finding in findings])


def record(finding: Finding) -> dict[str, Any]:
    """A finding as JSON has it, with the address of its rule's page, or where that lies in the repository."""
    found = finding.as_dict()
    found["url"] = page(finding.code) or found["url"]
    return found


def passed_over(paths: Mapping[str, list[str]]) -> list[dict[str, Any]]:
    """What was passed over, in the shape of the counts of rules; no rule has to do with it."""
    shape = {"code": None, "name": "passed-over", "severity": INFO}
    return [{**shape, "count": len(found), "reason": reason, "paths": found} for reason, found in paths.items()]


def github(findings: Iterable[Finding], summary: str, sources: Sources) -> str:
    """Workflow commands, the worst first: GitHub keeps ten of a severity in a step and drops the rest unsaid."""
    lines = []
    for finding in sorted(findings, key=lambda f: (SEVERITIES.index(f.severity), f.order())):
        site = finding.site
        line, column, end_line, end_column = _region(site, sources)
        properties = {
            "title": f"{finding.code} {finding.name}",
            "file": _relative(site.path),
            "line": line,
            "col": column,
            "endLine": end_line,
            "endColumn": end_column,
        }
        place = ",".join(f"{key}={_property(str(value))}" for key, value in properties.items())
        lines.append(f"::{_COMMANDS[finding.severity]} {place}::{_data(_in_cell(site) + finding.message)}\n")
    if lines and summary:
        lines.append(f"::notice title=amp-check::{_data(summary)}\n")
    return "".join(lines)


def _region(site: Site, sources: Sources) -> tuple[int, int, int, int]:
    """First line and column and last line and column of a place in its file, all from 1.

    A line of a cell is no line of its file: what counts those gets the string of the JSON that holds it.
    """
    if site.cell is not None:
        line, column, _ = sources.in_notebook(site, site.line)
        end_line, _, end_column = sources.in_notebook(site, max(site.line, site.end_line))
        return line, column + 1, end_line, end_column + 1
    return max(site.line, 1), site.column + 1, max(site.end_line, site.line, 1), site.end_column + 1


def _in_cell(site: Site) -> str:
    return f"cell {site.cell}, line {site.line}: " if site.cell is not None else ""


def _data(text: str) -> str:
    return visible(text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A"))


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _relative(path: str) -> str:
    """The path as hosts want it: with forward slashes, relative to the repository, or else to the working folder."""
    root = _repository(os.getcwd())
    absolute = os.path.abspath(path)
    if root is not None and absolute.startswith(os.path.join(root, "")):
        return os.path.relpath(absolute, root).replace(os.sep, "/")
    return below(os.path.normpath(path)).replace(os.sep, "/")


@cache
def _repository(folder: str) -> str | None:
    """The folder of the repository that a folder lies in."""
    from ..static.sources.source_files import work_tree

    return work_tree(folder)


def sarif(findings: Sequence[Finding], sources: Sources) -> str:
    """SARIF 2.1.0: the rules that found something with their own text, the findings with the path that led to them."""
    from .. import __version__

    order = sorted({finding.code for finding in findings})
    index = {code: number for number, code in enumerate(order)}
    prints = _fingerprints(findings, sources)
    results = [
        _result(finding, index[finding.code], prints[number], sources) for number, finding in enumerate(findings)
    ]
    driver: dict[str, Any] = {
        "name": "amp-check",
        "semanticVersion": __version__,
        "version": __version__,
        "rules": [_rule(code) for code in order],
    }
    if home():
        driver["informationUri"] = home()
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]})


@functools.cache
def home() -> str:
    """Where the documentation lies, as the metadata of this distribution says; nothing, where that says nothing."""
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


def page(code: str) -> str:
    """The address of the page of a rule, or nothing."""
    # As mkdocs lays them out.
    return f"{home()}/rules/{code}/" if home() else ""


def _rule(code: str) -> dict[str, Any]:
    from ..protocol.rules import RULES

    rule = RULES[code]
    url = page(code)
    address = {"helpUri": url} if url else {}
    return {
        "id": code,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": rule.why.strip()},
        **address,
        "help": {"text": f"{rule.why.strip()}\n\n{rule.fix.strip()}", "markdown": rule_markdown(rule)},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
        "properties": {
            "tags": ["amp", "mixed-precision", "pytorch"],
            "problem.severity": "recommendation" if rule.severity == INFO else rule.severity,
        },
    }


def _result(finding: Finding, rule: int, fingerprint: str, sources: Sources) -> dict[str, Any]:
    message = _in_cell(finding.site) + finding.message
    if not finding.certain:
        message += " (on some paths only" + (f", {finding.condition})" if finding.condition else ")")
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": rule,
        "level": _LEVELS[finding.severity],
        "message": {"text": message},
        "locations": [_location(finding.site, sources)],
        "partialFingerprints": {"ampCheck/v1": fingerprint},
    }
    if finding.witness:
        steps = [(step.site, step.text) for step in finding.witness]
        result["relatedLocations"] = [
            {"id": number, **_location(site, sources, text)} for number, (site, text) in enumerate(steps, 1)
        ]
        flow = [{"location": _location(site, sources, text)} for site, text in steps]
        result["codeFlows"] = [{"threadFlows": [{"locations": flow}]}]
    if finding.fix is not None and finding.cell is None:
        # Only of a file: what a fix counts in a notebook is no line of its file.
        result["fixes"] = [_fix(finding.site.path, finding.fix)]
    return result


def _fix(path: str, fix: Fix) -> dict[str, Any]:
    replacements = []
    for edit in fix.edits:
        names = ("startLine", "startColumn", "endLine", "endColumn")
        span = (edit.line, edit.column + 1, edit.end_line, edit.end_column + 1)
        replacements.append(
            {"deletedRegion": dict(zip(names, span, strict=True)), "insertedContent": {"text": edit.content}}
        )
    change = {"artifactLocation": _artifact(path), "replacements": replacements}
    return {"description": {"text": fix.message}, "artifactChanges": [change]}


def _artifact(path: str) -> dict[str, Any]:
    from urllib.parse import quote

    path = _relative(path)
    artifact: dict[str, Any] = {"uri": quote(path, errors="surrogateescape")}
    if os.path.isabs(path):
        artifact["uri"] = "file://" + ("" if path.startswith("/") else "/") + artifact["uri"]
    else:
        artifact["uriBaseId"] = "%SRCROOT%"
    return artifact


def _location(site: Site, sources: Sources, text: str = "") -> dict[str, Any]:
    names = ("startLine", "startColumn", "endLine", "endColumn")
    region = dict(zip(names, _region(site, sources), strict=True))
    location: dict[str, Any] = {"physicalLocation": {"artifactLocation": _artifact(site.path), "region": region}}
    if text:
        location["message"] = {"text": _in_cell(site) + text}
    return location


def _fingerprints(findings: Sequence[Finding], sources: Sources) -> list[str]:
    """What stays of each finding when lines move: its rule, file, source line, and which of equal ones it is."""
    from hashlib import sha256

    seen: dict[tuple[str, str, str], int] = {}
    prints = [""] * len(findings)
    for number in sorted(range(len(findings)), key=lambda i: findings[i].order()):
        finding = findings[number]
        line = " ".join((sources.at(finding.site, finding.line) or "").split())
        key = (finding.code, _relative(finding.filename), line)
        seen[key] = seen.get(key, 0) + 1
        text = "\0".join((*key, str(seen[key])))
        prints[number] = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return prints
