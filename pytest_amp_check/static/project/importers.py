"""Importers: files of a project that may import a file, found by name alone."""

from __future__ import annotations

from collections.abc import Iterable

from ..sources import patterns, source_files

#: Number of names above which a search for each name takes longer than reading all imports.
MAX_SEPARATE_SEARCHES = 4


class Importers:
    """Index of the files that import a name; files with imports by run-time names count too."""

    def __init__(self) -> None:
        self._files_by_name: dict[str, list[str]] = {}
        self._files_by_import: dict[bytes, list[str]] | None = None

    def importers_of(self, name: str, files: Iterable[str]) -> list[str]:
        """Return the files that import a name. ``files`` are the files of the project, the same in each call."""
        known = self._files_by_name.get(name)
        if known is None:
            known = self._files_by_name[name] = self._find_importers(name.encode("utf-8", "surrogateescape"), files)
        return known

    def _find_importers(self, name: bytes, files: Iterable[str]) -> list[str]:
        if len(self._files_by_name) < MAX_SEPARATE_SEARCHES:
            return [file for file in files if name in _imported_names(file, name)]
        if self._files_by_import is None:
            self._files_by_import = {}
            for file in files:
                for last in _imported_names(file):
                    self._files_by_import.setdefault(last, []).append(file)
        return self._files_by_import.get(name, [])


def _imported_names(file: str, word: bytes = b"") -> set[bytes]:
    """Return the last names of a file's imports and of their modules; no names if the file lacks ``word``."""
    data = source_files.load_or_nothing(file)
    if word not in data:
        return set()
    return {last for module, name, _ in patterns.iterate_imports(data) for last in (module.rpartition(b".")[2], name)}
