"""Files that are checked again and again while somebody edits them: only what an edit can change is read again."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from .cache import Cache
from .engine import SPOTS, InputError, Report, Settings, report, uncollected
from .sources import source_files
from .sources.source_files import Unsaved

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Files of a folder above which it is no project, but what projects lie in: then those that are edited are checked.
LARGEST_FOLDER = 5_000


class _Memory(Cache):
    """What is known from the last check, in this process instead of on the disk."""

    def __init__(self, held: dict[str, Any], paths: Sequence[str], settings: Settings) -> None:
        self._held = held
        super().__init__(os.curdir, paths, repr(settings), repr(settings.reading()))

    def _made_by(self) -> str:
        # Nobody exchanges the tool while it runs.
        return ""

    def _load(self) -> Any:
        return self._held or None

    def _store(self, made: dict[str, Any]) -> None:
        self._held.clear()
        self._held.update(made)


class Live:
    """A folder under one configuration, or where ``folder`` is None the edited files by themselves.

    ``warm`` says that the folder was checked to its end before, so that a check takes no longer than an edit needs.
    """

    def __init__(self, folder: str | None, settings: Settings) -> None:
        #: Blind spots are what no reading of any file has come by, and of that nothing is kept from check to check.
        self._keeps = SPOTS not in settings.select
        self._folder = folder if self._keeps else None
        self.settings = settings
        self._excluded = source_files.excluder(settings.exclude)
        self._files: list[str] | None = None
        self._held: dict[str, Any] = {}
        self._alone: dict[str, Any] = {}
        self.warm = self._folder is None

    def moved(self) -> None:
        """Files may have come, or gone."""
        self._files = None

    def excluded(self, path: str) -> bool:
        """Whether the configuration leaves out a file, or a folder around it, by its absolute path."""
        stop = os.path.realpath(self._folder) if self._folder is not None else ""
        for above in source_files.upward(os.path.realpath(path)):
            if above == stop:
                return False
            if self._excluded(os.path.basename(above), above):
                return True
        return False

    def check(
        self,
        named: Sequence[str],
        edited: Mapping[str, bytes],
        progress: Callable[[int, int], None] | None = None,
        *,
        quick: bool = False,
    ) -> Report:
        """Findings in the files that are named, among those of the folder, or with ``quick`` by themselves.

        ``edited`` is what an editor holds of files, and all paths are absolute. What ``progress`` raises ends the
        check, and what was read until then is kept.
        """
        with Unsaved(edited):
            return uncollected(lambda: self._check(named, progress, quick=quick))

    def _check(self, named: Sequence[str], progress: Callable[[int, int], None] | None, *, quick: bool) -> Report:
        files = [] if quick or self._folder is None else self._found(self._folder)
        if len(files) > LARGEST_FOLDER:
            self._folder = None
        if quick or self._folder is None:
            files, paths, held = list(named), list(named), self._alone
        else:
            known = set(files)
            files, paths, held = [*files, *(path for path in named if path not in known)], [self._folder], self._held
        shown = frozenset(named)
        store = _Memory(held, paths, self.settings) if self._keeps else None
        try:
            found = report(files, paths, shown, self.settings, progress, store=store, wanted=shown)
        except BaseException:
            if store is not None:
                store.write()
            raise
        self.warm = self.warm or not quick or self._folder is None
        return found

    def _found(self, folder: str) -> list[str]:
        """The files of the folder, by absolute path."""
        if self._files is None:
            try:
                self._files = source_files.find([folder], self.settings.exclude, gitignore=self.settings.gitignore)
            except InputError:
                # It was removed while it was open.
                self._files = []
        return self._files
