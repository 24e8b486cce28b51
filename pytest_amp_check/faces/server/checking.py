"""What is found in the documents of an editor: each among the files of its folder, under its own configuration."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from ...protocol.finding import Finding
from ...static import engine
from ...static.engine import Settings
from ...static.fixes import apply
from ...static.live import Live
from ...static.project.project import Project
from ...static.sources import programs
from ...static.sources.source_files import Unreadable, Unsaved
from .. import around
from .. import options as table
from ..around import Around
from ..text import Sources

#: Folders, each with a configuration, of which what was found is kept while nothing of them is open.
KEPT = 4


class Stale(Exception):
    """What is being checked is not what the editor has any more."""


class Text(NamedTuple):
    """A document at one moment: its name in findings, the path of its file if it has one, and what that would hold."""

    name: str
    path: str
    data: bytes


class Checked(NamedTuple):
    """What was found in one document, and what is needed to put it right."""

    findings: list[Finding]
    settings: Settings
    tree: Project


class Checker:
    """The folders that an editor has open. Used by one thread alone: files read what the editor holds meanwhile."""

    def __init__(self) -> None:
        self.folders: list[str] = []
        self._lives: dict[tuple[str | None, str], Live] = {}
        #: Sentences about what cannot be checked, and why, each with the folder or file that it concerns.
        self.wrong: dict[str, str] = {}

    def moved(self) -> None:
        """Files may have come, or gone."""
        for live in self._lives.values():
            live.moved()

    def check(self, texts: Sequence[Text], stale: Callable[[], bool]) -> Iterator[dict[str, Checked]]:
        """What is found in documents by their names, in parts, as it comes. Raises :class:`Stale`.

        Where a folder was not checked yet, its documents are checked by themselves before, which is sooner done.
        """

        def progress(done: int, of: int) -> None:
            if stale():
                raise Stale

        edited = {text.path: text.data for text in texts if text.path}
        for text in texts:
            if not text.path:
                yield {text.name: _alone(text)}
        groups = self._groups([path for path in edited if not os.path.isdir(path)])
        for quick in (True, False):
            for live, paths in groups:
                if quick and live.warm:
                    continue
                progress(0, 0)
                try:
                    yield _checked(live, paths, edited, progress, quick=quick)
                except Stale:
                    raise
                except Exception as error:  # noqa: BLE001 - the others are checked all the same
                    self.wrong[next(iter(paths))] = f"internal error: {type(error).__name__}: {error}: please report it"

    def _groups(self, paths: Iterable[str]) -> list[tuple[Live, dict[str, Around]]]:
        """The documents that are checked together: those of one folder with one configuration."""
        self.wrong = {}
        known: dict[str, Around | None] = {}
        groups: dict[tuple[str | None, str], tuple[Live, dict[str, Around]]] = {}
        for path in paths:
            beside = os.path.dirname(path)
            if beside not in known:
                known[beside] = self._around(beside)
            around = known[beside]
            if around is None:
                continue
            settings = around.settings
            above = [folder for folder in self.folders if path.startswith(os.path.join(folder, ""))]
            folder = max(above, key=len, default=None)
            key = (folder, f"{settings!r} {settings.reading()!r} {settings.exclude} {settings.gitignore}")
            live = self._lives.get(key)
            if live is None:
                live = self._lives[key] = Live(folder, settings)
            if not live.excluded(path):
                groups.setdefault(key, (live, {}))[1][path] = around
        # Those under a configuration that is not there any more are never asked for again.
        for key in [key for key in self._lives if key not in groups][: max(len(self._lives) - KEPT, 0)]:
            del self._lives[key]
        return list(groups.values())

    def _around(self, folder: str) -> Around | None:
        """What holds in a folder; None, and a sentence in ``wrong``, where it cannot be used."""
        try:
            return around.look(folder)
        except table.ConfigError as error:
            self.wrong[folder] = str(error)
            return None


def _checked(
    live: Live, paths: dict[str, Around], edited: dict[str, bytes], progress: Callable[[int, int], None], *, quick: bool
) -> dict[str, Checked]:
    """What is found in some documents of one folder and not known, with an offer of what puts it right."""
    report = live.check(list(paths), edited, progress, quick=quick)
    found: dict[str, list[Finding]] = {path: [] for path in paths}
    for finding in report.findings:
        if finding.filename in found:
            found[finding.filename].append(finding)
    with Unsaved(edited):
        sources = Sources()
        found = {path: paths[path].unknown(own, sources) for path, own in found.items()}
        offered = [each for path, own in found.items() for each in own if each.code in paths[path].fixable]
        apply.offer(offered, None, report.tree.members)
    return {path: Checked(own, live.settings, report.tree) for path, own in found.items()}


def _alone(text: Text) -> Checked:
    """What is found in a text that was never saved."""
    settings = Settings()
    try:
        source = programs.decode(text.name, text.data)
    except Unreadable:
        source = ""
    tree = engine.alone(source, text.name)
    findings = engine.check_again(source, text.name, settings, tree)
    apply.offer(findings, {text.name: text.data})
    return Checked(findings, settings, tree)
