"""Cache of prescans and results between runs: only changed files are analyzed again.

One JSON file holds each list of checked paths. A result counts if the file and all its dependencies are unchanged, and
if the imports lead to the same files. Selection, suppression and severity apply later.

A repository may contain a cache, as it may contain a cache of ruff or mypy, which also lie beside the code. The cache
is data: no part of it runs, and an entry that does not fit is dropped. Such a cache can hide a finding, as a comment in
that repository can. The cache can do so only with this very installation at this very location, identified by file
times. ``--no-cache`` ignores every cache. The cache never writes through a link in the repository.
"""

from __future__ import annotations

import errno
import os
import sys
from time import time_ns

from ..protocol.bounded_json import parse_json
from ..protocol.regular_files import LARGEST_DOCUMENT, read_regular
from .project.roots import package_top
from .results import AnalysisResult, FileResult, decode_results, encode_results, parse_bool, parse_text
from .sources import source_files
from .sources.atomic_replace import TEMPORARY_PREFIX, replace_file
from .sources.prefilter import Prescan
from .sources.source_files import InputError, Stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from .project.project import Project

#: Nanoseconds within which a file may change again without a change of its times.
RACY_NANOSECONDS = 2_000_000_000
#: Maximum number of files in a cache directory; the oldest files are removed first.
MAX_CACHE_FILES = 30
SUFFIX = ".json"
#: Maximum number of leading dots of an import, above any possible nesting of directories.
MAX_IMPORT_LEVEL = 1000
#: Number that stands for the target of an unresolved import.
NOWHERE = -1
#: File that marks a cache directory for amp-check and for backup programs (https://bford.info/cachedir/).
TAG = "CACHEDIR.TAG"
TAG_CONTENT = b"Signature: 8a477f597d28d172789f06886806bc55\n# This is a cache of amp-check. It can be deleted.\n"
#: File that keeps the cache directory out of git.
UNTRACKED = ".gitignore"
GITIGNORE_CONTENT = b"# Made by amp-check.\n*\n"
#: Errors of reading a file that another program wrote, or an incomplete file.
DECODING_ERRORS = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    RecursionError,
    MemoryError,
    OverflowError,
)


