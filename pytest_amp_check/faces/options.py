"""The one table of options, and how a value is found.

From the nearest place that says it: the command line, ``--config KEY=VALUE``, an environment variable, pytest's
configuration, the configuration file, the default. What extends another option is taken from all of them together.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping

from ..protocol.finding import SEVERITIES, WARNING
from ..protocol.surface import AUTOCAST_DEVICES
from ..protocol.wrappers import DOES
from .formats import FORMATS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..static.engine import Settings

TABLE = "[tool.amp-check]"
CLI, RUN, PYTEST = "cli", "run", "pytest"
#: Configuration files, of which the first that a folder has counts; all but the last hold nothing but our own keys.
FILES = (".amp-check.toml", "amp-check.toml", "pyproject.toml")
#: What the name of an environment variable begins with; the name of its option follows.
VARIABLE = "AMP_CHECK_"
#: The variable that is no option: it shows where an internal error comes from.
DEBUG = "AMP_CHECK_DEBUG"
TRUTHS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
#: When there is colour.
AUTO, ALWAYS, NEVER = "auto", "always", "never"
#: Where what was found is kept.
CACHE = ".amp_check_cache"
#: The two halves of --amp-check.
STATIC, RUNTIME = "static", "runtime"
DEVICES = "auto, cpu, cuda, cuda:N or emulate"
DTYPES = {"float16": "float16", "bfloat16": "bfloat16", "fp16": "float16", "bf16": "bfloat16", "half": "float16"}


class ConfigError(ValueError):
    """A setting that cannot be used. The message is one sentence that says where it stands and what would do."""


class Kind:
    """What an option's values are, and how they are read from words and from TOML.

    ``words`` reads what a command line or an ini file holds (a list of strings), ``toml`` what pyproject.toml holds;
    both raise ValueError with what was expected. ``base`` is the directory that relative paths start from.
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
        raise ValueError("a list of strings")
    return value


def _split(entries: Iterable[str], separators: str = ", \t\n") -> tuple[str, ...]:
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
        if not colon or not pattern.strip() or not _split([codes]):
            raise ValueError("PATTERN:CODES")
        key = _anchor(pattern.strip(), base)
        found[key] = found.get(key, ()) + _split([codes])
    return found


def _ignores_toml(value: Any, base: str) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, dict):
        raise ValueError("a table of patterns, each with a list of rules")
    found: dict[str, tuple[str, ...]] = {}
    for pattern, codes in value.items():
        try:
            found[_anchor(pattern, base)] = tuple(_strings(codes))
        except ValueError:
            raise ValueError(f"a table of patterns, each with a list of rules (see {pattern!r})") from None
    return found


