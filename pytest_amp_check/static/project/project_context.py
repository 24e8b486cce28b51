"""Context of files that are fixed: the files that import from them, and the torch version that the project requires."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

from ...protocol.regular_files import LARGEST_CONFIG
from ..sources import source_files
from ..sources.patterns.declarations import imports_from, is_torch, taken_names

#: Version of torch: major and minor.
Version = tuple[int, int]
#: Number of names above which a search for each name takes longer than reading all imports.
MAX_SEPARATE_SEARCHES = 10
_TORCH_REQUIREMENT = (
    rb"(?<![\w.-])(?:py)?torch[\"']?\s*(?:\[[^\[\]]*\]\s*)?([=~<>]=?|=\s*[\"'][\^~>=]*)\s*v?(\d+)\.(\d+)"
)
_REQUIREMENT_FILES = r"(pyproject\.toml|setup\.(py|cfg)|requirements.*\.(txt|in)|environment.*\.ya?ml)$"


class ProjectContext:
    """Context of some files; ``others`` are possible importers, together with the files beside these.

    ``torch`` is the oldest version in use; None means that the project's own files say so.
    """

    def __init__(self, paths: Iterable[str] = (), others: Iterable[str] = (), torch: Version | None = None) -> None:
        self._torch_version = torch
        self._paths = list(paths)
        self._other_files = others
        self._names_by_path: dict[str, frozenset[str]] | None = None
        self._oldest_by_folder: dict[str, Version | None] = {}

    def imported_names(self, path: str) -> frozenset[str]:
        """Return the names that other files import from a file, or from a file of the same name.

        ``*`` stands for all names.
        """
        if self._names_by_path is None:
            self._names_by_path = _collect_imported_names(self._paths, self._other_files) if self._paths else {}
        return self._names_by_path.get(path, frozenset())

    def may_support(self, path: str, version: Version) -> bool:
        """Return True if the project of a file requires this torch version or a later version, or no version."""
        oldest = self._torch_version or self._oldest_required(os.path.dirname(os.path.abspath(path)))
        return oldest is None or oldest >= version

    def declares_version(self, path: str, version: Version) -> bool:
        """Return True if the project of a file requires this torch version or a later version."""
        oldest = self._torch_version or self._oldest_required(os.path.dirname(os.path.abspath(path)))
        return oldest is not None and oldest >= version

    def _oldest_required(self, folder: str) -> Version | None:
        if folder not in self._oldest_by_folder:
            asked = list(_required_versions(folder))
            above = os.path.dirname(folder)
            if asked or above == folder or os.path.exists(os.path.join(folder, ".git")):
                self._oldest_by_folder[folder] = min(asked, default=None)
            else:
                self._oldest_by_folder[folder] = self._oldest_required(above)
        return self._oldest_by_folder[folder]


def _required_versions(folder: str) -> Iterator[Version]:
    """Yield the torch versions in the requirement files of a folder."""
    try:
        found = [os.path.join(folder, name) for name in os.listdir(folder) if re.match(_REQUIREMENT_FILES, name)]
    except OSError:
        return
    for place, _, names in os.walk(os.path.join(folder, "requirements")):
        found += [os.path.join(place, name) for name in names if name.endswith((".txt", ".in"))]
    for path in found:
        data = source_files.load_or_nothing(path, LARGEST_CONFIG)
        for sign, major, minor in re.findall(_TORCH_REQUIREMENT, data):
            # An upper bound ("<") excludes the version that it names.
            yield int(major), int(minor) - (sign == b"<")


def _collect_imported_names(paths: list[str], files: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return for each file the names that other files import from the file, or from a file of the same name."""
    stems: dict[str, set[str]] = {source_files.import_stem(path): set() for path in paths}
    folders = {path: os.path.dirname(os.path.abspath(path)) for path in paths}
    beside = {folder: _sources_in(folder) for folder in folders.values()}
    words = [os.fsencode(stem) for stem in stems]
    if any(os.path.basename(path) == "__init__.py" for path in paths):
        # An import from inside a package may omit the name of the package.
        words.append(b"from .")
    for other in {os.path.abspath(file) for file in files}.union(*filter(None, beside.values())):
        data = source_files.load_or_nothing(other) if other.endswith(".py") else b""
        if len(words) >= MAX_SEPARATE_SEARCHES or any(word in data for word in words):
            for stem, names in _imports_from(data, other):
                if stem in stems:
                    stems[stem].update(name.decode("utf-8", "replace") for name in taken_names(names))
    # If a folder cannot be listed, its files are not known: every name may be imported.
    return {
        path: frozenset({"*"} if beside[folder] is None else stems[source_files.import_stem(path)])
        for path, folder in folders.items()
    }


def _sources_in(folder: str) -> set[str] | None:
    """Return the Python files in a folder, or None for a folder that cannot be listed."""
    try:
        with os.scandir(folder) as scan:
            return {entry.path for entry in scan if entry.name.endswith(".py")}
    except OSError:
        return None


def _imports_from(data: bytes, path: str) -> Iterator[tuple[str, bytes]]:
    """Yield the ``from`` imports of a file: last part of the module name, and text of the imported names."""
    for module, names in imports_from(data):
        # torch is no file of a project, even if a file of the project has that name.
        if is_torch(module):
            continue
        folder, inner = path, module.lstrip(b".")
        for _ in range(len(module) - len(inner)):
            folder = os.path.dirname(folder)
        yield inner.rpartition(b".")[2].decode() or os.path.basename(folder), names
