"""Shards: parts of the files of a check for several machines, which together report what one check reports."""

from __future__ import annotations

import os
from bisect import bisect
from collections.abc import Iterable, Sequence

from ..protocol.fast_namedtuple import NamedTuple
from ..protocol.finding import Finding
from .project.import_reach import iterate_users
from .project.project import Project
from .results import AnalysisResult
from .sources.prefilter import Prescan


class Shard(NamedTuple):
    """Part ``number`` of ``total`` parts of the files, counted from 1."""

    number: int
    total: int


class ShardedFiles:
    """The files to analyze in order of their paths, divided into parts of about the same size in bytes.

    Neighbors in this order import the same files, which are then parsed once. A finding belongs to the part of its own
    file if the analysis of this file shows it, otherwise to the part of the first file whose analysis does. Files of
    other parts are analyzed only where a finding depends on them.
    """

    def __init__(self, todo: Sequence[Prescan], shard: Shard) -> None:
        self._number = shard.number
        #: First path of each part but the first.
        self._starts: list[str] = []
        files = sorted(todo, key=lambda look: look.path)
        size, before = sum(look.size + 1 for look in files), 0
        for look in files:
            while len(self._starts) + 1 < shard.total and before * shard.total >= size * (len(self._starts) + 1):
                self._starts.append(look.path)
            before += look.size + 1

    def contains(self, path: str) -> bool:
        """Return True if a file belongs to this part, whether or not it is analyzed."""
        return bisect(self._starts, path) + 1 == self._number

    def files_with_findings(self, others: Sequence[Prescan], results: Sequence[AnalysisResult]) -> list[Prescan]:
        """Return the files of other parts in which files of this part show a finding."""
        paths = {finding.site.path for result in results for finding in result.findings}
        return [look for look in others if look.path in paths]

    def files_with_evidence(
        self, others: Sequence[Prescan], results: Sequence[AnalysisResult], project: Project
    ) -> list[Prescan]:
        """Return the files of other parts whose analysis may show, refute or suppress a finding of this part."""
        analyzed = {result.path for result in results}
        owners = _files_that_show(results)
        paths: set[str] = set()
        for result in results:
            # Any finding may be the one that a comment suppresses.
            if result.has_own_comments and self.contains(result.path):
                paths.add(result.path)
            for finding in result.findings:
                is_shown_there = owners[_key(finding)] == finding.site.path
                if not is_shown_there or (self.contains(finding.site.path) and finding.discovery.entries):
                    paths.update((finding.site.path, *(path for path, _ in finding.discovery.entries)))
        reached = {user for path in sorted(paths) for user in iterate_users(project, os.path.abspath(path))}
        return [look for look in others if look.path not in analyzed and os.path.abspath(look.path) in reached]

    def own_findings(self, findings: Iterable[Finding], results: Sequence[AnalysisResult]) -> list[Finding]:
        """Return the findings that belong to this part, out of the final findings."""
        owners = _files_that_show(results)
        return [each for each in findings if self.contains(owners.get(_key(each), each.site.path))]


def _files_that_show(results: Sequence[AnalysisResult]) -> dict[tuple[str, str, int, int], str]:
    """Return the file of each finding if its analysis shows the finding, otherwise the first file that does."""
    shown: dict[tuple[str, str, int, int], str] = {}
    for result in results:
        for finding in result.findings:
            key = _key(finding)
            known = shown.get(key, result.path)
            shown[key] = finding.site.path if finding.site.path in (known, result.path) else min(known, result.path)
    return shown


def _key(finding: Finding) -> tuple[str, str, int, int]:
    """Return what a finding of a named file keeps of the finding in another file."""
    site = finding.elsewhere or finding.site
    return finding.code, site.path, site.line, site.column
