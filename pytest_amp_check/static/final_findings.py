"""Final findings: evidence of other files, settings and suppressions applied to the results of all files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from ..protocol import torch_api
from ..protocol.finding import Finding
from ..protocol.message_templates import fill_message
from ..protocol.rules import LABELS
from ..protocol.sites import Site
from ..protocol.suppressions import Suppressions
from . import evidence
from .cross_file import drop_findings_by_other_files
from .file_search import is_excluded
from .results import AnalysisResult
from .settings import Settings
from .sources import source_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .entry_points import ReachedFunctions
    from .interpreter.visited_calls import Span


def merge_reached(results: Sequence[AnalysisResult]) -> ReachedFunctions:
    """Merge the entry points of all results, with the functions that each entry point reaches."""
    reached: ReachedFunctions = {}
    for reading in results:
        for entry, functions in reading.reached_functions.items():
            reached.setdefault(entry, set()).update(functions)
    return reached


def uncovered_call_findings(results: Sequence[AnalysisResult]) -> list[Finding]:
    """Return findings for protocol calls that no result covers, joined states, and calls that were not followed."""
    if not any(reading.protocol_calls or reading.joined_functions or reading.unfollowed_calls for reading in results):
        return []
    from .unanalyzed_calls import joined_findings, unanalyzed_findings, unfollowed_findings

    passed: dict[Span, bool] = {}
    for reading in results:
        for span, is_analyzed in reading.visited_calls.items():
            passed[span] = passed.get(span, False) or is_analyzed
    uncovered = [finding for reading in results for finding in unanalyzed_findings(reading.protocol_calls, passed)]
    unfollowed = {span: call for reading in results for span, call in reading.unfollowed_calls.items()}
    return [
        *uncovered,
        *joined_findings(site for reading in results for site in reading.joined_functions),
        *unfollowed_findings(unfollowed.values()),
    ]


def finish_findings(
    results: list[AnalysisResult],
    files: list[str],
    settings: Settings,
    texts: Mapping[str, str] | None = None,
    beside: Sequence[str] | None = None,
    wanted: frozenset[str] | None = None,
) -> list[Finding]:
    """Return the findings in all files, without suppressed findings and with unused suppressions.

    If the other files ``beside`` these are known, findings in them are moved to the checked files that take part.
    """
    named = frozenset(files)
    by_path: dict[str, list[Finding]] = {
        reading.path: [] for reading in results if reading.has_own_comments and reading.path in named
    }
    other_files: dict[str, list[Finding]] = {}

    def text_of(path: str) -> str:
        return _read_text(path, settings)

    kept = drop_findings_by_other_files(
        evidence.select_findings(results, merge_reached(results)), [*files, *(beside or ())], text_of
    )
    for finding in (*kept, *uncovered_call_findings(results)):
        (by_path if finding.site.path in named else other_files).setdefault(finding.site.path, []).append(finding)
    settled = [finding for reading in results if reading.path in named for finding in reading.finished_findings]
    if beside is not None:
        settled += _participating_findings(other_files, named, settings)
    for path, findings in by_path.items():
        if wanted is not None and path not in wanted:
            continue
        text = texts[path] if texts and path in texts else text_of(path)
        settled += suppress_findings(findings, text, path, settings)
    return sorted(_drop_irreplaceable(settled, settings), key=Finding.order)


def _participating_findings(
    away: dict[str, list[Finding]], named: frozenset[str], settings: Settings
) -> Iterator[Finding]:
    """Yield the findings in other files in which a checked file takes part, each at the line in the checked file.

    Exclusions and suppressions at the location of the mistake apply at every location that shows the mistake.
    """
    from .importing_files import move_to_named_file

    for path, findings in away.items():
        moved = [(finding, there) for finding in findings if (there := move_to_named_file(finding, named)) is not None]
        if moved and not is_excluded(path, settings, None, named=False):
            suppressions = (
                Suppressions.from_text(_read_text(path, settings))
                if settings.for_file(path).suppress
                else Suppressions()
            )
            kept = {
                id(f)
                for f in apply_settings([f for f, _ in moved if not suppressions.suppresses_finding(f)], path, settings)
            }
            for finding, there in moved:
                if id(finding) in kept:
                    there.severity = finding.severity
                    yield there


def _read_text(path: str, settings: Settings) -> str:
    try:
        return source_files.read_python(path, settings.largest)
    except source_files.Unreadable:
        return ""


def _drop_irreplaceable(findings: list[Finding], settings: Settings) -> list[Finding]:
    """Drop findings about deprecated names without a replacement in the project's oldest torch."""
    if all(finding.code != "AMP901" for finding in findings):
        return findings
    from .project.project_context import ProjectContext

    context = ProjectContext(torch=settings.torch)

    def is_replaceable(finding: Finding) -> bool:
        path = finding.filename
        # A text without a file belongs to no project.
        return path.startswith("<") or context.may_support(path, torch_api.replacement_version(finding.names["old"]))

    return [finding for finding in findings if finding.code != "AMP901" or is_replaceable(finding)]