class Cache:
    """Cache of one run: the results of the last run with the same paths, and the results to keep.

    Call :meth:`find_prescan` for every file, then :meth:`find_changes`, then :meth:`find_results` for the files to
    analyze. Call :meth:`keep_result` for new results, then :meth:`write_cache`. ``may_have_moved`` says that imports
    may lead to other files now. ``analysis_options`` are the settings that change the analysis. ``part`` names the part
    of the files that is analyzed, which has a cache of its own.
    """

    def __init__(
        self, directory: str, paths: Sequence[str], settings: str, analysis_options: str = "", part: str = ""
    ) -> None:
        self._start_time = time_ns()
        self._directory = os.path.abspath(directory)
        self._paths = [os.path.abspath(path) for path in paths]
        self._has_single_files = not all(map(os.path.isdir, paths))
        self._settings = source_files.content_digest(settings.encode("utf-8", "backslashreplace"))
        self._cache_key = self._maker_key() + source_files.content_digest(
            analysis_options.encode("utf-8", "backslashreplace")
        )
        name = "\0".join((*self._paths, part)).encode("utf-8", "surrogateescape")
        self._path = os.path.join(self._directory, source_files.content_digest(name) + SUFFIX)
        #: Rows by absolute path (stat, digest and prescan): from the last run, and for the next run.
        self._old_rows: dict[str, list[Any]] = {}
        self._new_rows: dict[str, list[Any]] = {}
        self._old_entries: dict[str, list[Any]] = {}
        self._new_entries: dict[str, list[Any]] = {}
        self._old_layout: Any = None
        self._old_flags: Any = None
        self._read_cache()
        self._stat_by_path: dict[str, Stat] = {}
        #: Absolute path to path as the user wrote it, for the files of this run.
        self._display_paths: dict[str, str] = {}
        self._changed_paths: set[str] = set()
        self.may_have_moved = True
        self._new_layout = ""
        self._new_flags: list[Any] = []
        self._is_dirty = False

    def _maker_key(self) -> str:
        return _tool_key()

    def _read_cache(self) -> None:
        try:
            found = self._load_data()
            if found is not None and found["key"] == self._cache_key:
                files, entries = found["files"], found["entries"]
                if isinstance(files, dict) and isinstance(entries, dict):
                    self._old_rows, self._old_entries = files, entries
                    self._old_layout, self._old_flags = found["layout"], found["facts"]
        except (OSError, *DECODING_ERRORS):
            return

    def _load_data(self) -> Any:
        """Return the data of the last run, or None."""
        try:
            data = read_regular(self._path, LARGEST_DOCUMENT)
        except FileNotFoundError:
            return None
        return parse_json(data.decode("ascii"))

    # Prescan of each file.

    def find_prescan(self, path: str) -> Prescan | None:
        """Return the prescan of an unchanged file without opening the file, or None if it must be scanned."""
        absolute = os.path.abspath(path)
        self._display_paths[absolute] = path
        found = source_files.file_stat(absolute)
        if found is None:
            return None
        self._stat_by_path[absolute] = found
        row = self._old_rows.get(absolute)
        try:
            if row is None or row[0] != found:
                return None
            known = _decode_prescan(path, row)
        except DECODING_ERRORS:
            return None
        self._new_rows[absolute] = row
        return known

    def add_prescan(self, prescan: Prescan) -> None:
        """Keep the prescan of a file."""
        absolute = os.path.abspath(prescan.path)
        found = self._stat_by_path.get(absolute)
        if found is not None:
            self._new_rows[absolute] = [self._trusted_stat(found), prescan.digest, *_encode_prescan(prescan)]
            self._is_dirty = True

    def _trusted_stat(self, found: Stat) -> Stat | None:
        """Return a stat if every later change of the file must change the stat too, else None."""
        return found if max(found[1], found[2]) < self._start_time - RACY_NANOSECONDS else None

    # Results that still hold.

    def find_changes(self, project: Project) -> None:
        """Find the files that changed. Call this method after all prescans."""
        tops = [(top, package_top(top)) for top in self._paths]
        listed = repr((tops, list(self._display_paths))).encode("utf-8", "backslashreplace")
        self._new_layout = source_files.content_digest(listed)
        self.may_have_moved = self._has_single_files or self._new_layout != self._old_layout
        self._new_flags = [
            bool(project.float16_files),
            project.has_lightning16,
            project.may_resume,
            sorted(project.low_model_files),
            sorted(project.casting_files),
        ]
        self._changed_paths = {path for path, row in self._old_rows.items() if self._has_changed(path, row)}
        self._changed_paths.update(
            path for path in self._display_paths if path not in self._old_rows or path not in self._new_rows
        )
        if self._old_flags != self._new_flags:
            self._old_entries = {}
        self._is_dirty = (
            self._is_dirty
            or self._new_layout != self._old_layout
            or bool(self._changed_paths)
            or self._old_flags != self._new_flags
        )

    def _has_changed(self, path: str, row: Any) -> bool:
        """Return True if the content of a file changed."""
        current_row = self._new_rows.get(path) if path in self._display_paths else self._outside_row(path, row)
        return current_row is None or _digest_of_row(current_row) != _digest_of_row(row)

    def _outside_row(self, path: str, row: Any) -> list[Any] | None:
        """Return the current row of an imported file that is not checked itself, or None."""
        found = source_files.file_stat(path)
        if found is None:
            return None
        try:
            if row[0] == found:
                return list(row)
        except DECODING_ERRORS:
            return None
        return self._hash_row(path, found)

    def _hash_row(self, path: str, found: Stat) -> list[Any] | None:
        try:
            return [self._trusted_stat(found), source_files.content_digest(source_files.load_bytes(path))]
        except source_files.Unreadable:
            return None

    def find_results(self, path: str, project: Project) -> list[AnalysisResult] | None:
        """Return the results of a file if a new analysis would give the same results, else None."""
        absolute = os.path.abspath(path)
        entry = self._old_entries.get(absolute)
        if entry is None or absolute in self._changed_paths:
            return None
        try:
            settings, depends_on_all, dependencies, encoded_targets, written = entry
            same = settings in ("", self._settings) and self._changed_paths.isdisjoint(dependencies)
            if not same or any(other not in self._old_rows for other in dependencies):
                return None
            if (parse_bool(depends_on_all) and (self.may_have_moved or self._changed_paths)) or (
                self.may_have_moved and not _has_same_imports(encoded_targets, project)
            ):
                return None
            found = decode_results(path, written, _PathRestorer(path, absolute, set(dependencies), self._display_paths))
        except DECODING_ERRORS:
            return None
        self._new_entries[absolute] = entry
        for other in dependencies:
            self._new_rows.setdefault(other, self._old_rows[other])
        return found

    # Results for the next run.

    def keep_result(self, file_result: FileResult) -> None:
        """Keep the result of a file if the next analysis is certain to give the same result."""
        absolute = os.path.abspath(file_result.path)
        if (
            not file_result.is_cacheable
            or absolute not in self._new_rows
            or (file_result.depends_on_all and self._has_single_files)
        ):
            return
        touched = set() if file_result.depends_on_all else file_result.dependencies - {absolute}
        if not all(map(self._record_dependency, touched)):
            return
        # The findings of documents are final after their analysis, so they depend on all settings.
        settings = self._settings if not file_result.path.endswith(".py") else ""
        written = encode_results(file_result.results, os.path.abspath)
        self._new_entries[absolute] = [
            settings,
            file_result.depends_on_all,
            sorted(touched),
            _encode_import_targets(file_result),
            written,
        ]
        self._is_dirty = True

    def _record_dependency(self, path: str) -> bool:
        """Record the content of a dependency. Return False if the content may have changed since the analysis."""
        if path not in self._new_rows:
            found = source_files.file_stat(path)
            row = self._hash_row(path, found) if found is not None and self._trusted_stat(found) else None
            if row is None:
                return False
            self._new_rows[path] = row
        return True

    def write_cache(self) -> None:
        """Write the cache file if something changed. A directory that cannot be written is ignored."""
        if not self._is_dirty and self._new_entries.keys() == self._old_entries.keys():
            return
        made = {
            "key": self._cache_key,
            "layout": self._new_layout,
            "facts": self._new_flags,
            "files": self._new_rows,
            "entries": self._new_entries,
        }
        self._store_data(made)

    def _store_data(self, made: dict[str, Any]) -> None:
        import json

        try:
            os.makedirs(self._directory, exist_ok=True)
            # The tag comes first: every later file then lies in a marked cache.
            for name, content in ((TAG, TAG_CONTENT), (UNTRACKED, GITIGNORE_CONTENT)):
                mark = os.path.join(self._directory, name)
                if not os.path.lexists(mark):
                    replace_file(mark, content, is_synced=False)
            fresh = not os.path.exists(self._path)
            replace_file(self._path, json.dumps(made, separators=(",", ":")).encode("ascii"), is_synced=False)
            if fresh:
                self._prune()
        except (OSError, ValueError):
            # The next run repeats the analysis of this run.
            return

    def _prune(self) -> None:
        """Remove the oldest files of other path lists, and temporary files of interrupted runs."""
        with os.scandir(self._directory) as scan:
            ours = [entry for entry in scan if _is_ours(entry.name) and entry.is_file(follow_symlinks=False)]
        found = [(entry.stat(follow_symlinks=False).st_mtime_ns, entry.path) for entry in ours]
        for _, path in sorted(found)[:-MAX_CACHE_FILES]:
            _remove_file(path)


