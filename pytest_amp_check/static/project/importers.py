"""Importers: files of a project that may import a file, found by name alone."""

from __future__ import annotations

from collections.abc import Iterable

from ..sources import source_files
from ..sources.patterns.declarations import iterate_imports

#: Number of names above which a search for each name takes longer than reading all imports.
MAX_SEPARATE_SEARCHES = 4


class Importers:
    """Index of the files that import a name; files with imports by run-time names count too."""

    def __init__(self) -> None:
        self._files_by_name: dict[str, list[str]] = {}
        self._files_by_import: dict[bytes, list[str]] | None = None
        self._imports_by_file: dict[str, list[tuple[bytes, bytes]]] = {}

    def imports_of(self, file: str) -> list[tuple[bytes, bytes]]:
        """Return the imports of a file: module, and imported name ("" for the module itself)."""
        known = self._imports_by_file.get(file)
        if known is None:
            imports = iterate_imports(source_files.load_or_nothing(file))
            known = self._imports_by_file[file] = [(module, name) for module, name, _ in imports]
        return known

    def importers_of(self, name: str, files: Iterable[str]) -> list[str]:
        """Return the files that import a name. ``files`` are the files of the project, the same in each call."""
        known = self._files_by_name.get(name)
        if known is None:
            known = self._files_by_name[name] = self._find_importers(name.encode("utf-8", "surrogateescape"), files)
        return known

    def _find_importers(self, name: bytes, files: Iterable[str]) -> list[str]:
        if len(self._files_by_name) < MAX_SEPARATE_SEARCHES:
            # A byte search leaves most files out.
            likely = (file for file in files if name in source_files.load_or_nothing(file))
            return [file for file in likely if name in self._imported_names(file)]
        if self._files_by_import is None:
            self._files_by_import = {}
            for file in files:
                for last in self._imported_names(file):
                    self._files_by_import.setdefault(last, []).append(file)
        return self._files_by_import.get(name, [])

    def _imported_names(self, file: str) -> set[bytes]:
        """Return the last names of a file's imports and of their modules."""
        return {last for module, name in self.imports_of(file) for last in (module.rpartition(b".")[2], name)}
