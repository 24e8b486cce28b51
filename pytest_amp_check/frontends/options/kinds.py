"""Kinds of option values, with parsers for words and TOML."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from ...protocol.declared_wrappers import DOES
from ...protocol.severities import SEVERITIES
from ...protocol.torch_api import AUTOCAST_DEVICES
from ..formats import FORMATS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Color modes.
AUTO, ALWAYS, NEVER = "auto", "always", "never"
#: Output format that coding agents get without asking.
AGENT = "agent"
#: Values of ``only``: the analyzer and the recorder of --amp-check.
STATIC, RUNTIME = "static", "runtime"
DEVICES = ("auto", "cpu", "cuda", "emulate")
DTYPES = {"float16": "float16", "bfloat16": "bfloat16", "fp16": "float16", "bf16": "bfloat16", "half": "float16"}


class InvalidValue(ValueError):
    """Error for an invalid value: the message describes a valid value, and ends with the nearest valid word, if any."""

    def __init__(self, expected: str, hint: str = "") -> None:
        super().__init__(expected)
        self.hint = hint


class OptionKind:
    """A kind of option values, with parsers for words and TOML.

    ``from_words`` parses a list of strings from a command line or an ini file. ``from_toml`` parses a value of
    pyproject.toml. Both raise :class:`InvalidValue`. Their argument ``base`` is the folder of relative paths.
    ``separators`` are the characters between values of an environment variable, if ``from_words`` does not split.
    ``choices`` returns all values, if finite.
    """

    __slots__ = ("choices", "example", "from_toml", "from_words", "ini_type", "separators")

    def __init__(
        self,
        example: str,
        ini_type: str,
        from_words: Callable[[list[str], str], Any],
        from_toml: Callable[[Any, str], Any],
        *,
        separators: str = "",
        choices: Callable[[], tuple[str, ...]] | None = None,
    ) -> None:
        self.separators = separators
        self.choices = choices
        self.example = example
        self.ini_type = ini_type
        self.from_words = from_words
        self.from_toml = from_toml


def _require_strings(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise InvalidValue("a list of strings")
    return value


def split_words(entries: Iterable[str], separators: str = ", \t\n") -> tuple[str, ...]:
    for separator in separators[1:]:
        entries = [entry.replace(separator, separators[0]) for entry in entries]
    return tuple(word.strip() for entry in entries for word in entry.split(separators[0]) if word.strip())


def _anchor_patterns(patterns: Iterable[str], base: str) -> tuple[str, ...]:
    """Return the patterns; a pattern with a folder is made absolute, relative to the folder of the configuration."""
    return tuple(_anchor_pattern(pattern, base) for pattern in patterns)


def _anchor_pattern(pattern: str, base: str) -> str:
    if pattern.startswith("!"):
        return "!" + _anchor_pattern(pattern[1:], base)
    pattern = pattern.replace(os.sep, "/").removeprefix("./")
    bare = pattern.rstrip("/")
    if "/" not in bare or bare.startswith("**/") or os.path.isabs(bare):
        return bare or pattern
    # The engine matches real paths, and the folder name contains no pattern.
    folder = os.path.realpath(base).replace(os.sep, "/").rstrip("/")
    literal = "".join(f"[{c}]" if c in "*?[" else c for c in folder)
    return f"{literal}/{bare}"


def _resolve_paths(paths: Iterable[str], base: str) -> tuple[str, ...]:
    return tuple(path if os.path.isabs(path) else os.path.normpath(os.path.join(base, path)) for path in paths)


def _parse_ignores(entries: Iterable[str], base: str) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for entry in entries:
        pattern, colon, codes = entry.rpartition(":")
        if not colon or not pattern.strip() or not split_words([codes]):
            raise InvalidValue("PATTERN:CODES")
        key = _anchor_pattern(pattern.strip(), base)
        found[key] = found.get(key, ()) + split_words([codes])
    return found


def _convert_ignores(value: Any, base: str) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, dict):
        raise InvalidValue("a table of patterns, each with a list of rules")
    found: dict[str, tuple[str, ...]] = {}
    for pattern, codes in value.items():
        try:
            found[_anchor_pattern(pattern, base)] = tuple(_require_strings(codes))
        except ValueError:
            raise InvalidValue(f"a table of patterns, each with a list of rules (see {pattern!r})") from None
    return found


def _parse_severities(entries: Iterable[str], base: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in split_words(entries, ",\n"):
        word, equals, severity = entry.replace(":", "=").partition("=")
        if not equals:
            raise InvalidValue("RULE=SEVERITY")
        found[word.strip()] = _require_choice(severity.strip(), SEVERITIES)
    return found


def _convert_severities(value: Any, base: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise InvalidValue("a table of rules, each with a severity")
    return {word: _require_choice(severity, SEVERITIES) for word, severity in value.items()}


def _parse_helpers(entries: Iterable[str], base: str) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for entry in entries:
        name, colon, events = entry.partition(":")
        if not colon or not name.strip():
            raise InvalidValue("NAME:EVENTS")
        found[name.strip()] = _require_events(split_words([events]))
    return found


def _convert_helpers(value: Any, base: str) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, dict):
        raise InvalidValue("a table of dotted names, each with a list of events")
    return {name: _require_events(_require_strings(events)) for name, events in value.items()}


def _require_events(words: Iterable[str]) -> tuple[str, ...]:
    for word in words:
        if word not in DOES:
            raise InvalidValue(f"events out of {', '.join(DOES)}", suggest_nearest(word, DOES))
    return tuple(words)


def _require_device_types(words: Iterable[str]) -> tuple[str, ...]:
    known = tuple(sorted(AUTOCAST_DEVICES))
    for word in words:
        if word not in known:
            raise InvalidValue(f"types of devices, out of {', '.join(known)}", suggest_nearest(word, known))
    return tuple(words)


def _parse_version(value: Any) -> tuple[int, int]:
    import re

    parts = re.match(r"(\d+)\.(\d+)(?:[.+].*)?$", value) if isinstance(value, str) else None
    if parts is None:
        raise InvalidValue("a version of torch")
    return int(parts[1]), int(parts[2])


def _require_choice(value: Any, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise InvalidValue(f"one of {', '.join(choices)}", suggest_nearest(str(value), choices))
    return str(value)


def _make_choice_kind(example: str, choices: Callable[[], tuple[str, ...]]) -> OptionKind:
    """Return the kind of an option with a fixed set of words."""
    return OptionKind(
        quote_word(example),
        "string",
        lambda v, b: _require_choice(v[-1], choices()),
        lambda v, b: _require_choice(v, choices()),
        choices=choices,
    )


def quote_word(word: str) -> str:
    """Return a word in quotes, as in TOML and JSON."""
    return f'"{word}"'


def parse_device(value: Any) -> str:
    """Return the word of a device, also for a ``torch.device``. Raise InvalidValue for other values."""
    word = str(value)
    kind, colon, index = word.partition(":")
    if word in DEVICES or (kind == "cuda" and colon and index.isdecimal()):
        return word
    # `gpu` does not mean `cpu`.
    raise InvalidValue("auto, cpu, cuda, cuda:N or emulate", suggest_nearest(word, DEVICES, 0.7))


def parse_dtype(value: Any) -> str:
    """Return the name of an autocast dtype, also for a ``torch.dtype``. Raise InvalidValue for other values."""
    word = str(value).removeprefix("torch.")
    if word not in DTYPES:
        raise InvalidValue("float16 or bfloat16", suggest_nearest(word, tuple(DTYPES)))
    return DTYPES[word]


def _parse_path(value: Any, base: str) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidValue("the path of a file")
    return _resolve_paths((value,), base)[0]


def _parse_folder(value: Any, base: str) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidValue("the path of a folder")
    return _resolve_paths((value,), base)[0]


def _parse_revision(value: Any) -> str:
    if not isinstance(value, str) or not value or value.startswith("-"):
        raise InvalidValue("a revision of git")
    return value


def _parse_requirement(value: Any) -> str:
    from .versions import parse_versions

    versions = parse_versions(value) if isinstance(value, str) else None
    if versions is None:
        raise InvalidValue("versions of amp-check")
    return versions


def _require_bool(value: Any, base: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidValue("true or false")
    return value


def _parse_seconds(value: Any) -> float:
    try:
        number = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not 0 <= number < float("inf"):
        raise InvalidValue("a number of seconds, 0 = no limit")
    return number


def _parse_count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidValue("a whole number from 1")
    return value


def _parse_part(value: Any) -> tuple[int, int]:
    number, slash, count = value.partition("/") if isinstance(value, str) else ("", "", "")
    if not (slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise InvalidValue("a part and the number of parts, such as 1/4")
    return int(number), int(count)


def _parse_file_size(value: Any) -> int:
    from ...protocol.byte_sizes import parse_size

    try:
        return parse_size(int(value) if isinstance(value, str) and value.isdecimal() else value)
    except (ValueError, TypeError):
        raise InvalidValue("a number of bytes or a size such as 20MB, 0 = no limit") from None


WORDS = OptionKind(
    '["AMP2", "missing-scaler-update"]', "args", lambda v, b: split_words(v), lambda v, b: tuple(_require_strings(v))
)
PATTERNS = OptionKind(
    '["third_party", "src/generated/*.py"]',
    "args",
    lambda v, b: _anchor_patterns(split_words(v, ",\n"), b),
    lambda v, b: _anchor_patterns(_require_strings(v), b),
)
PATHS = OptionKind(
    '["src", "train.py"]',
    "paths",
    _resolve_paths,
    lambda v, b: _resolve_paths(_require_strings(v), b),
    separators=os.pathsep,
)
IGNORES = OptionKind('{ "tests/*" = ["AMP201"] }', "linelist", _parse_ignores, _convert_ignores, separators=";\n")
LEVELS = OptionKind('{ AMP201 = "warning" }', "linelist", _parse_severities, _convert_severities)
FORMAT = _make_choice_kind("concise", lambda: tuple(FORMATS))
LEVEL = _make_choice_kind("error", lambda: SEVERITIES)
WHEN = _make_choice_kind("never", lambda: (AUTO, ALWAYS, NEVER))
FLAG = OptionKind("true", "bool", lambda v, b: True, _require_bool)
HALF = _make_choice_kind("static", lambda: (STATIC, RUNTIME))
DEVICE = OptionKind('"emulate"', "string", lambda v, b: parse_device(v[-1]), lambda v, b: parse_device(v))
DTYPE = OptionKind('"bfloat16"', "string", lambda v, b: parse_dtype(v[-1]), lambda v, b: parse_dtype(v))
PATH = OptionKind('"amp-report.html"', "string", lambda v, b: _parse_path(v[-1], b), _parse_path)
COUNT = OptionKind(
    "4", "string", lambda v, b: _parse_count(int(v[-1]) if v[-1].isdecimal() else v[-1]), lambda v, b: _parse_count(v)
)
PART = OptionKind('"1/4"', "string", lambda v, b: _parse_part(v[-1]), lambda v, b: _parse_part(v))
SIZE = OptionKind('"20MB"', "string", lambda v, b: _parse_file_size(v[-1]), lambda v, b: _parse_file_size(v))
SECONDS = OptionKind("60", "string", lambda v, b: _parse_seconds(v[-1]), lambda v, b: _parse_seconds(v))
HELPERS = OptionKind(
    '{ "mylib.finish" = ["unscales", "clips", "steps", "updates", "clears"] }',
    "linelist",
    _parse_helpers,
    _convert_helpers,
    separators=";\n",
)
TYPES = OptionKind(
    '["cuda"]',
    "args",
    lambda v, b: _require_device_types(split_words(v)),
    lambda v, b: _require_device_types(_require_strings(v)),
)
VERSION = OptionKind('"2.4"', "string", lambda v, b: _parse_version(v[-1]), lambda v, b: _parse_version(v))
CONFIGURATION = OptionKind('"../amp-check.toml"', "string", lambda v, b: _parse_path(v[-1], b), _parse_path)
REQUIREMENT = OptionKind(
    '">=0.1,<1"', "string", lambda v, b: _parse_requirement(v[-1]), lambda v, b: _parse_requirement(v)
)
REVISION = OptionKind('"origin/main"', "string", lambda v, b: _parse_revision(v[-1]), lambda v, b: _parse_revision(v))
SOURCES = OptionKind(
    '["amp-check.toml"]', "args", lambda v, b: tuple(v), lambda v, b: tuple(_require_strings(v)), separators="\n"
)
FOLDER = OptionKind('".cache/amp-check"', "string", lambda v, b: _parse_folder(v[-1], b), _parse_folder)


def suggest_nearest(word: str, known: tuple[str, ...], alike: float = 0.6) -> str:
    import difflib

    close = difflib.get_close_matches(word.replace("_", "-").lower(), known, n=1, cutoff=alike)
    return f": did you mean {close[0]!r}?" if close else ""
