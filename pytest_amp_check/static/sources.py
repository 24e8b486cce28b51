"""What to read: finds the files below the given paths that hold Python, decodes them, says which need no parsing."""

from __future__ import annotations

import os
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

#: What the files are called that may hold Python: source, notebooks, documentation.
SUFFIXES = (".py", ".ipynb", ".md")
#: Directories that hold no source of the project, whatever they contain.
SKIPPED = frozenset(
    {
        ".amp_check_cache",
        ".eggs",
        ".git",
        ".hg",
        ".ipynb_checkpoints",
        ".jj",
        ".mypy_cache",
        ".nox",
        ".pytest_cache",
        ".pytype",
        ".ruff_cache",
        ".svn",
        ".tox",
        "__pycache__",
        "__pypackages__",
        "node_modules",
    }
)
#: Directories that a build writes, where they lie beside one of :data:`PROJECT_FILES` or directly below a root.
BUILT = frozenset({"build", "dist"})
PROJECT_FILES = frozenset({"pyproject.toml", "setup.cfg", "setup.py"})
#: What marks a directory as a virtual environment: of venv and virtualenv, of conda.
ENVIRONMENT_MARKS = frozenset({"conda-meta", "pyvenv.cfg"})
#: Seconds after which git is not waited for any longer.
GIT_PATIENCE = 60
#: Bytes above which a file is not parsed: data in the form of Python, and a syntax tree of more than a gigabyte.
LARGEST = 10_000_000
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class InputError(Exception):
    """What the user asked to be checked cannot be: one sentence, with a next step."""


class Unreadable(Exception):
    """Why a file cannot be read, in one sentence. ``line`` is where, from 1."""

    def __init__(self, reason: str, line: int = 1) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line


# Finding files.


def find(paths: Sequence[str], exclude: Sequence[str] = ()) -> list[str]:
    """The files to check, each once, in the user's own spelling; those of a directory are sorted.

    A file that is named is taken as it is, and a directory that is named is walked wherever it lies; ``exclude``, git
    and the lists above decide about what lies below it. A pattern of ``exclude`` without a slash matches a file or
    directory of that name, one with a slash matches the end of a path, an absolute one the whole path. Symbolic links
    are followed, except to a directory around the one that is walked. A directory that cannot be listed is given back
    as if it were a file, so that reading it says why.
    """
    excluded = excluder(exclude)
    found: list[str] = []
    seen: set[str] = set()
    for path in paths:
        if os.path.isdir(path):
            pairs = _walk(path, excluded)
        elif os.path.exists(path):
            pairs = [(path, os.path.realpath(path))]
        else:
            raise InputError(f"`{path}` does not exist: check its spelling, or name a file or directory that does")
        for written, real in pairs:
            if real not in seen:
                seen.add(real)
                found.append(written)
    return found


def _walk(root: str, excluded: Callable[[str, str], bool]) -> list[tuple[str, str]]:
    """The files below a directory that the user named: (path as written, real path), sorted."""
    real_root = os.path.realpath(root)
    inside = os.path.join(real_root, "")
    found: dict[str, str] = {}
    visited: set[str] = set()
    top = _work_tree(real_root)
    ignored = git_ignored(top, real_root) if top is not None else frozenset()
    waiting = deque([("" if os.path.normpath(root) == os.curdir else root, real_root, ignored)])
    # Links wait until everything else is walked, so that a file goes by its own path where it has one below the root.
    linked: deque[tuple[str, str]] = deque()
    while waiting or linked:
        if waiting:
            path, real, ignored = waiting.popleft()
        else:
            path, real = linked.popleft()
            ignored = frozenset()
            if os.path.isfile(real):
                found.setdefault(real, path)
                continue
            if inside.startswith(os.path.join(real, "")):
                continue
        if real in visited:
            continue
        visited.add(real)
        try:
            with os.scandir(real) as scan:
                entries = sorted(scan, key=lambda entry: entry.name)
        except OSError:
            found[real] = path or root
            continue
        names = {entry.name for entry in entries}
        named = real == real_root
        if not named:
            if not ENVIRONMENT_MARKS.isdisjoint(names):
                continue
            if ".git" in names:
                ignored |= git_ignored(real, real)
        built = named or not PROJECT_FILES.isdisjoint(names)
        before, real_before = os.path.join(path, ""), os.path.join(real, "")
        for entry in entries:
            name = entry.name
            try:
                directory = entry.is_dir()
                if not directory and not (name.endswith(SUFFIXES) and entry.is_file()):
                    continue
            except OSError:
                # A link to itself, or into what may not be seen.
                continue
            if directory and (name in SKIPPED or name.endswith(".egg-info") or (built and name in BUILT)):
                continue
            inner = real_before + name
            if inner in ignored or excluded(name, inner):
                continue
            if entry.is_symlink():
                target = os.path.realpath(inner)
                # What lies below the root is found there, or is left out on purpose.
                if not (target.startswith(inside) and (directory or target.endswith(SUFFIXES))):
                    linked.append((before + name, target))
            elif directory:
                waiting.append((before + name, inner, ignored))
            else:
                found.setdefault(inner, before + name)
    return sorted((path, real) for real, path in found.items())


