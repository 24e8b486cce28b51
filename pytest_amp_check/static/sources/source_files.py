"""What to read: finds the files below the given paths that hold Python, and decodes them."""

from __future__ import annotations

import errno
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from ...protocol.byte_sizes import LARGEST_FILE
from ...protocol.regular_files import LARGEST_DOCUMENT, NotRegular, TooLarge, read_regular

#: What the files are called that may hold Python: source, stubs, notebooks, documentation.
SUFFIXES = (".py", ".pyi", ".ipynb", ".md")
#: Those of them that are programs of a project.
PROGRAMS = (".py", ".ipynb")
#: Directories that hold no source of the project, whatever they contain.
SKIPPED = frozenset(
    ".amp_check_cache .eggs .git .hg .ipynb_checkpoints .jj .mypy_cache .nox .pytest_cache .pytype .ruff_cache .svn "
    ".tox __pycache__ __pypackages__ node_modules".split()
)
#: Directories that a build writes, where they lie beside one of :data:`PROJECT_FILES` or directly below a root.
BUILT = frozenset({"build", "dist"})
PROJECT_FILES = frozenset({"pyproject.toml", "setup.cfg", "setup.py"})
#: What marks a directory as a virtual environment: of venv and virtualenv, of conda.
ENVIRONMENT_MARKS = frozenset({"conda-meta", "pyvenv.cfg"})
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

#: Size, times of change in nanoseconds, and inode.
Stat = list[int]


class InputError(Exception):
    """What the user asked to be checked cannot be: one sentence, with a next step."""


class Unreadable(Exception):
    """Why a file cannot be read, in one sentence. ``line`` is where, from 1."""

    def __init__(self, reason: str, line: int = 1) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line


# Finding files.


class Left:
    """What was left out on the way through folders, by the reason: paths as they are written."""

    __slots__ = ("excluded", "ignored", "links")

    def __init__(self) -> None:
        #: Files and folders that patterns exclude.
        self.excluded: list[str] = []
        #: What git ignores.
        self.ignored: list[str] = []
        #: Symbolic links that lead to themselves, or to a folder around them.
        self.links: list[str] = []


#: A test of (name, absolute path) for what patterns exclude.
Excluded = Callable[[str, str], bool]
#: From the real path of a folder to what is excluded from there on; None where what holds around it goes on.
Nearer = Callable[[str], Excluded | None]


def find(
    paths: Sequence[str],
    exclude: Sequence[str] = (),
    left: Left | None = None,
    nearer: Nearer | None = None,
    forced: Callable[[str], bool] | None = None,
    *,
    gitignore: bool = True,
) -> list[str]:
    """The files to check, each once, in the user's own spelling; those of a directory are sorted.

    A file that is named is taken as it is, and a directory that is named is walked wherever it lies; ``exclude``, git
    and the lists above decide about what lies below it. A pattern of ``exclude`` without a slash matches a file or
    directory of that name, one with a slash matches the end of a path, an absolute one the whole path, and one after
    ``!`` takes back what an earlier one matches. Symbolic links are followed, except to a directory around the one that
    is walked. A directory that cannot be listed is given back as if it were a file, so that reading it says why, and so
    is a link that leads in a circle, and what lies behind a directory that may not be entered.

    ``left`` is told what was left out. ``nearer`` says what a folder excludes instead of ``exclude``, from itself on,
    ``forced`` which of the files that are named are left out all the same. Without ``gitignore`` git is not
    asked.
    """
    everywhere = excluder(exclude)
    left = left or Left()
    found: list[str] = []
    seen: set[str] = set()
    for path in paths:
        if "\0" in path:
            raise InputError(f"{path!r} holds a null byte, which no path has: check where it comes from")
        if os.path.isdir(path):
            excluded = next(filter(None, map(nearer, upward(os.path.realpath(path)))), None) if nearer else None
            pairs = _Walk(path, excluded or everywhere, left, nearer, gitignore=gitignore).files()
        elif os.path.exists(path) or _hindrance(path):
            if forced is not None and forced(path):
                left.excluded.append(path)
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


def _hindrance(path: str) -> int:
    """Why what may well be there cannot be looked at: a link leads back to itself, or a folder may not be entered."""
    try:
        os.stat(path)
    except OSError as error:
        return error.errno if error.errno in (errno.ELOOP, errno.EACCES) else 0
    return 0


