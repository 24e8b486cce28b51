"""Checks of open documents: each with the files of its folder, and with the folder's configuration."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from ...protocol.finding import Finding
from ...static import engine
from ...static.fixes import fix_files
from ...static.incremental import IncrementalChecker
from ...static.project.project import Project
from ...static.settings import Settings
from ...static.sources import code_blocks
from ...static.sources.source_files import Unreadable, UnsavedFiles
from .. import folder_config
from .. import options as table
from ..folder_config import FolderConfig
from ..source_lines import SourceLines

#: Number of folders with a configuration whose results are cached while no document of the folder is open.
KEPT = 4


class StaleCheck(Exception):
    """Exception that stops a check of outdated content."""


class DocumentText(NamedTuple):
    """A snapshot of a document: the name in findings, the path of the file if any, and the content."""

    name: str
    path: str
    data: bytes


class CheckedDocument(NamedTuple):
    """Findings of one document, and the data to fix them."""

    findings: list[Finding]
    settings: Settings
    project: Project


class DocumentChecker:
    """Checker for the folders of an editor, for use in a single thread. Unsaved content replaces files on disk."""

    def __init__(self) -> None:
        self.folders: list[str] = []
        self._incremental_checkers: dict[tuple[str | None, str], IncrementalChecker] = {}
        #: Errors by the folder or file that cannot be checked.
        self.errors: dict[str, str] = {}

    def note_moved_files(self) -> None:
        """Note that files may have been created or deleted."""
        for live in self._incremental_checkers.values():
            live.forget_files()

    def check_documents(
        self, texts: Sequence[DocumentText], is_stale: Callable[[], bool]
    ) -> Iterator[dict[str, CheckedDocument]]:
        """Yield the findings of documents by name, in several parts.

        Raise :class:`StaleCheck` if the content is outdated.

        Documents of a folder that was not checked before are first checked without the folder, which is faster.
        """

        def report_progress(done: int, total: int) -> None:
            if is_stale():
                raise StaleCheck

        edited = {text.path: text.data for text in texts if text.path}
        for text in texts:
            if not text.path:
                yield {text.name: _check_unsaved(text)}
        groups = self._group_documents([path for path in edited if not os.path.isdir(path)])
        for quick in (True, False):
            for checker, paths in groups:
                if quick and checker.is_warm:
                    continue
                report_progress(0, 0)
                try:
                    yield _check_group(checker, paths, edited, report_progress, quick=quick)
                except StaleCheck:
                    raise
                except Exception as error:  # noqa: BLE001 - the others are checked all the same
                    self.errors[next(iter(paths))] = (
                        f"internal error: {type(error).__name__}: {error}: please report it"
                    )

    def _group_documents(self, paths: Iterable[str]) -> list[tuple[IncrementalChecker, dict[str, FolderConfig]]]:
        """Group documents by folder and configuration, for a common check."""
        self.errors = {}
        known: dict[str, FolderConfig | None] = {}
        groups: dict[tuple[str | None, str], tuple[IncrementalChecker, dict[str, FolderConfig]]] = {}
        for path in paths:
            beside = os.path.dirname(path)
            if beside not in known:
                known[beside] = self._load_config(beside)
            around = known[beside]
            if around is None:
                continue
            settings = around.settings
            above = [folder for folder in self.folders if path.startswith(os.path.join(folder, ""))]
            folder = max(above, key=len, default=None)
            key = (folder, f"{settings!r} {settings.analysis_options()!r} {settings.files}")
            checker = self._incremental_checkers.get(key)
            if checker is None:
                checker = self._incremental_checkers[key] = IncrementalChecker(folder, settings)
            if not checker.is_excluded(path):
                groups.setdefault(key, (checker, {}))[1][path] = around
        # Checkers of a changed configuration are never used again.
        for key in [key for key in self._incremental_checkers if key not in groups][
            : max(len(self._incremental_checkers) - KEPT, 0)
        ]:
            del self._incremental_checkers[key]
        return list(groups.values())

    def _load_config(self, folder: str) -> FolderConfig | None:
        """Return the configuration of a folder, or None with a sentence in ``errors`` if invalid."""
        try:
            return folder_config.load_folder_config(folder)
        except table.ConfigError as error:
            self.errors[folder] = str(error)
            return None


def _check_group(
    checker: IncrementalChecker,
    paths: dict[str, FolderConfig],
    edited: dict[str, bytes],
    progress: Callable[[int, int], None],
    *,
    quick: bool,
) -> dict[str, CheckedDocument]:
    """Return the new findings of some documents of one folder, with fixes."""
    report = checker.check_named(list(paths), edited, progress, quick=quick)
    found: dict[str, list[Finding]] = {path: [] for path in paths}
    for finding in report.findings:
        if finding.filename in found:
            found[finding.filename].append(finding)
    with UnsavedFiles(edited):
        sources = SourceLines()
        found = {path: paths[path].find_new(own, sources) for path, own in found.items()}
        offered = [each for path, own in found.items() for each in own if each.code in paths[path].fixable_codes]
        fix_files.offer_fixes(offered, None, report.tree.members)
    return {path: CheckedDocument(own, checker.settings, report.tree) for path, own in found.items()}


def _check_unsaved(text: DocumentText) -> CheckedDocument:
    """Check a text that was never saved."""
    settings = Settings()
    try:
        source = code_blocks.decode_source(text.name, text.data)
    except Unreadable:
        source = ""
    tree = engine.single_file_project(source, text.name)
    findings = engine.check_in_project(source, text.name, settings, tree)
    fix_files.offer_fixes(findings, {text.name: text.data})
    return CheckedDocument(findings, settings, tree)
