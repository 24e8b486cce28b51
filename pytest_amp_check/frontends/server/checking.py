"""What is found in the documents of an editor: each among the files of its folder, under its own configuration."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from ...protocol.finding import Finding
from ...static import engine
from ...static.engine import Settings
from ...static.fixes import fix_files
from ...static.incremental import IncrementalChecker
from ...static.project.project import Project
from ...static.sources import code_blocks
from ...static.sources.source_files import Unreadable, UnsavedFiles
from .. import folder_config
from .. import options as table
from ..folder_config import FolderConfig
from ..text import SourceLines

#: Folders, each with a configuration, of which what was found is kept while nothing of them is open.
KEPT = 4


class StaleCheck(Exception):
    """What is being checked is not what the editor has any more."""


class DocumentText(NamedTuple):
    """A document at one moment: its name in findings, the path of its file if it has one, and what that would hold."""

    name: str
    path: str
    data: bytes


class CheckedDocument(NamedTuple):
    """What was found in one document, and what is needed to put it right."""

    findings: list[Finding]
    settings: Settings
    project: Project


class DocumentChecker:
    """The folders that an editor has open. Used by one thread alone: files read what the editor holds meanwhile."""

    def __init__(self) -> None:
        self.folders: list[str] = []
        self._incremental_checkers: dict[tuple[str | None, str], IncrementalChecker] = {}
        #: Sentences about what cannot be checked, and why, each with the folder or file that it concerns.
        self.errors: dict[str, str] = {}

    def note_moved_files(self) -> None:
        """Files may have come, or gone."""
        for live in self._incremental_checkers.values():
            live.forget_files()

    def check_documents(
        self, texts: Sequence[DocumentText], is_stale: Callable[[], bool]
    ) -> Iterator[dict[str, CheckedDocument]]:
        """What is found in documents by their names, in parts, as it comes. Raises :class:`Stale`.

        Where a folder was not checked yet, its documents are checked by themselves before, which is sooner done.
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
        """The documents that are checked together: those of one folder with one configuration."""
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
            key = (folder, f"{settings!r} {settings.analysis_options()!r} {settings.exclude} {settings.gitignore}")
            checker = self._incremental_checkers.get(key)
            if checker is None:
                checker = self._incremental_checkers[key] = IncrementalChecker(folder, settings)
            if not checker.is_excluded(path):
                groups.setdefault(key, (checker, {}))[1][path] = around
        # Those under a configuration that is not there any more are never asked for again.
        for key in [key for key in self._incremental_checkers if key not in groups][
            : max(len(self._incremental_checkers) - KEPT, 0)
        ]:
            del self._incremental_checkers[key]
        return list(groups.values())

    def _load_config(self, folder: str) -> FolderConfig | None:
        """What holds in a folder; None, and a sentence in ``wrong``, where it cannot be used."""
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
    """What is found in some documents of one folder and not known, with an offer of what puts it right."""
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
    """What is found in a text that was never saved."""
    settings = Settings()
    try:
        source = code_blocks.decode_source(text.name, text.data)
    except Unreadable:
        source = ""
    tree = engine.single_file_project(source, text.name)
    findings = engine.check_in_project(source, text.name, settings, tree)
    fix_files.offer_fixes(findings, {text.name: text.data})
    return CheckedDocument(findings, settings, tree)