class _Walk:
    """The way through a directory that the user named."""

    def __init__(self, root: str, excluded: Excluded, left: Left, nearer: Nearer | None, *, gitignore: bool) -> None:
        self._root = root
        self._gitignore = gitignore
        self._excluded = excluded
        self._left = left
        self._nearer = nearer
        self._top = os.path.realpath(root)
        self._inside = os.path.join(self._top, "")
        self._visited: set[str] = set()
        self._waiting: deque[tuple[str, str, frozenset[str], Excluded]] = deque()
        #: Links wait for everything else, so that a file goes by its own path where it has one below the root.
        self._linked: deque[tuple[str, str]] = deque()
        self._found: dict[str, str] = {}

    def files(self) -> list[tuple[str, str]]:
        """The files below the directory: (path as written, real path), sorted."""
        tree = work_tree(self._top) if self._gitignore else None
        ignored = git_ignored(tree, self._top) if tree is not None else frozenset()
        written = "" if os.path.normpath(self._root) == os.curdir else self._root
        self._waiting.append((written, self._top, ignored, self._excluded))
        while self._waiting or self._linked:
            if self._waiting:
                self._enter(*self._waiting.popleft())
            else:
                self._follow(*self._linked.popleft())
        return sorted((path, real) for real, path in self._found.items())

    def _follow(self, path: str, real: str) -> None:
        if os.path.isfile(real):
            self._found.setdefault(real, path)
        elif not self._inside.startswith(os.path.join(real, "")):
            self._enter(path, real, frozenset(), self._excluded)
        else:
            self._left.links.append(path)

    def _enter(self, path: str, real: str, ignored: frozenset[str], excluded: Excluded) -> None:
        """Take the files of a directory, and have those below it wait; ``ignored`` is what git leaves out."""
        if real in self._visited:
            return
        self._visited.add(real)
        try:
            with os.scandir(real) as scan:
                entries = sorted(scan, key=lambda entry: entry.name)
        except OSError:
            self._found[real] = path or self._root
            return
        names = {entry.name for entry in entries}
        if real != self._top:
            if not ENVIRONMENT_MARKS.isdisjoint(names):
                return
            if ".git" in names and self._gitignore:
                ignored |= git_ignored(real, real)
            if self._nearer is not None:
                excluded = self._nearer(real) or excluded
        built = real == self._top or not PROJECT_FILES.isdisjoint(names)
        skipped = SKIPPED | BUILT if built else SKIPPED
        before, real_before = os.path.join(path, ""), os.path.join(real, "")
        for entry in entries:
            name = entry.name
            directory = _is_directory(entry)
            if not (directory and (name in skipped or name.endswith(".egg-info"))):
                self._take(entry, before + name, real_before + name, ignored, excluded)

    def _take(self, entry: os.DirEntry[str], path: str, real: str, ignored: frozenset[str], excluded: Excluded) -> None:
        directory = _is_directory(entry)
        linked = entry.is_symlink()
        hindrance = _hindrance(real) if directory is None and linked else 0
        if directory is None and not hindrance:
            return
        if real in ignored:
            self._left.ignored.append(path)
        elif excluded(entry.name, real):
            self._left.excluded.append(path)
        elif hindrance:
            if hindrance == errno.ELOOP:
                self._left.links.append(path)
            if entry.name.endswith(SUFFIXES):
                self._found.setdefault(real, path)
        elif linked:
            target = os.path.realpath(real)
            # What lies below the root is found there, or is left out on purpose.
            if not (target.startswith(self._inside) and (directory or target.endswith(SUFFIXES))):
                self._linked.append((path, target))
        elif directory:
            self._waiting.append((path, real, ignored, excluded))
        else:
            self._found.setdefault(real, path)


def _is_directory(entry: os.DirEntry[str]) -> bool | None:
    """Whether it is a directory; None for what is neither that nor a file that may hold Python."""
    try:
        return entry.is_dir() or (False if entry.name.endswith(SUFFIXES) and entry.is_file() else None)
    except OSError:
        # A link to itself, or into what may not be seen.
        return None


def left_out(path: str, top: str, excluded: Excluded) -> bool:
    """Whether a file, or a folder around it below ``top``, is excluded. Both are real paths."""
    inside = os.path.join(top, "")
    return any(excluded(os.path.basename(above), above) for above in upward(path) if above.startswith(inside))


def stem(path: str) -> str:
    """The last part of the name that a file is imported by."""
    name = os.path.basename(path).removesuffix(".py")
    return name if name != "__init__" else os.path.basename(os.path.dirname(os.path.abspath(path)))


