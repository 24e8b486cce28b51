"""Source files: find the files below the given paths that may be checked, and decode them."""

from __future__ import annotations

import errno
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from ...protocol.byte_sizes import LARGEST_FILE
from ...protocol.regular_files import LARGEST_DOCUMENT, FileTooLarge, NotRegularFile, read_regular
from . import configurations

#: Suffixes of files that may hold Python: source, stubs, notebooks, documentation.
SUFFIXES = (".py", ".pyi", ".ipynb", ".md")
#: Suffixes of files that are programs of a project.
PROGRAMS = (".py", ".ipynb")
#: Directories that hold no source of the project, whatever they contain.
SKIPPED_FOLDERS = frozenset(
    ".amp_check_cache .eggs .git .hg .ipynb_checkpoints .jj .mypy_cache .nox .pytest_cache .pytype .ruff_cache .svn "
    ".tox __pycache__ __pypackages__ node_modules".split()
)
#: Directories that a build writes, if they lie beside one of :data:`PROJECT_FILES` or directly below a root.
BUILD_FOLDERS = frozenset({"build", "dist"})
PROJECT_FILES = frozenset({"pyproject.toml", "setup.cfg", "setup.py"})
#: Entries that mark a virtual environment, of venv and virtualenv or of conda.
ENVIRONMENT_MARKS = frozenset({"conda-meta", "pyvenv.cfg"})
#: Pattern that matches no text.
_NOTHING = r"(?!)"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

#: Size in bytes, times of modification and of change in nanoseconds, and inode.
Stat = list[int]


class InputError(Exception):
    """Error in the user's input: one sentence, with a next step."""


class Unreadable(Exception):
    """Error for a file that cannot be analyzed, in one sentence. ``line`` is the line of the problem, from 1."""

    def __init__(self, reason: str, line: int = 1) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line


# Search for files.


class SkippedPaths:
    """Skipped paths by reason, as the user would write the paths."""

    __slots__ = ("circular_links", "excluded_paths", "git_ignored_paths")

    def __init__(self) -> None:
        #: Files and folders that patterns exclude.
        self.excluded_paths: list[str] = []
        #: Files and folders that git ignores.
        self.git_ignored_paths: list[str] = []
        #: Symbolic links to themselves, or to a folder around them.
        self.circular_links: list[str] = []


#: Test of (name, absolute path) that returns True for an excluded path.
ExclusionTest = Callable[[str, str], bool]
#: Function from the real path of a folder to the exclusions from there on; None keeps the exclusions of the parent.
FolderExclusions = Callable[[str], ExclusionTest | None]


def find_sources(
    paths: Sequence[str],
    exclude: Sequence[str] = (),
    skipped: SkippedPaths | None = None,
    nearer: FolderExclusions | None = None,
    forced: Callable[[str], bool] | None = None,
    *,
    include: Sequence[str] = (),
    gitignore: bool = True,
) -> list[str]:
    """Return the files to check, each once, as the user wrote the paths; files of a directory are sorted.

    A file that the user names is always returned, and a directory that the user names is always walked. ``exclude``,
    git and the lists above apply to the entries below a directory. A pattern of ``exclude`` without a slash matches a
    file or directory of that name. A pattern with a slash matches the end of a path, and an absolute pattern the whole
    path. A pattern after ``!`` includes paths that an earlier pattern matches. Files below a directory must match a
    pattern of ``include``, if there is any.

    Symbolic links are followed, except to a directory around the walked directory. Three kinds of unreadable paths are
    returned as files, so that reading them reports the reason. These are directories that cannot be listed, circular
    links, and paths behind a directory that may not be entered.

    ``skipped`` collects the skipped paths. ``nearer`` gives the exclusions that replace ``exclude`` from a folder on.
    ``forced`` returns True for named files to skip. ``gitignore=False`` does not ask git.
    """
    everywhere = exclusion_test(exclude, include)
    skipped = skipped or SkippedPaths()
    found: list[str] = []
    seen: set[str] = set()
    for path in paths:
        if "\0" in path:
            raise InputError(f"{path!r} holds a null byte, which no path has: check where it comes from")
        if os.path.isdir(path):
            excluded = next(filter(None, map(nearer, folders_upward(os.path.realpath(path)))), None) if nearer else None
            pairs = _DirectoryWalk(path, excluded or everywhere, skipped, nearer, gitignore=gitignore).collect_files()
        elif os.path.exists(path) or _access_error(path):
            if forced is not None and forced(path):
                skipped.excluded_paths.append(path)
                continue
            pairs = [(path, os.path.realpath(path))]
        elif os.path.islink(path):
            raise InputError(f"`{path}` is a symbolic link to `{os.readlink(path)}`, which does not exist")
        else:
            raise InputError(f"`{path}` does not exist: check its spelling, or name a file or directory that does")
        for written, real in pairs:
            if real not in seen:
                seen.add(real)
                found.append(written)
    return found


