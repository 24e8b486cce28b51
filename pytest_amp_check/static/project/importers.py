"""Who imports what, by name alone: the files of a project that may import another one."""

from __future__ import annotations

from collections.abc import Iterable

from ..sources import patterns, source_files

#: From so many names on, looking for each of them takes longer than reading all imports.
MANY = 4


class Importers:
    """The files that import something under a name; those that do so by names that a run knows, too."""

    def __init__(self) -> None:
        self._asked: dict[str, list[str]] = {}
        self._all: dict[bytes, list[str]] | None = None

    def of(self, name: str, files: Iterable[str]) -> list[str]:
        """Those among the files of the project, which are the same at each call."""
        known = self._asked.get(name)
        if known is None:
            known = self._asked[name] = self._looked_up(name.encode("utf-8", "surrogateescape"), files)
        return known

    def _looked_up(self, name: bytes, files: Iterable[str]) -> list[str]:
        if len(self._asked) < MANY:
            return [file for file in files if name in _imported(file, name)]
        if self._all is None:
            self._all = {}
            for file in files:
                for last in _imported(file):
                    self._all.setdefault(last, []).append(file)
        return self._all.get(name, [])


def _imported(file: str, word: bytes = b"") -> set[bytes]:
    """The last names of what a file imports, and of what it imports from, if it holds a word."""
    data = source_files.load_or_nothing(file)
    if word not in data:
        return set()
    return {last for module, name, _ in patterns.imported(data) for last in (module.rpartition(b".")[2], name)}