def excluder(patterns: Iterable[str]) -> Excluded:
    """A test of (name, absolute path) for what the patterns exclude; of those that match, the last one decides."""
    # Neighbours that say the same become one expression.
    tests: list[tuple[bool, Excluded]] = []
    for again, group in groupby(patterns, lambda pattern: pattern.startswith("!")):
        test = _matcher(pattern.removeprefix("!") for pattern in group)
        if test is not None:
            tests.append((again, test))
    if all(again for again, _ in tests):
        return lambda name, path: False
    if len(tests) == 1:
        return tests[0][1]
    tests.reverse()
    return lambda name, path: not next((again for again, test in tests if test(name, path)), True)


def _matcher(patterns: Iterable[str]) -> Excluded | None:
    """A test for what any of the patterns matches; None where there are none."""
    names: list[str] = []
    tails: list[str] = []
    for pattern in patterns:
        text = os.path.normcase(pattern).replace(os.sep, "/").removeprefix("./").rstrip("/")
        if os.path.isabs(pattern):
            tails.append(text)
        elif "/" in text:
            # ``**/`` also stands for no directory at all.
            tails += ["*/" + text, "*/" + text.replace("**/", "")]
        elif text:
            names.append(text)
    if not names and not tails:
        return None

    from fnmatch import translate

    nothing = r"(?!)"
    by_name = re.compile("|".join(map(translate, names)) or nothing)
    by_path = re.compile("|".join(map(translate, tails)) or nothing)

    def matches(name: str, path: str) -> bool:
        if by_name.match(os.path.normcase(name)):
            return True
        return bool(tails) and by_path.match(os.path.normcase(path).replace(os.sep, "/")) is not None

    return matches


def work_tree(directory: str) -> str | None:
    """The git work tree around a directory, given by its real path."""
    return next((above for above in upward(directory) if os.path.lexists(os.path.join(above, ".git"))), None)


def upward(directory: str) -> Iterator[str]:
    """A directory and those that it lies in, the nearest first."""
    while True:
        yield directory
        parent = os.path.dirname(directory)
        if parent == directory:
            return
        directory = parent


def git_ignored(top: str, directory: str) -> frozenset[str]:
    """Real paths of what git ignores in a directory of the work tree ``top``; a directory stands for all it holds.

    Nothing, where git is missing or refuses, or where it ignores the directory itself: the user named it all the same.
    Raise :class:`InputError` where git hangs.
    """
    from subprocess import SubprocessError

    from . import git

    words = ("ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z", "--")
    try:
        listed = git.answer(top, *words, os.path.relpath(directory, top))
    except (OSError, SubprocessError):
        return frozenset()
    except git.Unanswered as error:
        raise InputError(f"git {error}: remove the cause, or give --no-respect-gitignore") from None
    found = {os.path.normpath(os.path.join(top, os.fsdecode(name))) for name in listed.split(b"\0") if name}
    inside = os.path.join(directory, "")
    return frozenset(found) if all(path.startswith(inside) for path in found) else frozenset()


# Reading a file.


class Unsaved:
    """While this is entered, files hold what ``texts`` says, by absolute path, whatever is on the disk.

    For the whole process: nothing else may read files meanwhile.
    """

    texts: Mapping[str, bytes] = {}

    def __init__(self, texts: Mapping[str, bytes]) -> None:
        self._given = texts

    def __enter__(self) -> None:
        Unsaved.texts = self._given

    def __exit__(self, *_: object) -> None:
        Unsaved.texts = {}


def status(path: str) -> Stat | None:
    """What changes when the content of a file, by its absolute path, does; None where there is no file."""
    if path in Unsaved.texts:
        data = Unsaved.texts[path]
        # Of no time: what it holds tells by itself whether it changed.
        return [len(data), 0, 0, hash(data)]
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def load(path: str, largest: int = LARGEST_DOCUMENT) -> bytes:
    """Return the bytes of a regular file. Raise :class:`Unreadable` for more than ``largest``; 0 is for no limit."""
    if Unsaved.texts:
        held = Unsaved.texts.get(os.path.abspath(path))
        if held is not None:
            refuse_large(len(held), largest)
            return held
    try:
        return read_regular(path, largest)
    except TooLarge as error:
        if largest != LARGEST_DOCUMENT:
            refuse_large(error.size, largest)
        raise Unreadable(str(error.strerror)) from None
    except NotRegular as error:
        raise Unreadable(str(error.strerror)) from None
    except OSError as error:
        if not os.path.isdir(path):
            raise Unreadable(f"it cannot be opened, {_said(error)}") from None
    try:
        os.scandir(path).close()
    except OSError as error:
        raise Unreadable(f"this directory cannot be listed, {_said(error)}") from None
    raise Unreadable("it is a directory")


