"""What lies around files that are being put right: who imports from them, and which torch their project asks for."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

from ..sources import source_files

#: A version of torch.
Version = tuple[int, int]
#: From so many words on, looking for each of them takes longer than reading all imports.
MANY = 10
_TAKING = rb"(?m)^[ \t]*from[ \t]+(\.*)([\w.]*)[ \t]+import[ \t]*(\([^)]*\)|[^\n#]*)"
_ASKING = rb"(?<![\w.-])(?:py)?torch[\"']?\s*(?:\[[^\]]*\]\s*)?([=~<>]=?|=\s*[\"'][\^~>=]*)\s*v?(\d+)\.(\d+)"
_DECLARING = r"(pyproject\.toml|setup\.(py|cfg)|requirements.*\.(txt|in)|environment.*\.ya?ml)$"


class Surroundings:
    """What lies around some files; ``others`` are those that may import them, with what lies beside these."""

    def __init__(self, paths: Iterable[str] = (), others: Iterable[str] = ()) -> None:
        self._paths = list(paths)
        self._others = others
        self._taken: dict[str, frozenset[str]] | None = None
        self._oldest: dict[str, Version | None] = {}

    def taken(self, path: str) -> frozenset[str]:
        """The names that other files import from a file, or from one that is called the same; ``*`` for all."""
        if self._taken is None:
            self._taken = _taken(self._paths, self._others) if self._paths else {}
        return self._taken.get(path, frozenset())

    def supports(self, path: str, version: Version) -> bool:
        """Whether the project of a file asks for this version of torch, or a later one, or says nothing of it."""
        oldest = self._asked_for(os.path.dirname(os.path.abspath(path)))
        return oldest is None or oldest >= version

    def _asked_for(self, folder: str) -> Version | None:
        if folder not in self._oldest:
            asked = list(_asked_in(folder))
            above = os.path.dirname(folder)
            if asked or above == folder or os.path.exists(os.path.join(folder, ".git")):
                self._oldest[folder] = min(asked, default=None)
            else:
                self._oldest[folder] = self._asked_for(above)
        return self._oldest[folder]


def _asked_in(folder: str) -> Iterator[Version]:
    """The versions of torch that the files of a folder ask for which say what a project needs."""
    found: list[str] = []
    try:
        found += [os.path.join(folder, name) for name in os.listdir(folder) if re.match(_DECLARING, name)]
    except OSError:
        return
    for place, _, names in os.walk(os.path.join(folder, "requirements")):
        found += [os.path.join(place, name) for name in names if name.endswith((".txt", ".in"))]
    for path in found:
        try:
            data = source_files.load(path)
        except source_files.Unreadable:
            continue
        for sign, major, minor in re.findall(_ASKING, data):
            # What is said to be too new is not asked for.
            yield int(major), int(minor) - (sign == b"<")


def _taken(paths: list[str], files: Iterable[str]) -> dict[str, frozenset[str]]:
    """For each of some files, the names that others import from it, or from one that is called the same."""
    stems: dict[str, set[str]] = {_stem(path): set() for path in paths}
    others = {os.path.abspath(file) for file in files}
    hidden: set[str] = set()
    words = [stem.encode() for stem in stems]
    if any(os.path.basename(path) == "__init__.py" for path in paths):
        # A package may be imported from without its name.
        words.append(b"from .")
    for folder in {os.path.dirname(os.path.abspath(path)) for path in paths}:
        try:
            with os.scandir(folder) as scan:
                others |= {entry.path for entry in scan if entry.name.endswith(".py")}
        except OSError:
            # Then it is not known who imports what: everything may be imported.
            hidden.add(folder)
    for other in others:
        try:
            data = source_files.load(other) if other.endswith(".py") else b""
        except source_files.Unreadable:
            continue
        if len(words) < MANY and not any(word in data for word in words):
            continue
        for dots, module, listed in re.findall(_TAKING, data):
            folder = other
            for _ in dots:
                folder = os.path.dirname(folder)
            stem = module.rpartition(b".")[2].decode() or os.path.basename(folder)
            if stem in stems:
                stems[stem] |= {name.decode() for name in re.findall(rb"[\w*]+", listed)}
    return {
        path: frozenset({"*"} if os.path.dirname(os.path.abspath(path)) in hidden else stems[_stem(path)])
        for path in paths
    }


def _stem(path: str) -> str:
    """The last part of the name that a file is imported by."""
    stem = os.path.basename(path).removesuffix(".py")
    return stem if stem != "__init__" else os.path.basename(os.path.dirname(os.path.abspath(path)))