def _access_error(path: str) -> int:
    """Return the error number (ELOOP or EACCES) if a path may exist but cannot be accessed, else 0."""
    try:
        os.stat(path)
    except OSError as error:
        return error.errno if error.errno in (errno.ELOOP, errno.EACCES) else 0
    return 0


class _DirectoryWalk:
    """Walk through a directory that the user named."""

    def __init__(
        self,
        root: str,
        excluded: ExclusionTest,
        skipped: SkippedPaths,
        nearer: FolderExclusions | None,
        *,
        gitignore: bool,
    ) -> None:
        self._root = root
        self._gitignore = gitignore
        self._exclusion_test = excluded
        self._skipped_paths = skipped
        self._nearer_exclusions = nearer
        self._real_root = os.path.realpath(root)
        self._root_prefix = os.path.join(self._real_root, "")
        self._visited_folders: set[str] = set()
        self._pending_folders: deque[tuple[str, str, frozenset[str], ExclusionTest]] = deque()
        #: Links wait until all other entries are done, so that a file has its own path if that is below the root.
        self._pending_links: deque[tuple[str, str]] = deque()
        self._found_files: dict[str, str] = {}

    def collect_files(self) -> list[tuple[str, str]]:
        """Return the files below the directory, sorted: path as written, and real path."""
        tree = work_tree(self._real_root) if self._gitignore else None
        ignored = git_ignored(tree, self._real_root) if tree is not None else frozenset()
        written = "" if os.path.normpath(self._root) == os.curdir else self._root
        self._pending_folders.append((written, self._real_root, ignored, self._exclusion_test))
        while self._pending_folders or self._pending_links:
            if self._pending_folders:
                self._scan_folder(*self._pending_folders.popleft())
            else:
                self._follow_link(*self._pending_links.popleft())
        return sorted((path, real) for real, path in self._found_files.items())

    def _follow_link(self, path: str, real: str) -> None:
        if os.path.isfile(real):
            if path.endswith(SUFFIXES) or _sets_precision(real):
                self._found_files.setdefault(real, path)
        elif not self._root_prefix.startswith(os.path.join(real, "")):
            self._scan_folder(path, real, frozenset(), self._exclusion_test)
        else:
            self._skipped_paths.circular_links.append(path)

    def _scan_folder(self, path: str, real: str, ignored: frozenset[str], excluded: ExclusionTest) -> None:
        """Add the files of a directory and queue its subdirectories; ``ignored`` are real paths that git ignores."""
        if real in self._visited_folders:
            return
        self._visited_folders.add(real)
        try:
            with os.scandir(real) as scan:
                entries = sorted(scan, key=lambda entry: entry.name)
        except OSError:
            self._found_files[real] = path or self._root
            return
        names = {entry.name for entry in entries}
        if real != self._real_root:
            if not ENVIRONMENT_MARKS.isdisjoint(names):
                return
            if ".git" in names and self._gitignore:
                ignored |= git_ignored(real, real)
            if self._nearer_exclusions is not None:
                excluded = self._nearer_exclusions(real) or excluded
        built = real == self._real_root or not PROJECT_FILES.isdisjoint(names)
        skipped = SKIPPED_FOLDERS | BUILD_FOLDERS if built else SKIPPED_FOLDERS
        before, real_before = os.path.join(path, ""), os.path.join(real, "")
        for entry in entries:
            name = entry.name
            directory = _is_directory(entry)
            if not (directory and (name in skipped or name.endswith(".egg-info"))):
                self._take_entry(entry, before + name, real_before + name, ignored, excluded)

    def _take_entry(
        self, entry: os.DirEntry[str], path: str, real: str, ignored: frozenset[str], excluded: ExclusionTest
    ) -> None:
        directory = _is_directory(entry)
        linked = entry.is_symlink()
        hindrance = _access_error(real) if directory is None and linked else 0
        if directory is None and not hindrance:
            return
        if real in ignored:
            self._skipped_paths.git_ignored_paths.append(path)
        elif excluded(entry.name, real):
            self._skipped_paths.excluded_paths.append(path)
        elif hindrance:
            if hindrance == errno.ELOOP:
                self._skipped_paths.circular_links.append(path)
            if entry.name.endswith(SUFFIXES):
                self._found_files.setdefault(real, path)
        elif linked:
            target = os.path.realpath(real)
            # A target below the root is found there, or is skipped on purpose.
            if not (target.startswith(self._root_prefix) and (directory or may_be_checked(target))):
                self._pending_links.append((path, target))
        elif directory:
            self._pending_folders.append((path, real, ignored, excluded))
        elif entry.name.endswith(SUFFIXES) or _sets_precision(real):
            self._found_files.setdefault(real, path)