def load_or_nothing(path: str, largest: int = LARGEST_FILE) -> bytes:
    """Return the bytes of a regular file; none, where it cannot be read or has more than ``largest``."""
    try:
        return load(path, largest)
    except Unreadable:
        return b""


def digest(data: bytes) -> str:
    """What stands for the content of a file."""
    try:
        # hashlib loads OpenSSL, which takes longer than hashing most projects.
        from _blake2 import blake2b
    except ImportError:
        from hashlib import blake2b

    return blake2b(data, digest_size=16).hexdigest()


def _said(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()


def decode(data: bytes) -> str:
    """The text of Python source, with a newline character where Python ends a line, and nowhere else.

    The encoding is UTF-8 or what a coding line names (PEP 263). A form feed, which ends a line for ``str.splitlines``,
    ends none for Python.
    """
    return newlines(spelled(data)[0])


def spelled(data: bytes) -> tuple[str, str]:
    """The text of Python source with the line ends that it has, and the encoding that gives these bytes back."""
    _refuse_null(data)
    marked = data.startswith(BYTE_ORDER_MARK)
    encoding = _coding_line(data)
    if marked and encoding and encoding.lower().replace("_", "-") not in ("utf-8", "utf8"):
        raise Unreadable(f"it begins with the mark of UTF-8 and its coding line says {encoding}")
    codec = "utf-8-sig" if marked else encoding or "utf-8"
    try:
        return data.decode(codec), codec
    except UnicodeDecodeError as error:
        line = _line(data, error.start)
        reason = f"byte 0x{data[error.start]:02x} on line {line} is not {encoding or 'UTF-8'}"
        raise Unreadable(reason if encoding else f"{reason}, and no coding line names another encoding", line) from None
    except (LookupError, ValueError):
        raise Unreadable(f"its coding line names {encoding}, which is no encoding that Python knows") from None


def encoded(text: str) -> bytes:
    """The bytes of a text as its own coding line wants them; what that cannot hold is replaced."""
    data = text.encode("utf-8", "replace")
    try:
        return text.encode(_coding_line(data) or "utf-8")
    except (LookupError, UnicodeError):
        return data


def utf8(data: bytes) -> str:
    """The text of a file that is UTF-8 by its format, with a newline character at the end of each line."""
    _refuse_null(data)
    try:
        return newlines(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = _line(data, error.start)
        raise Unreadable(f"byte 0x{data[error.start]:02x} on line {line} is not UTF-8", line) from None


def newlines(text: str) -> str:
    """The text with a newline character for each line end, as Python sees them."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def refuse_large(size: int, largest: int) -> None:
    """Raises :class:`Unreadable` for so many bytes of code, unless there is no limit (0)."""
    if 0 < largest < size:
        raise Unreadable(f"it has {size:,} bytes of code, which is more than max-file-size allows: {largest:,}")


def _refuse_null(data: bytes) -> None:
    null = data.find(b"\0")
    if null >= 0:
        line = _line(data, null)
        raise Unreadable(f"there is a null byte on line {line}, so it is no text in UTF-8", line)


def _coding_line(data: bytes) -> str:
    """The encoding that the first or second line names (PEP 263), or nothing."""
    second = data.find(b"\n", data.find(b"\n") + 1)
    head = data if second < 0 else data[:second]
    if b"coding" not in head:
        return ""
    for line in head.removeprefix(BYTE_ORDER_MARK).splitlines()[:2]:
        cookie = re.match(rb"[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)", line)
        if cookie:
            # Emacs names the line ends along with the encoding.
            return re.sub(r"-(?:unix|dos|mac)$", "", cookie.group(1).decode("ascii"))
        if not re.match(rb"[ \t\f]*(?:#|$)", line):
            break
    return ""


def _line(data: bytes, offset: int) -> int:
    return data.count(b"\n", 0, offset) + 1


def read(path: str, largest: int = 0) -> str:
    """The text of a file; see :func:`load` and :func:`decode`."""
    return decode(load(path, largest))
