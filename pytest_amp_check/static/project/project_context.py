"""What lies around files that are being put right: who imports from them, and which torch their project asks for."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

from ...protocol.regular_files import LARGEST_CONFIG
from ..sources import patterns, source_files

#: A version of torch.
Version = tuple[int, int]
#: From so many words on, looking for each of them takes longer than reading all imports.
MAX_SEPARATE_SEARCHES = 10
_TORCH_REQUIREMENT = (
    rb"(?<![\w.-])(?:py)?torch[\"']?\s*(?:\[[^\[\]]*\]\s*)?([=~<>]=?|=\s*[\"'][\^~>=]*)\s*v?(\d+)\.(\d+)"
)
_REQUIREMENT_FILES = r"(pyproject\.toml|setup\.(py|cfg)|requirements.*\.(txt|in)|environment.*\.ya?ml)$"


class ProjectContext:
    """What lies around some files; ``others`` are those that may import them, with what lies beside these.

    ``torch`` is the oldest version in use, where the files of the project are not to be asked.
    """

    def __init__(self, paths: Iterable[str] = (), others: Iterable[str] = (), torch: Version | None = None) -> None:
        self._torch_version = torch
        self._paths = list(paths)
        self._other_files = others
        self._names_by_path: dict[str, frozenset[str]] | None = None
        self._oldest_by_folder: dict[str, Version | None] = {}

    def imported_names(self, path: str) -> frozenset[str]:
        """The names that other files import from a file, or from one that is called the same; ``*`` for all."""
        if self._names_by_path is None:
            self._names_by_path = _collect_imported_names(self._paths, self._other_files) if self._paths else {}
        return self._names_by_path.get(path, frozenset())

    def may_support(self, path: str, version: Version) -> bool:
        """Whether the project of a file asks for this version of torch, or a later one, or says nothing of it."""
        oldest = self._torch_version or self._oldest_required(os.path.dirname(os.path.abspath(path)))
        return oldest is None or oldest >= version

    def declares_version(self, path: str, version: Version) -> bool:
        """Whether the project of a file asks for this version of torch, or a later one."""
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
    """The versions of torch that the files of a folder ask for which say what a project needs."""
    try:
        found = [os.path.join(folder, name) for name in os.listdir(folder) if re.match(_REQUIREMENT_FILES, name)]
    except OSError:
        return
    for place, _, names in os.walk(os.path.join(folder, "requirements")):
        found += [os.path.join(place, name) for name in names if name.endswith((".txt", ".in"))]
    for path in found:
        data = source_files.load_or_nothing(path, LARGEST_CONFIG)
        for sign, major, minor in re.findall(_TORCH_REQUIREMENT, data):
            # What is said to be too new is not asked for.
            yield int(major), int(minor) - (sign == b"<")


def _collect_imported_names(paths: list[str], files: Iterable[str]) -> dict[str, frozenset[str]]:
    """For each of some files, the names that others import from it, or from one that is called the same."""
    stems: dict[str, set[str]] = {source_files.import_stem(path): set() for path in paths}
    folders = {path: os.path.dirname(os.path.abspath(path)) for path in paths}
    beside = {folder: _sources_in(folder) for folder in folders.values()}
    words = [os.fsencode(stem) for stem in stems]
    if any(os.path.basename(path) == "__init__.py" for path in paths):
        # A package may be imported from without its name.
        words.append(b"from .")
    for other in {os.path.abspath(file) for file in files}.union(*filter(None, beside.values())):
        data = source_files.load_or_nothing(other) if other.endswith(".py") else b""
        if len(words) >= MAX_SEPARATE_SEARCHES or any(word in data for word in words):
            for stem, names in _imports_from(data, other):
                if stem in stems:
                    stems[stem].update(name.decode("utf-8", "replace") for name in patterns.taken_names(names))
    # Where a folder cannot be listed, it is not known who imports what: everything may be imported.
    return {
        path: frozenset({"*"} if beside[folder] is None else stems[source_files.import_stem(path)])
        for path, folder in folders.items()
    }


def _sources_in(folder: str) -> set[str] | None:
    """The Python files in a folder; None for one that cannot be listed."""
    try:
        with os.scandir(folder) as scan:
            return {entry.path for entry in scan if entry.name.endswith(".py")}
    except OSError:
        return None


def _imports_from(data: bytes, path: str) -> Iterator[tuple[str, bytes]]:
    """What a file takes from modules: the last part of the name of each, and the text of the names in it."""
    for module, names in patterns.imports_from(data):
        # torch is no file of a project, whatever that is called.
        if patterns.is_torch(module):
            continue
        folder, inner = path, module.lstrip(b".")
        for _ in range(len(module) - len(inner)):
            folder = os.path.dirname(folder)
        yield inner.rpartition(b".")[2].decode() or os.path.basename(folder), names