def _is_directory(entry: os.DirEntry[str]) -> bool | None:
    """Return True for a directory, False for a file that may be checked, and None for other entries."""
    name = entry.name
    try:
        return entry.is_dir() or (
            False
            if (name.endswith(SUFFIXES) or configurations.may_configure_training(name)) and entry.is_file()
            else None
        )
    except OSError:
        # A link to itself, or into a directory without access.
        return None


def _sets_precision(path: str) -> bool:
    """Return True if a configuration file may set a low precision. Other such files are not counted as checked."""
    return configurations.sets_precision(load_or_nothing(path, configurations.LARGEST))


def may_be_checked(path: str) -> bool:
    """Return True if a file may hold Python, or sets the precision of a training."""
    named = configurations.may_configure_training(os.path.basename(path))
    return path.endswith(SUFFIXES) or (named and _sets_precision(path))


def is_excluded_below(path: str, top: str, excluded: ExclusionTest) -> bool:
    """Return True if a file, or a folder around the file and below ``top``, is excluded. Both are real paths."""
    inside = os.path.join(top, "")
    return any(excluded(os.path.basename(above), above) for above in folders_upward(path) if above.startswith(inside))


def import_stem(path: str) -> str:
    """Return the last part of the module name of a file."""
    name = os.path.basename(path).removesuffix(".py")
    return name if name != "__init__" else os.path.basename(os.path.dirname(os.path.abspath(path)))


def exclusion_test(patterns: Iterable[str], include: Iterable[str] = ()) -> ExclusionTest:
    """Return a test of (name, absolute path) for excluded paths. The last matching pattern decides.

    With ``include``, files that match none of these patterns are excluded as well.
    """
    excluded = _exclude_patterns(patterns)
    include = tuple(include)
    if not include:
        return excluded
    omitted = _exclude_patterns(include)

    def is_left_out(name: str, path: str) -> bool:
        if excluded(name, path):
            return True
        counts = name.endswith(SUFFIXES) or configurations.may_configure_training(name)
        return counts and not omitted(name, path) and not os.path.isdir(path)

    return is_left_out


def _exclude_patterns(patterns: Iterable[str]) -> ExclusionTest:
    # Adjacent patterns of the same kind become one expression.
    tests: list[tuple[bool, ExclusionTest]] = []
    for again, group in groupby(patterns, lambda pattern: pattern.startswith("!")):
        test = _pattern_test(pattern.removeprefix("!") for pattern in group)
        if test is not None:
            tests.append((again, test))
    if all(again for again, _ in tests):
        return lambda name, path: False
    if len(tests) == 1:
        return tests[0][1]
    tests.reverse()
    return lambda name, path: not next((again for again, test in tests if test(name, path)), True)


