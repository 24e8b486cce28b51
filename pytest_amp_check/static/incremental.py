"""Incremental checks of files during editing: only files that an edit can affect are analyzed again."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from .cache import Cache
from .engine import Report, check_files, without_gc
from .file_analysis import UNANALYZED_CALL_CODE
from .settings import Settings
from .sources import source_files
from .sources.source_files import InputError, UnsavedFiles

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Maximum number of files in a project folder. A larger folder contains several projects, and only edited files are
#: checked.
LARGEST_FOLDER = 5_000


class _MemoryCache(Cache):
    """Cache of the last check in this process instead of on disk."""

    def __init__(self, data: dict[str, Any], paths: Sequence[str], settings: Settings) -> None:
        self._data = data
        super().__init__(os.curdir, paths, repr(settings), repr(settings.analysis_options()))

    def _maker_key(self) -> str:
        # The tool does not change while it runs.
        return ""

    def _load_data(self) -> Any:
        return self._data or None

    def _store_data(self, made: dict[str, Any]) -> None:
        self._data.clear()
        self._data.update(made)


class IncrementalChecker:
    """Checker for a folder under one configuration, or for single edited files if ``folder`` is None.

    ``is_warm`` says that the folder was checked completely before, so a check takes no longer than an edit needs.
    """

    def __init__(self, folder: str | None, settings: Settings) -> None:
        #: True unless unanalyzed calls are reported: they depend on all files, and checks keep no data about them.
        self._has_cache = UNANALYZED_CALL_CODE not in settings.select
        self._folder = folder if self._has_cache else None
        self.settings = settings
        self._exclusion_test = settings.files.exclusion_test()
        self._known_files: list[str] | None = None
        self._folder_data: dict[str, Any] = {}
        self._file_data: dict[str, Any] = {}
        self.is_warm = self._folder is None

    def forget_files(self) -> None:
        """Forget the list of files, because files may have been added or removed."""
        self._known_files = None

    def is_excluded(self, path: str) -> bool:
        """Return True if the configuration excludes a file, or a folder around it. ``path`` is absolute."""
        stop = os.path.realpath(self._folder) if self._folder is not None else ""
        for above in source_files.folders_upward(os.path.realpath(path)):
            if above == stop:
                return False
            if self._exclusion_test(os.path.basename(above), above):
                return True
        return False

    def check_named(
        self,
        named: Sequence[str],
        edited: Mapping[str, bytes],
        progress: Callable[[int, int], None] | None = None,
        *,
        quick: bool = False,
    ) -> Report:
        """Return the report on the named files, as part of the folder, or with ``quick`` alone.

        ``edited`` maps files to the content in an editor. All paths are absolute. An exception from ``progress`` ends
        the check; the results until then are kept.
        """
        with UnsavedFiles(edited):
            return without_gc(lambda: self._check_unsaved(named, progress, quick=quick))

    def _check_unsaved(
        self, named: Sequence[str], progress: Callable[[int, int], None] | None, *, quick: bool
    ) -> Report:
        files = [] if quick or self._folder is None else self._folder_files(self._folder)
        if len(files) > LARGEST_FOLDER:
            self._folder = None
        if quick or self._folder is None:
            files, paths, data = list(named), list(named), self._file_data
        else:
            known = set(files)
            files, paths, data = (
                [*files, *(path for path in named if path not in known)],
                [self._folder],
                self._folder_data,
            )
        shown = frozenset(named)
        store = _MemoryCache(data, paths, self.settings) if self._has_cache else None
        try:
            found = check_files(files, paths, shown, self.settings, progress, store=store, wanted=shown)
        except BaseException:
            if store is not None:
                store.write_cache()
            raise
        self.is_warm = self.is_warm or not quick or self._folder is None
        return found

    def _folder_files(self, folder: str) -> list[str]:
        """Return the files of the folder by absolute path."""
        if self._known_files is None:
            try:
                files = self.settings.files
                self._known_files = source_files.find_sources(
                    [folder], files.exclude, include=files.include, gitignore=files.gitignore
                )
            except InputError:
                # The folder was removed while it was open.
                self._known_files = []
        return self._known_files