def _severities(entries: Iterable[str], base: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in _split(entries, ",\n"):
        word, equals, severity = entry.replace(":", "=").partition("=")
        if not equals:
            raise ValueError("RULE=SEVERITY")
        found[word.strip()] = _one_of(severity.strip(), SEVERITIES)
    return found


def _severities_toml(value: Any, base: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError("a table of rules, each with a severity")
    return {word: _one_of(severity, SEVERITIES) for word, severity in value.items()}


def _helpers(entries: Iterable[str], base: str) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for entry in entries:
        name, colon, events = entry.partition(":")
        if not colon or not name.strip():
            raise ValueError("NAME:EVENTS")
        found[name.strip()] = _events(_split([events]))
    return found


def _helpers_toml(value: Any, base: str) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, dict):
        raise ValueError("a table of dotted names, each with a list of events")
    return {name: _events(_strings(events)) for name, events in value.items()}


def _events(words: Iterable[str]) -> tuple[str, ...]:
    for word in words:
        if word not in DOES:
            raise ValueError(f"events out of {', '.join(DOES)}{nearest(word, DOES)}")
    return tuple(words)


def _device_types(words: Iterable[str]) -> tuple[str, ...]:
    known = tuple(sorted(AUTOCAST_DEVICES))
    for word in words:
        if word not in known:
            raise ValueError(f"types of devices, out of {', '.join(known)}{nearest(word, known)}")
    return tuple(words)


def _version(value: Any) -> tuple[int, int]:
    import re

    parts = re.match(r"(\d+)\.(\d+)(?:[.+].*)?$", value) if isinstance(value, str) else None
    if parts is None:
        raise ValueError("a version of torch")
    return int(parts[1]), int(parts[2])


def _one_of(value: Any, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ValueError(f"one of {', '.join(choices)}")
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
    if word in ("auto", "cpu", "cuda", "emulate") or (kind == "cuda" and colon and index.isdecimal()):
        return word
    raise ValueError(DEVICES)


def dtype(value: Any) -> str:
    """The name of a dtype that autocast can have. It may be given as a ``torch.dtype`` too."""
    word = str(value).removeprefix("torch.")
    if word not in DTYPES:
        raise ValueError("float16 or bfloat16")
    return DTYPES[word]


def _path(value: Any, base: str) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("the path of a file")
    return _located((value,), base)[0]


def _folder(value: Any, base: str) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("the path of a folder")
    return _located((value,), base)[0]


def _word(value: Any) -> str:
    if not isinstance(value, str) or not value or value.startswith("-"):
        raise ValueError("a revision of git")
    return value


def _truth(value: Any, base: str) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("a whole number from 1")
    return value


WORDS = Kind('["AMP2", "missing-scaler-update"]', "args", lambda v, b: _split(v), lambda v, b: tuple(_strings(v)))
PATTERNS = Kind(
    '["third_party", "src/generated/*.py"]',
    "args",
    lambda v, b: _anchored(_split(v, ",\n"), b),
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
HELPERS = Kind(
    '{ "mylib.finish" = ["unscales", "clips", "steps", "updates", "clears"] }',
    "linelist",
    _helpers,
    _helpers_toml,
    separators=";\n",
)
TYPES = Kind('["cuda"]', "args", lambda v, b: _device_types(_split(v)), lambda v, b: _device_types(_strings(v)))
VERSION = Kind('"2.4"', "string", lambda v, b: _version(v[-1]), lambda v, b: _version(v))
REVISION = Kind('"origin/main"', "string", lambda v, b: _word(v[-1]), lambda v, b: _word(v))
SOURCES = Kind('["amp-check.toml"]', "args", lambda v, b: tuple(v), lambda v, b: tuple(_strings(v)), separators="\n")
FOLDER = Kind('".cache/amp-check"', "string", lambda v, b: _folder(v[-1], b), _folder)


class Option:
    """One option.

    ``key`` is its name in [tool.amp-check], ``flag`` the flag of amp-check check, ``run_flag`` that of amp-check run
    (the same, unless it says otherwise), ``pytest_flag`` and ``ini`` what pytest has for it. ``short`` is a second flag
    of one letter, ``off`` one that takes it back. ``file`` says whether a configuration file may set it, ``extends``
    that what all places say of it counts together.
    """

    __slots__ = (
        "default",
        "extends",
        "file",
        "flag",
        "help",
        "ini",
        "key",
        "kind",
        "metavar",
        "name",
        "off",
        "pytest_flag",
        "run_flag",
        "short",
        "variable",
    )

    def __init__(
        self,
        key: str,
        kind: Kind,
        default: Any,
        help: str,
        *,
        metavar: str = "",
        flag: str = "",
        run_flag: str | None = None,
        pytest_flag: str = "",
        ini: str = "",
        short: str = "",
        off: str = "",
        file: bool = True,
        extends: bool = False,
    ) -> None:
        self.key = key
        self.name = key.replace("-", "_")
        self.variable = VARIABLE + self.name.upper()
        self.kind = kind
        self.default = default
        self.help = help
        self.metavar = metavar
        self.flag = flag
        self.run_flag = flag if run_flag is None else run_flag
        self.pytest_flag = pytest_flag
        self.ini = ini
        self.short = short
        self.off = off
        self.file = file
        self.extends = extends


OPTIONS = (
    Option(
        "select",
        WORDS,
        None,
        "rules that are on, instead of the default ones: codes, prefixes, names or ALL",
        metavar="RULES",
        flag="--select",
        pytest_flag="--amp-select",
        ini="amp_select",
    ),
    Option(
        "ignore",
        WORDS,
        (),
        "rules that are off: codes, prefixes or names",
        metavar="RULES",
        flag="--ignore",
        pytest_flag="--amp-ignore",
        ini="amp_ignore",
    ),
    Option(
        "extend-select",
        WORDS,
        (),
        "rules that are on besides those that are selected",
        metavar="RULES",
        flag="--extend-select",
        pytest_flag="--amp-extend-select",
        ini="amp_extend_select",
        extends=True,
    ),
    Option(
        "per-file-ignores",
        IGNORES,
        {},
        "rules that are off in the files that match a pattern",
        metavar="PATTERN:RULES",
        flag="--per-file-ignores",
        ini="amp_per_file_ignores",
    ),
    Option(
        "extend-per-file-ignores",
        IGNORES,
        {},
        "rules that are off in the files that match a pattern, besides those of per-file-ignores",
        metavar="PATTERN:RULES",
        flag="--extend-per-file-ignores",
        ini="amp_extend_per_file_ignores",
        extends=True,
    ),
    Option(
        "exclude",
        PATTERNS,
        (),
        "files and folders that are not looked at when a folder is read",
        metavar="PATTERNS",
        flag="--exclude",
        run_flag="",
        ini="amp_exclude",
    ),
    Option(
        "force-exclude",
        FLAG,
        False,
        "leave out what exclude matches even where it is named, as pre-commit names files",
        flag="--force-exclude",
        run_flag="",
    ),
    Option(
        "extend-exclude",
        PATTERNS,
        (),
        "files and folders that are not looked at when a folder is read, besides those that are excluded",
        metavar="PATTERNS",
        flag="--extend-exclude",
        run_flag="",
        ini="amp_extend_exclude",
        extends=True,
    ),
    Option(
        "respect-gitignore",
        FLAG,
        True,
        "leave out what git ignores when a folder is read (off: --no-respect-gitignore)",
        flag="--respect-gitignore",
        run_flag="",
        ini="amp_respect_gitignore",
    ),
    Option(
        "ignore-noqa",
        FLAG,
        False,
        "show also what comments silence (# amp: ignore, # noqa)",
        flag="--ignore-noqa",
        ini="amp_ignore_noqa",
    ),
    Option(
        "severity",
        LEVELS,
        {},
        f"severity of rules, other than their own: {', '.join(SEVERITIES)} (info does not fail)",
        metavar="RULE=SEVERITY",
        flag="--severity",
        ini="amp_severity",
    ),
    Option(
        "fail-level",
        LEVEL,
        WARNING,
        "the mildest severity that fails: error, warning or info",
        metavar="SEVERITY",
        flag="--fail-level",
        pytest_flag="--amp-fail-level",
        ini="amp_fail_level",
    ),
    Option("output-format", FORMAT, "full", "how findings are shown", metavar="FORMAT", flag="--output-format"),
    Option(
        "output-file",
        PATH,
        None,
        "file that findings are written to, instead of standard output",
        metavar="FILE",
        flag="--output-file",
        short="-o",
        file=False,
    ),
    Option("exit-zero", FLAG, False, "leave with 0 even when something was found", flag="--exit-zero", short="-e"),
    Option(
        "exit-non-zero-on-fix",
        FLAG,
        False,
        "leave with 1 where --fix has changed a file, even if nothing is left",
        flag="--exit-non-zero-on-fix",
        run_flag="",
    ),
    Option(
        "allow-no-steps",
        FLAG,
        False,
        "leave with 0 from a script in which no training step was recorded, too",
        run_flag="--allow-no-steps",
    ),
    Option("fix", FLAG, False, "make the fixes that are safe, and show what is left", flag="--fix", run_flag=""),
    Option(
        "fix-only",
        FLAG,
        False,
        "make fixes as --fix does, and neither show nor fail for what is left",
        flag="--fix-only",
        run_flag="",
    ),
    Option(
        "fixable",
        WORDS,
        None,
        "rules whose findings may be fixed, instead of all that have a fix",
        metavar="RULES",
        flag="--fixable",
        run_flag="",
    ),
    Option(
        "extend-fixable",
        WORDS,
        (),
        "rules whose findings may be fixed besides those that are fixable",
        metavar="RULES",
        flag="--extend-fixable",
        run_flag="",
        extends=True,
    ),
    Option(
        "unfixable",
        WORDS,
        (),
        "rules whose findings are not fixed",
        metavar="RULES",
        flag="--unfixable",
        run_flag="",
    ),
    Option(
        "unsafe-fixes",
        FLAG,
        False,
        "count, show and make also fixes that change what may have been tuned around",
        flag="--unsafe-fixes",
        run_flag="",
    ),
    Option(
        "show-fixes",
        FLAG,
        False,
        "list the fixes that were made, by file and rule, on standard error",
        flag="--show-fixes",
        run_flag="",
    ),
    Option(
        "add-ignores",
        FLAG,
        False,
        "write a comment that silences it behind everything that was found, and show nothing",
        flag="--add-ignores",
        run_flag="",
        file=False,
    ),
    Option(
        "baseline",
        PATH,
        None,
        "file of known findings, which are neither shown nor counted",
        metavar="FILE",
        flag="--baseline",
        run_flag="",
        pytest_flag="--amp-baseline",
        ini="amp_baseline",
    ),
    Option(
        "update-baseline",
        FLAG,
        False,
        "write that file where there is none, and take out of it what is not found any more",
        flag="--update-baseline",
        run_flag="",
        file=False,
    ),
    Option(
        "diff-base",
        REVISION,
        None,
        "show only what was not found at a revision of git, where this work tree and it parted",
        metavar="REV",
        flag="--diff-base",
        run_flag="",
        file=False,
    ),
    Option(
        "diff",
        FLAG,
        False,
        "show what --fix would change, and change nothing; leave with 1 if that is anything",
        flag="--diff",
        run_flag="",
    ),
    Option(
        "cache",
        FLAG,
        True,
        "remember what was found below folders, so that what did not change is not read again (off: --no-cache)",
        flag="--cache",
        run_flag="",
        off="-n",
    ),
    Option(
        "cache-dir",
        FOLDER,
        None,
        f"folder of the cache, instead of {CACHE} beside the pyproject.toml with the settings, or else in the current "
        "folder (with pytest, in the root folder)",
        metavar="FOLDER",
        flag="--cache-dir",
        run_flag="",
    ),
    Option(
        "jobs",
        COUNT,
        None,
        "processes that read a large tree, instead of one for each processor",
        metavar="N",
        flag="--jobs",
        run_flag="",
    ),
    Option(
        "show-blind-spots",
        FLAG,
        False,
        "list the calls of the protocol that could not be judged, too (AMP904)",
        flag="--show-blind-spots",
        run_flag="",
    ),
    Option("statistics", FLAG, False, "count the findings of each rule instead of showing them", flag="--statistics"),
    Option(
        "show-files",
        FLAG,
        False,
        "list the files that would be checked, and check none",
        flag="--show-files",
        run_flag="",
        file=False,
    ),
    Option(
        "show-settings",
        FLAG,
        False,
        "list every option with its value and where that comes from, and check nothing",
        flag="--show-settings",
        run_flag="",
        file=False,
    ),
    Option(
        "watch",
        FLAG,
        False,
        "check again whenever a file changes, until Ctrl-C",
        flag="--watch",
        run_flag="",
        short="-w",
        file=False,
    ),
    Option("quiet", FLAG, False, "show findings and nothing else", flag="--quiet", short="-q", file=False),
    Option("silent", FLAG, False, "show nothing: the exit code tells", flag="--silent", short="-s", file=False),
    Option(
        "verbose",
        FLAG,
        False,
        "say on standard error which functions were read on their own, and what each led to",
        flag="--verbose",
        run_flag="",
        short="-v",
        file=False,
    ),
    Option(
        "color",
        WHEN,
        AUTO,
        "when there is colour: auto asks NO_COLOR, FORCE_COLOR and the terminal",
        metavar="WHEN",
        flag="--color",
        file=False,
    ),
    Option(
        "config",
        SOURCES,
        (),
        "a configuration file instead of the nearest one, or KEY=VALUE in TOML, which counts for more than any file",
        metavar="FILE|KEY=VALUE",
        flag="--config",
        file=False,
    ),
    Option("isolated", FLAG, False, "read no configuration file", flag="--isolated", file=False),
    Option(
        "paths",
        PATHS,
        (),
        "files and folders to check: by amp-check check when it is given none, "
        "by pytest --amp-check besides what pytest collects",
        ini="amp_check_paths",
    ),
    Option(
        "helpers",
        HELPERS,
        {},
        "functions that cannot be read, by their dotted names, and what each does to the scaler, optimizer, loss and "
        f"parameters that it is given, in that order: {', '.join(DOES)}",
        metavar="NAME:EVENTS",
        flag="--helpers",
        run_flag="",
        ini="amp_helpers",
    ),
    Option(
        "torch-version",
        VERSION,
        None,
        "oldest torch in use, for what depends on it, instead of the one that the project's own files ask for",
        metavar="VERSION",
        flag="--torch-version",
        run_flag="",
        ini="amp_torch_version",
    ),
    Option(
        "devices",
        TYPES,
        (),
        "types of devices that the code runs on, for what depends on them where the code leaves them open",
        metavar="TYPES",
        flag="--devices",
        run_flag="",
        ini="amp_devices",
    ),
    Option(
        "only",
        HALF,
        None,
        "one half of --amp-check: static reads source, runtime records the tests",
        metavar="static|runtime",
        pytest_flag="--amp-only",
        ini="amp_only",
    ),
    Option(
        "device",
        DEVICE,
        "auto",
        "device of the fixture amp: auto is CUDA where there is one, else the CPU with CUDA's dtypes (emulate); "
        "for amp-check run auto changes nothing, emulate does the same and cpu hides the GPUs",
        metavar="auto|cpu|cuda|cuda:N|emulate",
        run_flag="--device",
        pytest_flag="--amp-device",
        ini="amp_device",
    ),
    Option(
        "dtype",
        DTYPE,
        "float16",
        "autocast dtype of the fixture amp, where a test does not say it: float16 or bfloat16",
        metavar="DTYPE",
        pytest_flag="--amp-dtype",
        ini="amp_dtype",
    ),
    Option(
        "report",
        PATH,
        None,
        "HTML file for what recorded tests or scripts look like: loss scale, gradients, memory, dtypes, findings",
        metavar="FILE",
        run_flag="--report",
        pytest_flag="--amp-report",
        ini="amp_report",
    ),
)
_BY_KEY = {option.key: option for option in OPTIONS}


class Options:
    """The value of every option, resolved."""

    select: tuple[str, ...] | None
    ignore: tuple[str, ...]
    extend_select: tuple[str, ...]
    per_file_ignores: dict[str, tuple[str, ...]]
    extend_per_file_ignores: dict[str, tuple[str, ...]]
    exclude: tuple[str, ...]
    force_exclude: bool
    extend_exclude: tuple[str, ...]
    respect_gitignore: bool
    ignore_noqa: bool
    severity: dict[str, str]
    fail_level: str
    output_format: str
    output_file: str | None
    exit_zero: bool
    exit_non_zero_on_fix: bool
    allow_no_steps: bool
    fix: bool
    fix_only: bool
    fixable: tuple[str, ...] | None
    extend_fixable: tuple[str, ...]
    unfixable: tuple[str, ...]
    unsafe_fixes: bool
    show_fixes: bool
    add_ignores: bool
    baseline: str | None
    update_baseline: bool
    diff_base: str | None
    diff: bool
    cache: bool
    cache_dir: str | None
    jobs: int | None
    show_blind_spots: bool
    statistics: bool
    show_files: bool
    show_settings: bool
    watch: bool
    quiet: bool
    silent: bool
    verbose: bool
    color: str
    config: tuple[str, ...]
    isolated: bool
    paths: tuple[str, ...]
    helpers: dict[str, tuple[str, ...]]
    torch_version: tuple[int, int] | None
    devices: tuple[str, ...]
    only: str | None
    device: str
    dtype: str
    report: str | None
    #: the folder of the configuration file that was found, or nothing
    project: str
    #: words of extend_select from a nearer place than ignore, which does not take them back
    insisted: tuple[str, ...]
    #: option name -> where its value stands, in words
    origin: dict[str, str]


class _Said:
    """What one place says of an option: the value, where that stands in words, and the number of the place."""

    __slots__ = ("door", "value", "where")

    def __init__(self, where: str, value: Any, door: int = 0) -> None:
        self.where = where
        self.value = value
        self.door = door


#: One of the places where options may be set.
Place = Callable[["Option"], "_Said | None"]


def resolve(
    flags: Mapping[str, Any],
    *,
    start: str,
    ini: Mapping[str, Any] | None = None,
    ini_base: str = "",
    ini_file: str = "",
    face: str = CLI,
) -> Options:
    """Every option from the nearest place that sets it.

    ``flags`` and ``ini`` map option names to what the command line and pytest's configuration hold, None where they say
    nothing. ``start`` is the file or folder from which a configuration file is looked for, upwards.
    """
    options = Options()
    options.origin = {}
    _refuse_unknown_variables()

    def on_command_line(option: Option) -> _Said | None:
        return _from_strings(option, flags.get(option.name), os.getcwd(), _flag(option, face))

    def in_pytest(option: Option) -> _Said | None:
        where = f"{option.ini} in {ini_file}" if ini_file else option.ini
        return _from_strings(option, (ini or {}).get(option.name), ini_base, where)

    # Which file is read is asked first.
    config, isolated = (
        _said(_BY_KEY[key], [on_command_line, _from_variable])[0].value for key in ("config", "isolated")
    )
    path, table, overrides = _configuration(config, start, isolated=isolated)
    options.project = os.path.dirname(path)
    places: list[Place] = [
        on_command_line,
        lambda option: _from_table(option, overrides, os.getcwd(), f"--config {option.key}"),
        _from_variable,
        in_pytest,
        lambda option: _from_table(option, table, options.project, f"{option.key} in {_named(path)}"),
    ]
    said = {option.name: _said(option, places) for option in OPTIONS}
    for option in OPTIONS:
        found = said[option.name]
        value = _together([each.value for each in found], option.default) if option.extends else found[0].value
        setattr(options, option.name, value)
        options.origin[option.name] = " and ".join(each.where for each in found)
    select, ignore = said["select"][0].door, said["ignore"][0].door
    options.insisted = _together([each.value for each in said["extend_select"] if each.door < ignore], ())
    if select < ignore:
        # A selection given nearer says exactly what is on: a farther ignore must not take from it.
        options.ignore = ()
    return options


def _said(option: Option, places: list[Place]) -> list[_Said]:
    """What the nearest place says of an option; of one that extends another, what every place does."""
    found: list[_Said] = []
    for door, place in enumerate(places):
        each = place(option)
        if each is not None:
            each.door = door
            found.append(each)
            if not option.extends:
                break
    return found or [_Said("the default", option.default, len(places))]


def _together(values: list[Any], nothing: Any) -> Any:
    """Values of several places as one: lists one behind the other, tables with what each key is given."""
    if not isinstance(nothing, dict):
        return tuple(item for value in values for item in value)
    found: dict[str, tuple[str, ...]] = {}
    for value in values:
        for key, items in value.items():
            found[key] = found.get(key, ()) + items
    return found


def _refuse_unknown_variables() -> None:
    """Refuses the name of a variable that is nearly that of an option: it would be left unread in silence."""
    known = {option.variable for option in OPTIONS} | {DEBUG}
    for name in sorted(os.environ):
        if name.startswith(VARIABLE) and name not in known:
            import difflib

            ends = [each.removeprefix(VARIABLE) for each in sorted(known)]
            close = difflib.get_close_matches(name.removeprefix(VARIABLE).upper(), ends, n=1, cutoff=0.65)
            if close:
                raise ConfigError(f"unknown variable {name}: did you mean {VARIABLE}{close[0]}?")


def _from_variable(option: Option) -> _Said | None:
    text = os.environ.get(option.variable)
    if text is None:
        return None
    where = f"the variable {option.variable}"
    if option.kind is FLAG:
        if text.lower() not in TRUTHS:
            raise ConfigError(f"{where} must be one of {', '.join(TRUTHS)}, not {text!r}")
        return _Said(where, TRUTHS[text.lower()])
    words = _split([text], option.kind.separators) if option.kind.separators else (text,)
    return _Said(where, _from_words(option, list(words), os.getcwd(), where))


def _from_strings(option: Option, value: Any, base: str, where: str) -> _Said | None:
    return None if value is None else _Said(where, _from_words(option, value, base, where))


def _from_table(option: Option, table: Mapping[str, Any], base: str, where: str) -> _Said | None:
    if option.key not in table:
        return None
    try:
        return _Said(where, option.kind.toml(table[option.key], base))
    except ValueError as error:
        raise ConfigError(f"{where} must be {error}, such as {option.kind.example}") from None


def _from_words(option: Option, value: Any, base: str, where: str) -> Any:
    if isinstance(value, bool):
        return value
    words = [value] if isinstance(value, str) else [str(item) for item in value]
    try:
        return option.kind.words(words, base)
    except ValueError as error:
        raise ConfigError(f"{where} must be {error}, not {' '.join(words)!r}") from None


def _configuration(given: tuple[str, ...], start: str, *, isolated: bool) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The path of the configuration file that counts, what it says, and what ``--config KEY=VALUE`` says."""
    overrides: dict[str, Any] = {}
    files: list[str] = []
    for text in given:
        if os.path.isfile(text) or (text.endswith(".toml") and "=" not in text):
            files.append(text)
        elif "=" in text:
            overrides.update(_known(_toml(text, f"--config {text}"), "--config"))
        else:
            raise ConfigError(f"--config must be the path of a TOML file or KEY=VALUE, not {text!r}")
    if len(files) > 1:
        raise ConfigError(f"--config names {' and '.join(files)}: one file can be given")
    if files and isolated:
        raise ConfigError(f"--config names {files[0]}, and --isolated reads no file: leave one of the two out")
    if not files:
        return (*(("", {}) if isolated else pyproject(start)), overrides)
    path = os.path.abspath(files[0])
    table = _read_table(path)
    if table is None:
        raise ConfigError(f"{path} has no table {TABLE}" if os.path.isfile(path) else f"{path} does not exist")
    return path, table, overrides


def pyproject(start: str) -> tuple[str, dict[str, Any]]:
    """The nearest configuration file, from ``start`` upwards, and what it says.

    That is a pyproject.toml with a table of ours, or a file of our own, which comes before one beside it.
    """
    folder = os.path.abspath(start or os.curdir)
    if not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    while True:
        for name in FILES:
            path = os.path.join(folder, name)
            table = _read_table(path)
            if table is not None:
                return path, table
        parent = os.path.dirname(folder)
        if parent == folder:
            return "", {}
        folder = parent


def _read_table(path: str) -> dict[str, Any] | None:
    """What a configuration file says to us, None where it is not there or says nothing."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    if os.path.basename(path) != FILES[-1]:
        return _known(_toml(data, path), path)
    # Looked for before tomllib is imported: most projects' files say nothing to us, or name the package alone.
    # The table may be written in several ways.
    if data.count(b"amp-check") > data.count(b"pytest-amp-check"):
        tool = _toml(data, path).get("tool")
        table = tool.get("amp-check") if isinstance(tool, dict) else None
        # None: the bytes stood in a comment or a string.
        if table is not None:
            return _known(table, path)
    for wrong in (b"[tool.amp_check", b"[tool.ampcheck", b"[tool.pytest-amp-check", b"[tool.pytest_amp_check"):
        if wrong in data:
            raise ConfigError(f"{path} has a table {wrong.decode()}]: amp-check reads {TABLE}")
    return None


def _named(path: str) -> str:
    """A configuration file as sentences name it: by its table, where it has others."""
    return f"{TABLE} of {path}" if os.path.basename(path) == FILES[-1] else path


def _toml(data: bytes | str, where: str) -> dict[str, Any]:
    import sys

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        found: dict[str, Any] = tomllib.loads(data.decode() if isinstance(data, bytes) else data)
    except ValueError as error:  # and not its own kind alone: no TOML, no UTF-8, a number of 5,000 digits
        raise ConfigError(f"{where} is not valid TOML: {error}") from None
    return found


def _known(table: Any, path: str) -> dict[str, Any]:
    """What was set, if options of that name can be set in a file."""
    if not isinstance(table, dict):
        raise ConfigError(f"{_named(path)} must be a table")
    keys = tuple(option.key for option in OPTIONS if option.file)
    for key in table:
        if key in keys:
            continue
        option = _BY_KEY.get(key)
        if option is not None:
            raise ConfigError(f"{key} in {_named(path)} is no setting of a file: give {option.flag}")
        if key == "tool":
            raise ConfigError(f"unknown key 'tool' in {path}: it holds the keys alone, without {TABLE}")
        hint = nearest(key, keys) or f": it has {', '.join(keys)}"
        raise ConfigError(f"unknown key {key!r} in {_named(path)}{hint}")
    return table


def nearest(word: str, known: tuple[str, ...]) -> str:
    import difflib

    close = difflib.get_close_matches(word.replace("_", "-").lower(), known, n=1)
    return f": did you mean {close[0]!r}?" if close else ""


def settings(options: Options) -> Settings:
    """What the engine is told, words turned into codes."""
    from ..protocol.rules import RULES
    from ..protocol.selection import UnknownRule, expand, in_runs
    from ..protocol.selection import resolve as resolve_rules
    from ..static.engine import SPOTS, Settings

    setting = "select"
    try:
        if options.select is not None:
            resolve_rules(options.select, (), RULES)
        setting = "extend_select"
        resolve_rules(options.extend_select, (), RULES)
        setting = "ignore"
        selected = in_runs(options.select, options.ignore, RULES, options.extend_select)
        selected |= resolve_rules(options.insisted, (), RULES)
        if options.show_blind_spots or (options.statistics and options.select is None):
            selected |= {SPOTS}
        ignores: list[tuple[str, frozenset[str]]] = []
        for setting in ("per_file_ignores", "extend_per_file_ignores"):
            for pattern, words in getattr(options, setting).items():
                ignores.append((pattern, frozenset[str]().union(*(expand(word, RULES)[0] for word in words))))
        setting = "severity"
        severity: dict[str, str] = {}
        widths: dict[str, int] = {}
        for word, level in options.severity.items():
            codes, width = expand(word, RULES)
            for code in codes:
                if width >= widths.get(code, 0):
                    severity[code], widths[code] = level, width
    except UnknownRule as error:
        raise ConfigError(f"{options.origin[setting]}: {error}") from None
    return Settings(
        select=selected,
        per_file_ignores=tuple(ignores),
        severity=severity,
        exclude=options.exclude + options.extend_exclude,
        force_exclude=options.force_exclude,
        gitignore=options.respect_gitignore,
        suppress=not options.ignore_noqa,
        helpers=options.helpers,
        torch=options.torch_version,
        devices=options.devices,
    )


def nearer(options: Options, own: Settings, resolved: Callable[[str], Options]) -> Callable[[str], Settings | None]:
    """What finds the settings of a folder that has a configuration of its own: the nearest one to a file holds for it.

    ``options`` and ``own`` are those that are known already, ``resolved`` resolves those that hold in a folder.
    """
    known = {os.path.realpath(options.project): own} if options.project else {}

    def at(folder: str) -> Settings | None:
        if folder not in known and any(os.path.isfile(os.path.join(folder, name)) for name in FILES):
            found = resolved(folder)
            if found.project and os.path.realpath(found.project) == folder:
                known[folder] = settings(found)
        return known.get(folder)

    return at


def fixable(options: Options) -> frozenset[str]:
    """The codes of the rules whose findings may be fixed."""
    from ..protocol.rules import RULES
    from ..protocol.selection import ALL, UnknownRule
    from ..protocol.selection import resolve as resolve_rules

    setting = "fixable"
    try:
        resolve_rules(options.fixable, (), RULES)
        setting = "extend_fixable"
        resolve_rules(options.extend_fixable, (), RULES)
        setting = "unfixable"
        # The narrower word wins, as among select and ignore.
        words = (ALL,) if options.fixable is None else options.fixable
        return resolve_rules((*words, *options.extend_fixable), options.unfixable, RULES)
    except UnknownRule as error:
        raise ConfigError(f"{options.origin[setting]}: {error}") from None


def fails(options: Options, severity: str) -> bool:
    """Whether a finding of this severity fails a check."""
    return SEVERITIES.index(severity) <= SEVERITIES.index(options.fail_level)


def cache(options: Options, base: str = os.curdir) -> str | None:
    """The folder of the cache, if there is to be one; ``base`` is the project's where no pyproject.toml says so."""
    if not options.cache:
        return None
    return options.cache_dir or os.path.join(options.project or base, CACHE)


def add_flags(add: Callable[..., Any], face: str) -> None:
    """Declares the flags of a face: ``add`` is ``add_argument`` of argparse or ``addoption`` of pytest."""
    for option in OPTIONS:
        flag = _flag(option, face)
        if not flag:
            continue
        # None until resolved: a default here would hide what the configuration says.
        more: dict[str, Any] = {"dest": destination(option, face), "default": None, "help": option.help}
        # Pytest keeps flags of one letter to itself.
        names = [flag, option.short] if option.short and face != PYTEST else [flag]
        if option.kind is FLAG:
            off = [name for name in (flag.replace("--", "--no-", 1), option.off) if name]
            add(*names, action="store_true", **more)
            add(*off, action="store_false", **{**more, "help": f"not {flag}"})
        elif option.kind.choices is not None and face != PYTEST:
            add(*names, choices=option.kind.choices(), metavar=option.metavar, **more)
        else:
            add(*names, action="append", metavar=option.metavar, **more)


def _flag(option: Option, face: str) -> str:
    return {CLI: option.flag, RUN: option.run_flag, PYTEST: option.pytest_flag}[face]


def destination(option: Option, face: str) -> str:
    return f"amp_{option.name}" if face == PYTEST else option.name


def flags(namespace: Any, face: str) -> dict[str, Any]:
    """What the command line says: option name -> value, None where it says nothing."""
    return {option.name: getattr(namespace, destination(option, face), None) for option in OPTIONS}