def _pattern_test(patterns: Iterable[str]) -> ExclusionTest | None:
    """Return a test for paths that match any pattern, or None without patterns."""
    names: list[str] = []
    tails: list[str] = []
    for pattern in patterns:
        text = os.path.normcase(pattern).replace(os.sep, "/").removeprefix("./").rstrip("/")
        if os.path.isabs(pattern):
            tails.append(text)
        elif "/" in text:
            # ``**/`` also stands for no directory.
            tails += ["*/" + text, "*/" + text.replace("**/", "")]
        elif text:
            names.append(text)
    if not names and not tails:
        return None

    from fnmatch import translate

    by_name = re.compile("|".join(map(translate, names)) or _NOTHING)
    by_path = re.compile("|".join(map(translate, tails)) or _NOTHING)

    def matches_pattern(name: str, path: str) -> bool:
        if by_name.match(os.path.normcase(name)):
            return True
        return bool(tails) and by_path.match(os.path.normcase(path).replace(os.sep, "/")) is not None

    return matches_pattern


def work_tree(directory: str) -> str | None:
    """Return the git work tree around a directory, given by real path, or None."""
    return next((above for above in folders_upward(directory) if os.path.lexists(os.path.join(above, ".git"))), None)


def folders_upward(directory: str) -> Iterator[str]:
    """Yield a directory and all directories around it, the nearest first."""
    while True:
        yield directory
        parent = os.path.dirname(directory)
        if parent == directory:
            return
        directory = parent


def git_ignored(top: str, directory: str) -> frozenset[str]:
    """Return the real paths that git ignores in a directory of the work tree ``top``.

    A directory stands for its content.

    The result is empty if git is missing or refuses, or if git ignores the directory itself: the user named that
    directory. Raise ``InputError`` if git hangs.
    """
    from subprocess import SubprocessError

    from . import git

    words = ("ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z", "--")
    try:
        listed = git.run_git(top, *words, os.path.relpath(directory, top))
    except (OSError, SubprocessError):
        return frozenset()
    except git.GitNotResponding as error:
        raise InputError(f"git {error}: remove the cause, or give --no-respect-gitignore") from None
    found = {os.path.normpath(os.path.join(top, os.fsdecode(name))) for name in listed.split(b"\0") if name}
    inside = os.path.join(directory, "")
    return frozenset(found) if all(path.startswith(inside) for path in found) else frozenset()


# File content.


class UnsavedFiles:
    """Context in which files have the content in ``texts``, by absolute path, instead of the content on disk.

    The context applies to the whole process: no other code may read files in the meantime.
    """

    texts: Mapping[str, bytes] = {}

    def __init__(self, texts: Mapping[str, bytes]) -> None:
        self._new_texts = texts

    def __enter__(self) -> None:
        UnsavedFiles.texts = self._new_texts

    def __exit__(self, *_: object) -> None:
        UnsavedFiles.texts = {}


def file_stat(path: str) -> Stat | None:
    """Return a stat that changes with the content of a file, given by absolute path, or None without a file."""
    if path in UnsavedFiles.texts:
        data = UnsavedFiles.texts[path]
        # An unsaved file has no times: the hash shows a change of the content.
        return [len(data), 0, 0, hash(data)]
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def load_bytes(path: str, largest: int = LARGEST_DOCUMENT) -> bytes:
    """Return the bytes of a regular file. Raise ``Unreadable`` above ``largest`` bytes; 0 is no limit."""
    if UnsavedFiles.texts:
        unsaved = UnsavedFiles.texts.get(os.path.abspath(path))
        if unsaved is not None:
            refuse_large(len(unsaved), largest)
            return unsaved
    try:
        return read_regular(path, largest)
    except FileTooLarge as error:
        if largest != LARGEST_DOCUMENT:
            refuse_large(error.size, largest)
        raise Unreadable(str(error.strerror)) from None
    except NotRegularFile as error:
        raise Unreadable(str(error.strerror)) from None
    except OSError as error:
        if not os.path.isdir(path):
            raise Unreadable(f"it cannot be opened, {_error_text(error)}") from None
    try:
        os.scandir(path).close()
    except OSError as error:
        raise Unreadable(f"this directory cannot be listed, {_error_text(error)}") from None
    raise Unreadable("it is a directory")