def apply_settings(findings: list[Finding], path: str, settings: Settings) -> list[Finding]:
    """Return the findings in a file that the settings select, with the severity from the settings."""
    settings = settings.for_file(path)
    active = settings.select - _ignored_codes(path, settings)
    kept = [f for f in findings if f.code in active]
    for finding in kept:
        finding.severity = settings.severity.get(finding.code, finding.severity)
    kept.sort(key=Finding.order)
    return kept


def suppress_findings(findings: list[Finding], text: str, path: str, settings: Settings) -> list[Finding]:
    """Return the findings in one text that no comment suppresses and no setting disables, with the settings applied.

    Findings about the comments themselves are added: unused, malformed and ambiguous suppressions.
    """
    # Without a finding to suppress, only a comment of amp-check itself can be unused.
    settings = settings.for_file(path)
    wanted = settings.suppress and (findings or Suppressions.has_own_comment(text))
    suppressions = Suppressions.from_text(text) if wanted else Suppressions()
    active = settings.select - _ignored_codes(path, settings)
    kept = [f for f in findings if f.code in active and not suppressions.suppresses_finding(f)]
    rule, violation = LABELS["suppression:unused"]
    if rule.code in active:
        for line, column, end_column, words in suppressions.find_unused(active):
            message, remedy = fill_message(violation.message, {"reason": words})
            site = Site(path, line, column, line, end_column)
            finding = Finding(
                rule.code, rule.name, rule.severity, message, site, label="suppression:unused", remedy=remedy
            )
            finding.names["reason"] = words
            if not suppressions.suppresses_finding(finding):
                kept.append(finding)
        unused = {(found.line, found.site.column) for found in kept if found.code == rule.code}
        for comment in suppressions.malformed_comments:
            if comment.is_read and (comment.line, comment.column) in unused:
                continue
            label = "suppression:ambiguous" if comment.is_read else "suppression:malformed"
            site = Site(path, comment.line, comment.column, comment.line, comment.end_column)
            message, remedy = fill_message(LABELS[label][1].message, {"remedy": comment.remedy})
            kept.append(Finding(rule.code, rule.name, rule.severity, message, site, label=label, remedy=remedy))
    return apply_settings(kept, path, settings)


def _ignored_codes(path: str, settings: Settings) -> frozenset[str]:
    """Return the codes that the configuration ignores in a file."""
    ignored: frozenset[str] = frozenset()
    if settings.per_file_ignores:
        real = os.path.realpath(path)
        for pattern, codes in settings.per_file_ignores:
            bare = pattern.removeprefix("!")
            if source_files.exclusion_test((bare,))(os.path.basename(real), real) == (bare == pattern):
                ignored |= codes
    return ignored