def _is_ours(name: str) -> bool:
    """Return True if a cache writes files with this name, apart from the marker files."""
    stem, dot, rest = name.partition(".")
    whole = len(stem) == 32 and set(stem) <= set("0123456789abcdef")
    # Earlier versions appended the process number to the names of unfinished files.
    return name.startswith(TEMPORARY_PREFIX) or (whole and f"{dot}{rest}".startswith(SUFFIX))


def refuse_foreign(directory: str) -> None:
    """Raise :class:`InputError` if a directory exists and is no cache, so that nothing is written there."""
    try:
        names = os.listdir(directory)
    except OSError:
        # The directory does not exist, or writing fails later.
        return
    try:
        tagged = read_regular(os.path.join(directory, TAG), len(TAG_CONTENT)) == TAG_CONTENT
    except OSError:
        tagged = False
    # A run that was killed while creating the cache leaves only temporary files.
    if not tagged and not all(name.startswith(TEMPORARY_PREFIX) for name in names):
        raise InputError(
            f"`{directory}` holds something else than a cache of amp-check: name another folder by --cache-dir, or "
            "give --no-cache"
        )


def remove_cache(directory: str) -> int | None:
    """Remove a cache directory, and return the size of its files in bytes, or None if there is no such directory.

    Files that no cache writes stay, with the directory. Raise :class:`InputError` for a directory that is no cache.
    """
    if os.path.islink(directory):
        raise InputError(f"`{directory}` is a symbolic link, which no cache is: remove it by hand")
    if not os.path.isdir(directory):
        return None
    refuse_foreign(directory)
    with os.scandir(directory) as scan:
        entries = [entry for entry in scan if _is_ours(entry.name) or entry.name in (TAG, UNTRACKED)]
    if not entries:
        raise InputError(f"`{directory}` is empty, so it is no cache of amp-check: remove it by hand")
    size = 0
    # The tag goes last: a directory that is left in between is still known as a cache.
    for entry in sorted(entries, key=lambda entry: (entry.name == TAG, entry.name)):
        size += entry.stat(follow_symlinks=False).st_size
        os.remove(entry.path)
    try:
        os.rmdir(directory)
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        raise InputError(f"`{directory}` holds files that no cache of amp-check has: the rest was removed") from None
    return size


