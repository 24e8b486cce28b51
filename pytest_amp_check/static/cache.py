"""Remembers between runs what files hold and what reading them has shown, so that only what changed is read again.

One file of JSON for each list of paths that was checked. What it says of a file counts as long as the content is the
same, and that of every other file that mattered, and as imports lead where they led. What is selected, suppressed or
how severe it is, is decided after.

A repository may bring a cache of its own, as it may bring one of ruff or mypy, which lie beside the code as well. It is
data, of which nothing runs, and what does not fit is read again. It can keep a finding back, as a comment of that
repository can, only from whoever has this very installation at this very place, by its times; ``--no-cache`` asks
nobody. No link that it brings is written through.
"""

from __future__ import annotations

import os
import sys
from time import time_ns

from ..protocol.bounded_json import parse_json
from ..protocol.regular_files import LARGEST_DOCUMENT, read_regular
from .project.project import package_top
from .results import Answer, Reading, decode, encode, text, truth
from .sources import source_files
from .sources.prefilter import Prefiltered
from .sources.replacing import PART, put
from .sources.source_files import InputError, Stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from .project.project import Project

#: Nanoseconds within which a file may change again without its times showing it.
RACY = 2_000_000_000
#: Files in a cache, above which the oldest go.
KEPT = 30
SUFFIX = ".json"
#: Dots before a name in an import: as many as directories can lie in each other.
LEVELS = 1000
#: The number of what an import leads to where that is nothing.
NOWHERE = -1
#: What marks the directory as ours, and for what makes backups (https://bford.info/cachedir/).
TAG = "CACHEDIR.TAG"
TAGGED = b"Signature: 8a477f597d28d172789f06886806bc55\n# This is a cache of amp-check. It can be deleted.\n"
#: What keeps it out of git.
UNTRACKED = ".gitignore"
NOTHING = b"# Made by amp-check.\n*\n"
#: What goes wrong with a file that somebody else wrote, or that breaks off.
WRONG = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, MemoryError, OverflowError)