def load_or_nothing(path: str, largest: int = LARGEST_FILE) -> bytes:
    """Return the bytes of a regular file, or no bytes for an unreadable file or a file above ``largest`` bytes."""
    try:
        return load_bytes(path, largest)
    except Unreadable:
        return b""


def content_digest(data: bytes) -> str:
    """Return a digest of the content of a file."""
    try:
        # hashlib loads OpenSSL, which takes longer than hashing most projects.
        from _blake2 import blake2b
    except ImportError:
        from hashlib import blake2b

    return blake2b(data, digest_size=16).hexdigest()


def _error_text(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()


def decode_python(data: bytes) -> str:
    """Return the text of Python source, with a newline character where Python ends a line, and nowhere else.

    The encoding is UTF-8 or the encoding in a coding line (PEP 263). A form feed ends a line for ``str.splitlines``,
    but not for Python.
    """
    return normalize_newlines(decode_with_encoding(data)[0])


def decode_with_encoding(data: bytes) -> tuple[str, str]:
    """Return the text of Python source with its original line ends, and the encoding that gives the bytes back."""
    _refuse_null(data)
    marked = data.startswith(BYTE_ORDER_MARK)
    encoding = _coding_line(data)
    if marked and encoding and encoding.lower().replace("_", "-") not in ("utf-8", "utf8"):
        raise Unreadable(f"it begins with the mark of UTF-8 and its coding line says {encoding}")
    codec = "utf-8-sig" if marked else encoding or "utf-8"
    try:
        return data.decode(codec), codec
    except UnicodeDecodeError as error:
        line = _line_of_offset(data, error.start)
        reason = f"byte 0x{data[error.start]:02x} on line {line} is not {encoding or 'UTF-8'}"
        raise Unreadable(reason if encoding else f"{reason}, and no coding line names another encoding", line) from None
    except (LookupError, ValueError):
        raise Unreadable(f"its coding line names {encoding}, which is no encoding that Python knows") from None


def encode_python(text: str) -> bytes:
    """Return the bytes of a text in the encoding of its coding line, with replacements for missing characters."""
    data = text.encode("utf-8", "replace")
    encoding = _coding_line(data)
    try:
        return text.encode(encoding) if encoding else data
    except (LookupError, UnicodeError):
        return data


def decode_utf8(data: bytes) -> str:
    """Return the text of a file in a UTF-8 format, with a newline character at the end of each line."""
    _refuse_null(data)
    try:
        return normalize_newlines(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = _line_of_offset(data, error.start)
        raise Unreadable(f"byte 0x{data[error.start]:02x} on line {line} is not UTF-8", line) from None


def normalize_newlines(text: str) -> str:
    """Return the text with a newline character for each line end of Python."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def refuse_large(size: int, largest: int) -> None:
    """Raise ``Unreadable`` for code of more than ``largest`` bytes; 0 is no limit."""
    if 0 < largest < size:
        raise Unreadable(f"it has {size:,} bytes of code, which is more than max-file-size allows: {largest:,}")


def _refuse_null(data: bytes) -> None:
    null = data.find(b"\0")
    if null >= 0:
        line = _line_of_offset(data, null)
        raise Unreadable(f"there is a null byte on line {line}, so it is no text in UTF-8", line)


def _coding_line(data: bytes) -> str:
    """Return the encoding in the first or second line (PEP 263), or ""."""
    head = b"\n".join(data.split(b"\n", 2)[:2])
    if b"coding" not in head:
        return ""
    for line in head.removeprefix(BYTE_ORDER_MARK).splitlines()[:2]:
        cookie = re.match(rb"[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)", line)
        if cookie:
            # Emacs appends the kind of line end to the encoding.
            return re.sub(r"-(?:unix|dos|mac)$", "", cookie.group(1).decode("ascii"))
        if not re.match(rb"[ \t\f]*(?:#|$)", line):
            break
    return ""


def _line_of_offset(data: bytes, offset: int) -> int:
    return data.count(b"\n", 0, offset) + 1


def read_python(path: str, largest: int = 0) -> str:
    """Return the text of a file; see ``load_bytes`` and ``decode_python``."""
    return decode_python(load_bytes(path, largest))