class _PathRestorer:
    """Mapping from the absolute paths in the cache to the paths of this run; ValueError for other paths."""

    def __init__(self, path: str, absolute: str, dependencies: set[str], display_paths: dict[str, str]) -> None:
        self._path = path
        self._absolute = absolute
        self._dependencies = dependencies
        self._display_paths = display_paths

    def __call__(self, absolute_path: str) -> str:
        if absolute_path == self._absolute:
            return self._path
        if absolute_path in self._dependencies or absolute_path in self._display_paths:
            return self._display_paths.get(absolute_path) or os.path.relpath(absolute_path)
        if absolute_path.startswith(self._absolute + ":") and absolute_path[len(self._absolute) + 1 :].isdecimal():
            # A code block of a document.
            return self._path + absolute_path[len(self._absolute) :]
        raise ValueError(absolute_path)


#: Folders of this package whose files do not change any finding.
_IGNORED_FOLDERS = ("__pycache__",)


def _tool_key() -> str:
    """Return a digest of everything else that decides the findings: the installed tool, and the Python version."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    # This file contains the version.
    parts: list[object] = [sys.version_info[:3], source_files.load_bytes(os.path.join(package, "__init__.py"))]
    folders = [os.path.join(package, "protocol"), os.path.join(package, "static")]
    while folders:
        with os.scandir(folders.pop()) as scan:
            for entry in sorted(scan, key=lambda entry: entry.name):
                if entry.name.endswith(".py"):
                    found = entry.stat()
                    parts.append((entry.name, found.st_size, found.st_mtime_ns))
                elif entry.is_dir() and entry.name not in _IGNORED_FOLDERS:
                    folders.append(entry.path)
    return source_files.content_digest(repr(parts).encode("utf-8", "backslashreplace"))


def _digest_of_row(row: Any) -> Any:
    return row[1] if isinstance(row, list) and len(row) > 1 else None


def _encode_prescan(prescan: Prescan) -> list[Any]:
    """Return a prescan as a list for JSON."""
    flags = [
        prescan.may_have_findings,
        prescan.may_enter_autocast,
        prescan.may_use_float16,
        prescan.has_lightning16,
        prescan.may_resume,
        prescan.does_training_part,
        prescan.does_training_step,
        prescan.has_fragile_math,
        prescan.computes_tensors,
        prescan.chooses_model_dtype,
        prescan.casts_weights,
        prescan.casts_models,
        prescan.optimizes_model,
        prescan.multiplies_coordinates,
        prescan.may_round_inputs,
        prescan.makes_values_low,
        prescan.gives_dtype,
        prescan.has_loss_math,
        prescan.has_epsilons,
    ]
    names = [
        None if n is None else sorted(x.decode("latin-1") for x in n)
        for n in (prescan.class_names, prescan.base_names, prescan.combined_bases, prescan.imported_names)
    ]
    return [prescan.size, *flags, *names]


def _decode_prescan(path: str, row: list[Any]) -> Prescan:
    _, digest, size, speaks, autocast, float16, lightning16, resumes, part, *rest = row
    step, fragile, tensors, chooses, casts, casts_models, optimizes, multiplies, rounds, lowers, *more = rest
    gives, losses, epsilons, classes, bases, combined, imports = more
    facts = (parse_bool(autocast), parse_bool(float16), parse_bool(lightning16), parse_bool(resumes))
    prescan = Prescan(path, int(size), facts, may_have_findings=parse_bool(speaks))
    prescan.digest = parse_text(digest)
    prescan.does_training_part, prescan.does_training_step = parse_bool(part), parse_bool(step)
    prescan.has_fragile_math, prescan.computes_tensors = parse_bool(fragile), parse_bool(tensors)
    prescan.chooses_model_dtype = parse_bool(chooses)
    prescan.casts_weights, prescan.casts_models = parse_bool(casts), parse_bool(casts_models)
    prescan.optimizes_model = parse_bool(optimizes)
    prescan.multiplies_coordinates = parse_bool(multiplies)
    prescan.may_round_inputs, prescan.makes_values_low = parse_bool(rounds), parse_bool(lowers)
    prescan.gives_dtype = parse_bool(gives)
    prescan.has_loss_math, prescan.has_epsilons = parse_bool(losses), parse_bool(epsilons)
    prescan.class_names, prescan.base_names = _decode_names(classes), _decode_names(bases)
    prescan.combined_bases, prescan.imported_names = _decode_names(combined), _decode_names(imports)
    return prescan


def _decode_names(listed: Iterable[str] | None) -> set[bytes] | None:
    return None if listed is None else {name.encode("latin-1") for name in listed}


def _encode_import_targets(file_result: FileResult) -> list[Any]:
    """Return the imports of a result and their targets: the paths, and one string that refers to paths by number.

    Few runs need the imports, and there are many of them, so a string is cheaper to load than lists.
    """
    path_numbers: dict[str, int] = {}
    lines: list[str] = []
    for (dotted, importer, level), led in file_result.import_targets.items():
        to = path_numbers.setdefault(led, len(path_numbers)) if led is not None else NOWHERE
        lines.append(f"{dotted} {path_numbers.setdefault(importer, len(path_numbers))} {level} {to}")
    return [list(path_numbers), "|".join(lines)]


def _has_same_imports(encoded_targets: list[Any], project: Project) -> bool:
    """Return True if every import still leads to the same file."""
    paths, lines = encoded_targets
    for line in lines.split("|") if lines else ():
        dotted, importer, level, led = line.split(" ")
        if not 0 <= int(level) < MAX_IMPORT_LEVEL:
            return False
        if project.find_import(dotted, paths[int(importer)], int(level)) != (
            None if int(led) == NOWHERE else paths[int(led)]
        ):
            return False
    return True


def _remove_file(path: str) -> None:
    try:
        os.remove(path)
    except OSError:
        return