class Cache:
    """What is known of the files of one run, from the last one with the same paths, and what is to be kept of it.

    Use: :meth:`look` at every file, :meth:`settle`, :meth:`readings` of those to be read, :meth:`keep` what was read
    instead, :meth:`write`. ``moved`` says that imports may lead elsewhere now. ``reading`` is what of the settings
    decides how files are read.
    """

    def __init__(self, directory: str, paths: Sequence[str], settings: str, reading: str = "") -> None:
        self._started = time_ns()
        self._directory = os.path.abspath(directory)
        self._paths = [os.path.abspath(path) for path in paths]
        self._alone = not all(map(os.path.isdir, paths))
        self._settings = source_files.digest(settings.encode("utf-8", "backslashreplace"))
        self._key = self._made_by() + source_files.digest(reading.encode("utf-8", "backslashreplace"))
        name = "\0".join(self._paths).encode("utf-8", "surrogateescape")
        self._path = os.path.join(self._directory, source_files.digest(name) + SUFFIX)
        #: Absolute path -> stat, digest and look, as they were, and as they are.
        self._old: dict[str, list[Any]] = {}
        self._new: dict[str, list[Any]] = {}
        self._entries: dict[str, list[Any]] = {}
        self._kept: dict[str, list[Any]] = {}
        self._led: Any = None
        self._facts: Any = None
        self._read()
        self._stats: dict[str, Stat] = {}
        #: Absolute path -> path as it is written, of the files of this run.
        self._written: dict[str, str] = {}
        self._changed: set[str] = set()
        self.moved = True
        self._layout = ""
        self._now: list[bool] = []
        self._dirty = False

    def _made_by(self) -> str:
        return _key()

    def _read(self) -> None:
        try:
            found = self._load()
            if found is not None and found["key"] == self._key:
                files, entries = found["files"], found["entries"]
                if isinstance(files, dict) and isinstance(entries, dict):
                    self._old, self._entries = files, entries
                    self._led, self._facts = found["layout"], found["facts"]
        except (OSError, *WRONG):
            return

    def _load(self) -> Any:
        """What the last run has kept, if there was one."""
        try:
            data = read_regular(self._path, LARGEST_DOCUMENT)
        except FileNotFoundError:
            return None
        return parse_json(data.decode("ascii"))

    # A first look at each file.

    def look(self, path: str, *, named: bool) -> Prefiltered | None:
        """What was seen in a file that did not change since, without opening it; None where it is to be looked at."""
        absolute = os.path.abspath(path)
        self._written[absolute] = path
        found = source_files.status(absolute)
        if found is None:
            return None
        self._stats[absolute] = found
        row = self._old.get(absolute)
        try:
            if row is None or row[0] != found:
                return None
            known = _seen(path, row)
        except WRONG:
            return None
        if not known.suffices(named=named):
            return None
        self._new[absolute] = row
        return known

    def saw(self, look: Prefiltered) -> None:
        """Know what was just seen in a file."""
        absolute = os.path.abspath(look.path)
        found = self._stats.get(absolute)
        if found is not None:
            self._new[absolute] = [self._trusted(found), look.digest, *_shown(look)]
            self._dirty = True

    def _trusted(self, found: Stat) -> Stat | None:
        """A stat, if whatever changes the file after this run changes it too."""
        return found if max(found[1], found[2]) < self._started - RACY else None

    # Which of what was read still holds.

    def settle(self, tree: Project) -> None:
        """Find out what changed, once every file was seen."""
        tops = [(top, package_top(top)) for top in self._paths]
        listed = repr((tops, list(self._written))).encode("utf-8", "backslashreplace")
        self._layout = source_files.digest(listed)
        self.moved = self._alone or self._layout != self._led
        self._now = [bool(tree.float16), tree.lightning16, tree.resumes]
        self._changed = {path for path, row in self._old.items() if self._differs(path, row)}
        self._changed.update(path for path in self._written if path not in self._old or path not in self._new)
        if self._facts != self._now:
            self._entries = {}
        self._dirty = self._dirty or self._layout != self._led or bool(self._changed) or self._facts != self._now

    def _differs(self, path: str, row: Any) -> bool:
        """Whether a file holds something else than it did."""
        now = self._new.get(path) if path in self._written else self._outside(path, row)
        return now is None or _digest(now) != _digest(row)

    def _outside(self, path: str, row: Any) -> list[Any] | None:
        """What is known now of a file that an import leads to, and that is not among those to be checked."""
        found = source_files.status(path)
        if found is None:
            return None
        try:
            if row[0] == found:
                return list(row)
        except WRONG:
            return None
        return self._hashed(path, found)

    def _hashed(self, path: str, found: Stat) -> list[Any] | None:
        try:
            return [self._trusted(found), source_files.digest(source_files.load(path))]
        except source_files.Unreadable:
            return None

    def readings(self, path: str, tree: Project) -> list[Reading] | None:
        """What reading a file has shown, if reading it again would show the same."""
        absolute = os.path.abspath(path)
        entry = self._entries.get(absolute)
        if entry is None or absolute in self._changed:
            return None
        try:
            settings, whole, touched, asked, written = entry
            same = settings in ("", self._settings) and self._changed.isdisjoint(touched)
            if not same or any(other not in self._old for other in touched):
                return None
            if (truth(whole) and (self.moved or self._changed)) or (self.moved and not _leads(asked, tree)):
                return None
            found = decode(path, written, _Back(path, absolute, set(touched), self._written))
        except WRONG:
            return None
        self._kept[absolute] = entry
        for other in touched:
            self._new.setdefault(other, self._old[other])
        return found

    # What is kept for the next run.

    def keep(self, answer: Answer) -> None:
        """Keep what reading a file has shown, if that is sure to be shown again."""
        absolute = os.path.abspath(answer.path)
        if not answer.lasting or absolute not in self._new or (answer.whole and self._alone):
            return
        touched = set() if answer.whole else answer.touched - {absolute}
        if not all(map(self._hold, touched)):
            return
        # Programs of documents are settled where they are read.
        settings = self._settings if not answer.path.endswith(".py") else ""
        written = encode(answer.readings, os.path.abspath)
        self._kept[absolute] = [settings, answer.whole, sorted(touched), _asked(answer), written]
        self._dirty = True

    def _hold(self, path: str) -> bool:
        """Know what a file held when it was read, if that is certain: if it did not change since."""
        if path not in self._new:
            found = source_files.status(path)
            row = self._hashed(path, found) if found is not None and self._trusted(found) else None
            if row is None:
                return False
            self._new[path] = row
        return True

    def write(self) -> None:
        """Write down what is to be kept; nothing, where it cannot be written."""
        if not self._dirty and self._kept.keys() == self._entries.keys():
            return
        made = {
            "key": self._key,
            "layout": self._layout,
            "facts": self._now,
            "files": self._new,
            "entries": self._kept,
        }
        self._store(made)

    def _store(self, made: dict[str, Any]) -> None:
        import json

        try:
            os.makedirs(self._directory, exist_ok=True)
            # The tag comes first: whatever else lies here from then on lies in a cache.
            for name, content in ((TAG, TAGGED), (UNTRACKED, NOTHING)):
                mark = os.path.join(self._directory, name)
                if not os.path.lexists(mark):
                    put(mark, content, lasting=False)
            fresh = not os.path.exists(self._path)
            put(self._path, json.dumps(made, separators=(",", ":")).encode("ascii"), lasting=False)
            if fresh:
                self._prune()
        except (OSError, ValueError):
            # The next run reads again what this one has read.
            return

    def _prune(self) -> None:
        """Remove the files of lists of paths that were not checked for longest, and what broken runs have left."""
        with os.scandir(self._directory) as scan:
            ours = [entry for entry in scan if _is_ours(entry.name) and entry.is_file(follow_symlinks=False)]
        found = [(entry.stat(follow_symlinks=False).st_mtime_ns, entry.path) for entry in ours]
        for _, path in sorted(found)[:-KEPT]:
            _remove(path)