def excluder(patterns: Iterable[str]) -> Callable[[str, str], bool]:
    """A test of (name, absolute path) for what the patterns exclude."""
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
        return lambda name, path: False

    from fnmatch import translate

    nothing = r"(?!)"
    by_name = re.compile("|".join(map(translate, names)) or nothing)
    by_path = re.compile("|".join(map(translate, tails)) or nothing)

    def excluded(name: str, path: str) -> bool:
        if by_name.match(os.path.normcase(name)):
            return True
        return bool(tails) and by_path.match(os.path.normcase(path).replace(os.sep, "/")) is not None

    return excluded


def _work_tree(directory: str) -> str | None:
    """The git work tree around a directory, given by its real path."""
    while not os.path.lexists(os.path.join(directory, ".git")):
        parent = os.path.dirname(directory)
        if parent == directory:
            return None
        directory = parent
    return directory


def git_ignored(top: str, directory: str) -> frozenset[str]:
    """Real paths of what git ignores in a directory of the work tree ``top``; a directory stands for all it holds.

    Nothing, where git is missing or refuses, or where it ignores the directory itself: the user named it all the same.
    """
    import subprocess

    # A git hook sets these for its own repository, which need not be this one.
    hooked = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX")
    environment = {name: value for name, value in os.environ.items() if name not in hooked}
    # A repository can name a program of its own as its file system monitor; looking at files must not run it.
    command = ["git", "--literal-pathspecs", "-c", "core.fsmonitor=false", "ls-files", "--others", "--ignored"]
    command += ["--exclude-standard", "--directory", "-z", "--", os.path.relpath(directory, top)]
    try:
        done = subprocess.run(
            command,
            cwd=top,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=GIT_PATIENCE,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return frozenset()
    found = {os.path.normpath(os.path.join(top, os.fsdecode(name))) for name in done.stdout.split(b"\0") if name}
    inside = os.path.join(directory, "")
    return frozenset(found) if all(path.startswith(inside) for path in found) else frozenset()


# Reading a file.


def load(path: str) -> bytes:
    """The bytes of a file."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        if not os.path.isdir(path):
            raise Unreadable(f"it cannot be opened, {_said(error)}") from None
    try:
        os.scandir(path).close()
    except OSError as error:
        raise Unreadable(f"this directory cannot be listed, {_said(error)}") from None
    raise Unreadable("it is a directory")


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
    refuse_large(len(data))
    _refuse_null(data)
    marked = data.startswith(BYTE_ORDER_MARK)
    encoding = _coding_line(data)
    if marked and encoding and encoding.lower().replace("_", "-") not in ("utf-8", "utf8"):
        raise Unreadable(f"it begins with the mark of UTF-8 and its coding line says {encoding}")
    try:
        text = data.decode("utf-8-sig" if marked else encoding or "utf-8")
    except UnicodeDecodeError as error:
        line = _line(data, error.start)
        reason = f"byte 0x{data[error.start]:02x} on line {line} is not {encoding or 'UTF-8'}"
        raise Unreadable(reason if encoding else f"{reason}, and no coding line names another encoding", line) from None
    except (LookupError, ValueError):
        raise Unreadable(f"its coding line names {encoding}, which is no encoding that Python knows") from None
    return newlines(text)


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


def refuse_large(size: int) -> None:
    """Raises :class:`Unreadable` for so many bytes of code."""
    if size > LARGEST:
        raise Unreadable(f"it has {size / 1e6:.0f} MB, which is more than the {LARGEST / 1e6:.0f} MB that are parsed")


def _refuse_null(data: bytes) -> None:
    null = data.find(b"\0")
    if null >= 0:
        line = _line(data, null)
        raise Unreadable(f"there is a null byte on line {line}, so it is no text in UTF-8", line)


def invalid(error: SyntaxError) -> str:
    """Why source is not parsed, in the words of Python's parser."""
    return f"it is not valid Python {sys.version_info[0]}.{sys.version_info[1]}: {error.msg}"


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


def read(path: str) -> str:
    """The text of a file; see :func:`decode`."""
    return decode(load(path))


# Looking before parsing.


def mentions(data: bytes) -> bool:
    """Whether source may hold anything that a rule speaks of; where not, it gives no finding and need not be parsed.

    Parsing is most of the work, and few files of a project train. What every rule needs is in the text by name:
    autocast and GradScaler, under whatever name they are imported; methods that only a scaler has; a backward and a
    step; a cast; a fill with a large number. So the bytes are searched for as few words as will do, and a file that
    holds one is looked at more closely. On the torch package this takes 9 ms per megabyte, parsing 210 ms, and 76 of
    2,285 files pass.

    Names are taken as they are written: in ASCII, in one piece, a method's bracket right behind it. True does not
    promise a finding, and False does not promise that the file parses.
    """
    if b"autocast" in data and _autocast(data):
        return True  # AMP101 to AMP106, AMP502, AMP504
    if b"cale" in data and _scaler(data):
        return True  # AMP110, AMP2xx, AMP4xx, AMP503
    if b".step(" in data and b"backward(" in data:
        return True  # AMP3xx, which need no scaler
    if b"update_params(" in data and b"AmpOptimWrapper" in data:
        return True  # AMP302
    if b"LightningModule" in data and (b"binary_cross_entropy(" in data or b"BCELoss(" in data or _divides(data)):
        return True  # AMP302, AMP504
    if b"custom_fwd" in data or b"custom_bwd" in data:
        return True  # AMP901
    if b"clip_grad_norm" in data and re.search(rb"clip_grad_norm(?!\w)", data):
        return True  # AMP901
    if b"parameters(" in data and _casts(data):
        return True  # AMP501
    if (b"fill" in data or b"where(" in data or b"full_like" in data) and _fills(data):
        return True  # AMP506, where any file of the tree trains in float16
    if b"amp:" in data and re.search(rb"amp:\s*ignore", data):
        return True  # AMP902
    if b"AMP" in data and re.search(rb"(?i:noqa)\s*:[^\n#]*AMP", data):
        return True  # AMP902
    # UTF-16 hides every name from this search, and is no Python source: AMP903.
    return b"\0" in data


#: What does something to the protocol, or makes something that does, has one of these.
_HELP = (b"autocast", b"caler", b"backward(", b"state_dict", b"zero_grad", b"clip_grad", b".step(", b".save(", b"optim")


def helps(data: bytes) -> bool:
    """Whether source may do something to the protocol for a file that imports it."""
    return any(word in data for word in _HELP)


#: What a file does that leaves the training to another one, and yet may do something wrong.
_REST = (b".state_dict(", b"clip_grad", b"training_step")
_IMPORT = rb"^[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n#]*)|import[ \t]+([^\n#]*))"


def imports(data: bytes) -> set[bytes]:
    """Last names of what source imports, or imports from, if it may do something wrong with what it finds there."""
    if not any(word in data for word in _REST):
        return set()
    found: set[bytes] = set()
    for module, names in imported(data):
        if module == b"torch" or module.startswith(b"torch."):
            continue
        found.add(module.rpartition(b".")[2])
        found |= {name.rpartition(b".")[2] for name in names}
    return found - {b""}


def imported(data: bytes) -> Iterator[tuple[bytes, list[bytes]]]:
    """What source imports: modules with the names that are taken from each; of ``import a.b`` a.b with none."""
    for match in re.finditer(_IMPORT, data, re.MULTILINE):
        module, names, modules = match.groups()
        if module is not None:
            yield module, [part.split()[0] for part in names.strip(b"()").split(b",") if part.strip()]
        else:
            for part in modules.split(b","):
                if part.strip():
                    yield part.split()[0], []


#: What a method that a class defines for another file's class may do wrong there.
_HOOKS = (b"clip_grad", b"backward(", b"autocast", b".step(", b"zero_grad")
_CLASS = rb"^[ \t]*class\s+(\w+)\s*(?:\(([^)]*)\))?"


def classes(data: bytes) -> set[bytes]:
    """Names of the classes that source defines."""
    return {match.group(1) for match in re.finditer(_CLASS, data, re.MULTILINE)} if b"class" in data else set()


def bases(data: bytes) -> set[bytes]:
    """Last names of what the classes of a source derive from, if a method of theirs may matter to what they inherit."""
    if not any(word in data for word in _HOOKS):
        return set()
    found: set[bytes] = set()
    for match in re.finditer(_CLASS, data, re.MULTILINE):
        for base in (match.group(2) or b"").split(b","):
            found.add(base.partition(b"[")[0].rpartition(b".")[2].strip())
    return found - {b"", b"Module", b"object"}


def _divides(data: bytes) -> bool:
    """Whether source may divide a loss by the number of micro-batches that a Trainer divides by."""
    return b"accumulate_grad_batches" in data and b"training_step(" in data


#: Functions of torch that end in the word and enter no region of the program that calls them.
_NO_REGION = (b"enter_autocast", b"exit_autocast", b"register_autocast")


def _autocast(data: bytes) -> bool:
    """Whether autocast is called, imported, stored or used as a decorator, by this or a longer name that ends in it."""
    for match in re.finditer(rb"autocast(?![\w'\"])", data):
        start, end = match.span()
        before = data[data.rfind(b"\n", 0, start) + 1 : end]
        if before.lstrip().startswith(b"#") or before.endswith(_NO_REGION):
            continue
        if data[end : end + 8].lstrip().startswith(b"("):
            return True
        if re.search(rb"(?:^|[=(,.\[@:{*]|\b(?:with|return|import|if|else|or|and|in|from|yield))\s*\w*$", before):
            return True
    # The old getters and setters of one device, AMP901.
    return re.search(rb"_autocast_(?:cpu|gpu)_\w+(?![\w'\"])", data) is not None


def _scaler(data: bytes) -> bool:
    """Whether a scaler is used: a name that ends in scaler, or a method by which one is known."""
    if b"caler" in data and re.search(rb"caler\w*\s*(?:[.(\[,)=:]|as\b)", data):
        return True
    return b".unscale_" in data or (b"backward(" in data and b".scale(" in data)


def _casts(data: bytes) -> bool:
    """Whether a module may be cast to a low-precision dtype and trained."""
    if not (b".step(" in data or re.search(rb"optim(?!\w)", data)):
        return False
    if b".half(" in data or b".bfloat16(" in data:
        return True
    if not (b"float16" in data or b"half" in data):
        return False
    return any(re.search(name + rb"\([^)]{0,200}?(?:half|float16|dtype)", data) for name in (rb"\.to", rb"\.type"))


#: What may be more than float16 can hold: a number of that size, a power, the limits of a wider type.
_LARGE = (
    rb"(?:[0-9._]*[0-9.][eE]\+?0*(?:[4-9]|[1-3][0-9])(?!\w)|[0-9][0-9_]{4,}(?![\w.])"
    rb"|[0-9]{2,}\s*\*\*\s*[0-9]|[0-9]\s*\*\*\s*[0-9]{2}|\w*\.?finfo\()"
)
_SIGN = rb"\s*(?:float\()?[-'\"( ]*"
_FILLING = (b"masked_fill", b"index_fill", b"full_like", b".fill_(", b"where(")
#: Brackets, two levels deep.
_ARGUMENTS = rb"\((?:[^()#]|\((?:[^()#]|\([^()#]*\))*\)){0,400}\)"


def _fills(data: bytes) -> bool:
    """Whether a tensor is filled with a number that float16 cannot hold, in place or by a name of this file."""
    words = [word for word in _FILLING if word in data]
    if not words:
        return False
    numbers = [_LARGE]
    # The look ahead makes no difference but in time: most assignments end there.
    for match in re.finditer(rb"= *(?=[-0-9.'\"(fnt])" + _SIGN + _LARGE, data):
        name = re.search(rb"(\w+) *(?::[^=\n]*)?$", data[max(0, match.start() - 100) : match.start()])
        if name:
            numbers.append(rb"(?:\w+\.)*" + name.group(1) + rb"\b")
    value = re.compile(rb"(?:[,=(]|\n)" + _SIGN + rb"(?:" + b"|".join(numbers) + rb")")
    brackets = re.compile(_ARGUMENTS)
    for word in words:
        at = data.find(word)
        while at >= 0:
            opening = data.find(b"(", at)
            arguments = brackets.match(data, opening)
            if value.search(arguments.group() if arguments else data[opening : opening + 200]):
                return True
            at = data.find(word, at + 1)
    return False
