"""Kinds of values: how each is read from words, and from TOML."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from ...protocol.finding import SEVERITIES
from ...protocol.surface import AUTOCAST_DEVICES
from ...protocol.wrappers import DOES
from ..formats import FORMATS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: When there is colour.
AUTO, ALWAYS, NEVER = "auto", "always", "never"
#: The two halves of --amp-check.
STATIC, RUNTIME = "static", "runtime"
DEVICES = ("auto", "cpu", "cuda", "emulate")
DTYPES = {"float16": "float16", "bfloat16": "bfloat16", "fp16": "float16", "bf16": "bfloat16", "half": "float16"}


class Wrong(ValueError):
    """What a value must be, and the nearest word that is right as the end of a sentence, if there is one."""

    def __init__(self, expected: str, hint: str = "") -> None:
        super().__init__(expected)
        self.hint = hint


class Kind:
    """What an option's values are, and how they are read from words and from TOML.

    ``words`` reads what a command line or an ini file holds (a list of strings), ``toml`` what pyproject.toml holds;
    both raise :class:`Wrong`. ``base`` is the directory that relative paths start from.
    ``separators`` are the characters between several values of an environment variable, where ``words`` does not take
    them apart itself, and ``choices`` gives all values, where they can be told.
    """

    __slots__ = ("choices", "example", "ini", "separators", "toml", "words")

    def __init__(
        self,
        example: str,
        ini: str,
        words: Callable[[list[str], str], Any],
        toml: Callable[[Any, str], Any],
        *,
        separators: str = "",
        choices: Callable[[], tuple[str, ...]] | None = None,
    ) -> None:
        self.separators = separators
        self.choices = choices
        self.example = example
        self.ini = ini
        self.words = words
        self.toml = toml


def _strings(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise Wrong("a list of strings")
    return value


def split(entries: Iterable[str], separators: str = ", \t\n") -> tuple[str, ...]:
    for separator in separators[1:]:
        entries = [entry.replace(separator, separators[0]) for entry in entries]
    return tuple(word.strip() for entry in entries for word in entry.split(separators[0]) if word.strip())


def _anchored(patterns: Iterable[str], base: str) -> tuple[str, ...]:
    """The patterns, those that hold a folder made absolute: they count from where they were written."""
    return tuple(_anchor(pattern, base) for pattern in patterns)


def _anchor(pattern: str, base: str) -> str:
    if pattern.startswith("!"):
        return "!" + _anchor(pattern[1:], base)
    pattern = pattern.replace(os.sep, "/").removeprefix("./")
    bare = pattern.rstrip("/")
    if "/" not in bare or bare.startswith("**/") or os.path.isabs(bare):
        return bare or pattern
    # The engine matches real paths, and what stands in the name of a folder is no pattern.
    folder = os.path.realpath(base).replace(os.sep, "/").rstrip("/")
    literal = "".join(f"[{c}]" if c in "*?[" else c for c in folder)
    return f"{literal}/{bare}"


def _located(paths: Iterable[str], base: str) -> tuple[str, ...]:
    return tuple(path if os.path.isabs(path) else os.path.normpath(os.path.join(base, path)) for path in paths)


def _ignores(entries: Iterable[str], base: str) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for entry in entries:
        pattern, colon, codes = entry.rpartition(":")
        if not colon or not pattern.strip() or not split([codes]):
            raise Wrong("PATTERN:CODES")
        key = _anchor(pattern.strip(), base)
        found[key] = found.get(key, ()) + split([codes])
    return found


def _ignores_toml(value: Any, base: str) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, dict):
        raise Wrong("a table of patterns, each with a list of rules")
    found: dict[str, tuple[str, ...]] = {}
    for pattern, codes in value.items():
        try:
            found[_anchor(pattern, base)] = tuple(_strings(codes))
        except ValueError:
            raise Wrong(f"a table of patterns, each with a list of rules (see {pattern!r})") from None
    return found


def _severities(entries: Iterable[str], base: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in split(entries, ",\n"):
        word, equals, severity = entry.replace(":", "=").partition("=")
        if not equals:
            raise Wrong("RULE=SEVERITY")
        found[word.strip()] = _one_of(severity.strip(), SEVERITIES)
    return found


def _severities_toml(value: Any, base: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise Wrong("a table of rules, each with a severity")
    return {word: _one_of(severity, SEVERITIES) for word, severity in value.items()}


def _helpers(entries: Iterable[str], base: str) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for entry in entries:
        name, colon, events = entry.partition(":")
        if not colon or not name.strip():
            raise Wrong("NAME:EVENTS")
        found[name.strip()] = _events(split([events]))
    return found


def _helpers_toml(value: Any, base: str) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, dict):
        raise Wrong("a table of dotted names, each with a list of events")
    return {name: _events(_strings(events)) for name, events in value.items()}


def _events(words: Iterable[str]) -> tuple[str, ...]:
    for word in words:
        if word not in DOES:
            raise Wrong(f"events out of {', '.join(DOES)}", nearest(word, DOES))
    return tuple(words)


def _device_types(words: Iterable[str]) -> tuple[str, ...]:
    known = tuple(sorted(AUTOCAST_DEVICES))
    for word in words:
        if word not in known:
            raise Wrong(f"types of devices, out of {', '.join(known)}", nearest(word, known))
    return tuple(words)


def _version(value: Any) -> tuple[int, int]:
    import re

    parts = re.match(r"(\d+)\.(\d+)(?:[.+].*)?$", value) if isinstance(value, str) else None
    if parts is None:
        raise Wrong("a version of torch")
    return int(parts[1]), int(parts[2])


def _one_of(value: Any, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise Wrong(f"one of {', '.join(choices)}", nearest(str(value), choices))
    return str(value)


def _chosen(example: str, choices: Callable[[], tuple[str, ...]]) -> Kind:
    """The kind of an option that is one of several words."""
    return Kind(
        json_text(example),
        "string",
        lambda v, b: _one_of(v[-1], choices()),
        lambda v, b: _one_of(v, choices()),
        choices=choices,
    )


def json_text(word: str) -> str:
    """A word between quotes, as TOML and JSON have them."""
    return f'"{word}"'


def device(value: Any) -> str:
    """The word for a device. It may be given as a ``torch.device`` too; ValueError says what was expected."""
    word = str(value)
    kind, colon, index = word.partition(":")
    if word in DEVICES or (kind == "cuda" and colon and index.isdecimal()):
        return word
    # Whoever writes `gpu` does not mean `cpu`.
    raise Wrong("auto, cpu, cuda, cuda:N or emulate", nearest(word, DEVICES, 0.7))


def dtype(value: Any) -> str:
    """The name of a dtype that autocast can have. It may be given as a ``torch.dtype`` too."""
    word = str(value).removeprefix("torch.")
    if word not in DTYPES:
        raise Wrong("float16 or bfloat16", nearest(word, tuple(DTYPES)))
    return DTYPES[word]


def _path(value: Any, base: str) -> str:
    if not isinstance(value, str) or not value:
        raise Wrong("the path of a file")
    return _located((value,), base)[0]


def _folder(value: Any, base: str) -> str:
    if not isinstance(value, str) or not value:
        raise Wrong("the path of a folder")
    return _located((value,), base)[0]


def _word(value: Any) -> str:
    if not isinstance(value, str) or not value or value.startswith("-"):
        raise Wrong("a revision of git")
    return value


def _truth(value: Any, base: str) -> bool:
    if not isinstance(value, bool):
        raise Wrong("true or false")
    return value


def _seconds(value: Any) -> float:
    try:
        number = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not 0 <= number < float("inf"):
        raise Wrong("a number of seconds, 0 for no limit")
    return number


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise Wrong("a whole number from 1")
    return value


def _size(value: Any) -> int:
    from ...protocol.byte_sizes import parse_size

    try:
        return parse_size(int(value) if isinstance(value, str) and value.isdecimal() else value)
    except (ValueError, TypeError):
        raise Wrong("a number of bytes or a size such as 20MB, 0 for no limit") from None


WORDS = Kind('["AMP2", "missing-scaler-update"]', "args", lambda v, b: split(v), lambda v, b: tuple(_strings(v)))
PATTERNS = Kind(
    '["third_party", "src/generated/*.py"]',
    "args",
    lambda v, b: _anchored(split(v, ",\n"), b),
    lambda v, b: _anchored(_strings(v), b),
)
PATHS = Kind('["src", "train.py"]', "paths", _located, lambda v, b: _located(_strings(v), b), separators=os.pathsep)
IGNORES = Kind('{ "tests/*" = ["AMP201"] }', "linelist", _ignores, _ignores_toml, separators=";\n")
LEVELS = Kind('{ AMP201 = "warning" }', "linelist", _severities, _severities_toml)
FORMAT = _chosen("concise", lambda: tuple(FORMATS))
LEVEL = _chosen("error", lambda: SEVERITIES)
WHEN = _chosen("never", lambda: (AUTO, ALWAYS, NEVER))
FLAG = Kind("true", "bool", lambda v, b: True, _truth)
HALF = _chosen("static", lambda: (STATIC, RUNTIME))
DEVICE = Kind('"emulate"', "string", lambda v, b: device(v[-1]), lambda v, b: device(v))
DTYPE = Kind('"bfloat16"', "string", lambda v, b: dtype(v[-1]), lambda v, b: dtype(v))
PATH = Kind('"amp-report.html"', "string", lambda v, b: _path(v[-1], b), _path)
COUNT = Kind("4", "string", lambda v, b: _count(int(v[-1]) if v[-1].isdecimal() else v[-1]), lambda v, b: _count(v))
SIZE = Kind('"20MB"', "string", lambda v, b: _size(v[-1]), lambda v, b: _size(v))
SECONDS = Kind("60", "string", lambda v, b: _seconds(v[-1]), lambda v, b: _seconds(v))
HELPERS = Kind(
    '{ "mylib.finish" = ["unscales", "clips", "steps", "updates", "clears"] }',
    "linelist",
    _helpers,
    _helpers_toml,
    separators=";\n",
)
TYPES = Kind('["cuda"]', "args", lambda v, b: _device_types(split(v)), lambda v, b: _device_types(_strings(v)))
VERSION = Kind('"2.4"', "string", lambda v, b: _version(v[-1]), lambda v, b: _version(v))
REVISION = Kind('"origin/main"', "string", lambda v, b: _word(v[-1]), lambda v, b: _word(v))
SOURCES = Kind('["amp-check.toml"]', "args", lambda v, b: tuple(v), lambda v, b: tuple(_strings(v)), separators="\n")
FOLDER = Kind('".cache/amp-check"', "string", lambda v, b: _folder(v[-1], b), _folder)


def nearest(word: str, known: tuple[str, ...], alike: float = 0.6) -> str:
    import difflib

    close = difflib.get_close_matches(word.replace("_", "-").lower(), known, n=1, cutoff=alike)
    return f": did you mean {close[0]!r}?" if close else ""