def _is_ours(name: str) -> bool:
    """Whether a file of this name in a cache is one that a cache writes, besides its marks."""
    stem, dot, rest = name.partition(".")
    whole = len(stem) == 32 and set(stem) <= set("0123456789abcdef")
    # Versions before this one have put the number of their process behind the name of what they had not finished.
    return name.startswith(PART) or (whole and f"{dot}{rest}".startswith(SUFFIX))


def refuse_foreign(directory: str) -> None:
    """Raises :class:`InputError` where a directory is there and is no cache: nothing is written into it."""
    try:
        names = os.listdir(directory)
    except OSError:
        # There is none, or it cannot be written either.
        return
    try:
        tagged = read_regular(os.path.join(directory, TAG), len(TAGGED)) == TAGGED
    except OSError:
        tagged = False
    # A run that was killed as it made one has left no more than this.
    if not tagged and not all(name.startswith(PART) for name in names):
        raise InputError(
            f"`{directory}` holds something else than a cache of amp-check: name another folder by --cache-dir, or "
            "give --no-cache"
        )


class _Back:
    """From the absolute paths of what was written down to those of this run; ValueError for any other."""

    def __init__(self, path: str, absolute: str, touched: set[str], written: dict[str, str]) -> None:
        self._path = path
        self._absolute = absolute
        self._touched = touched
        self._written = written

    def __call__(self, place: str) -> str:
        if place == self._absolute:
            return self._path
        if place in self._touched or place in self._written:
            return self._written.get(place) or os.path.relpath(place)
        if place.startswith(self._absolute + ":") and place[len(self._absolute) + 1 :].isdecimal():
            # A program of a document.
            return self._path + place[len(self._absolute) :]
        raise ValueError(place)


#: Folders of this tool whose files decide about no finding.
_APART = ("__pycache__", "lookalikes")


def _key() -> str:
    """What else decides what is found: this tool, as it is installed, and the Python that parses."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    # The version stands there.
    said: list[object] = [sys.version_info[:3], source_files.load(os.path.join(package, "__init__.py"))]
    folders = [os.path.join(package, "protocol"), os.path.join(package, "static")]
    while folders:
        with os.scandir(folders.pop()) as scan:
            for entry in sorted(scan, key=lambda entry: entry.name):
                if entry.name.endswith(".py"):
                    found = entry.stat()
                    said.append((entry.name, found.st_size, found.st_mtime_ns))
                elif entry.is_dir() and entry.name not in _APART:
                    folders.append(entry.path)
    return source_files.digest(repr(said).encode("utf-8", "backslashreplace"))


def _digest(row: Any) -> Any:
    return row[1] if isinstance(row, list) and len(row) > 1 else None


def _shown(look: Prefiltered) -> list[Any]:
    """A look as a list that JSON can hold."""
    flags = [look.speaks, look.autocast, look.float16, look.lightning16, look.resumes]
    names = [None if n is None else sorted(x.decode("latin-1") for x in n) for n in (look.classes, look.bases)]
    imports = None if look.imports is None else sorted(x.decode("latin-1") for x in look.imports)
    return [look.size, *flags, *names, imports]


def _seen(path: str, row: list[Any]) -> Prefiltered:
    _, digest, size, speaks, autocast, float16, lightning16, resumes, classes, bases, imports = row
    facts = (truth(autocast), truth(float16), truth(lightning16), truth(resumes))
    look = Prefiltered(path, int(size), facts, speaks=truth(speaks))
    look.digest = text(digest)
    look.classes, look.bases, look.imports = _names(classes), _names(bases), _names(imports)
    return look


def _names(listed: Iterable[str] | None) -> set[bytes] | None:
    return None if listed is None else {name.encode("latin-1") for name in listed}


def _asked(answer: Answer) -> list[Any]:
    """The imports that an answer depends on, with where they led: paths, and a string that names them by number.

    They matter in few runs, and there are many of them.
    """
    places: dict[str, int] = {}
    said: list[str] = []
    for (dotted, importer, level), led in answer.asked.items():
        to = places.setdefault(led, len(places)) if led is not None else NOWHERE
        said.append(f"{dotted} {places.setdefault(importer, len(places))} {level} {to}")
    return [list(places), "|".join(said)]


def _leads(asked: list[Any], tree: Project) -> bool:
    """Whether every import still leads where it led."""
    places, said = asked
    for line in said.split("|") if said else ():
        dotted, importer, level, led = line.split(" ")
        if not 0 <= int(level) < LEVELS:
            return False
        if tree.find(dotted, places[int(importer)], int(level)) != (None if int(led) == NOWHERE else places[int(led)]):
            return False
    return True


def _remove(path: str) -> None:
    try:
        os.remove(path)
    except OSError:
        return
