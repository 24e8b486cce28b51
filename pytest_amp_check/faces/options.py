"""The one table of options, and how a value is found: command line, pytest's configuration, pyproject.toml, default."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping

from ..protocol.finding import SEVERITIES
from .formats import FORMATS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..static.engine import Settings

TABLE = "[tool.amp-check]"
CONFIGURATION = "pyproject.toml"
CLI, RUN, PYTEST = "cli", "run", "pytest"
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
    """

    __slots__ = ("example", "ini", "toml", "words")

    def __init__(
        self,
        example: str,
        ini: str,
        words: Callable[[list[str], str], Any],
        toml: Callable[[Any, str], Any],
    ) -> None:
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


def _one_of(value: Any, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ValueError(f"one of {', '.join(choices)}")
    return str(value)


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
PATHS = Kind('["src", "train.py"]', "paths", _located, lambda v, b: _located(_strings(v), b))
IGNORES = Kind('{ "tests/*" = ["AMP201"] }', "linelist", _ignores, _ignores_toml)
LEVELS = Kind('{ AMP201 = "warning" }', "linelist", _severities, _severities_toml)
FORMAT = Kind(
    '"concise"', "string", lambda v, b: _one_of(v[-1], tuple(FORMATS)), lambda v, b: _one_of(v, tuple(FORMATS))
)
FLAG = Kind("true", "bool", lambda v, b: True, _truth)
HALF = Kind(
    '"static"', "string", lambda v, b: _one_of(v[-1], (STATIC, RUNTIME)), lambda v, b: _one_of(v, (STATIC, RUNTIME))
)
DEVICE = Kind('"emulate"', "string", lambda v, b: device(v[-1]), lambda v, b: device(v))
DTYPE = Kind('"bfloat16"', "string", lambda v, b: dtype(v[-1]), lambda v, b: dtype(v))
PATH = Kind('"amp-report.html"', "string", lambda v, b: _path(v[-1], b), _path)
COUNT = Kind("4", "string", lambda v, b: _count(int(v[-1]) if v[-1].isdecimal() else v[-1]), lambda v, b: _count(v))
FOLDER = Kind('".cache/amp-check"', "string", lambda v, b: _folder(v[-1], b), _folder)


class Option:
    """One option.

    ``key`` is its name in [tool.amp-check], ``flag`` the flag of amp-check check, ``run_flag`` that of amp-check run
    (the same, unless it says otherwise), ``pytest_flag`` and ``ini`` what pytest has for it.
    """

    __slots__ = ("default", "flag", "help", "ini", "key", "kind", "metavar", "name", "pytest_flag", "run_flag")

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
    ) -> None:
        self.key = key
        self.name = key.replace("-", "_")
        self.kind = kind
        self.default = default
        self.help = help
        self.metavar = metavar
        self.flag = flag
        self.run_flag = flag if run_flag is None else run_flag
        self.pytest_flag = pytest_flag
        self.ini = ini


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
        "per-file-ignores",
        IGNORES,
        {},
        "rules that are off in the files that match a pattern",
        metavar="PATTERN:RULES",
        flag="--per-file-ignores",
        ini="amp_per_file_ignores",
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
        "severity",
        LEVELS,
        {},
        f"severity of rules, other than their own: {', '.join(SEVERITIES)} (info does not fail)",
        metavar="RULE=SEVERITY",
        flag="--severity",
        ini="amp_severity",
    ),
    Option("output-format", FORMAT, "full", "how findings are shown", metavar="FORMAT", flag="--output-format"),
    Option("exit-zero", FLAG, False, "leave with 0 even when something was found", flag="--exit-zero"),
    Option(
        "allow-no-steps",
        FLAG,
        False,
        "leave with 0 from a script in which no training step was recorded, too",
        run_flag="--allow-no-steps",
    ),
    Option("fix", FLAG, False, "make the fixes that are safe, and show what is left", flag="--fix", run_flag=""),
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
        "paths",
        PATHS,
        (),
        "files and folders to check: by amp-check check when it is given none, "
        "by pytest --amp-check besides what pytest collects",
        ini="amp_check_paths",
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


class Options:
    """The value of every option, resolved."""

    select: tuple[str, ...] | None
    ignore: tuple[str, ...]
    per_file_ignores: dict[str, tuple[str, ...]]
    exclude: tuple[str, ...]
    force_exclude: bool
    severity: dict[str, str]
    output_format: str
    exit_zero: bool
    allow_no_steps: bool
    fix: bool
    unsafe_fixes: bool
    show_fixes: bool
    diff: bool
    cache: bool
    cache_dir: str | None
    jobs: int | None
    show_blind_spots: bool
    statistics: bool
    paths: tuple[str, ...]
    only: str | None
    device: str
    dtype: str
    report: str | None
    #: the folder of the pyproject.toml that was found, or nothing
    project: str
    #: option name -> where its value stands, in words
    origin: dict[str, str]


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
    nothing. ``start`` is the file or folder from which pyproject.toml is looked for, upwards.
    """
    path, table = pyproject(start)
    options = Options()
    options.origin = {}
    options.project = os.path.dirname(path)
    doors: dict[str, int] = {}
    for option in OPTIONS:
        given = flags.get(option.name)
        configured = (ini or {}).get(option.name)
        if given is not None:
            where = _flag(option, face)
            value = _from_words(option, given, os.getcwd(), where)
            door = 0
        elif configured is not None:
            where = f"{option.ini} in {ini_file}" if ini_file else option.ini
            value = _from_words(option, configured, ini_base, where)
            door = 1
        elif option.key in table:
            where = f"{option.key} in {TABLE} of {path}"
            try:
                value = option.kind.toml(table[option.key], os.path.dirname(path))
            except ValueError as error:
                raise ConfigError(f"{where} must be {error}, such as {option.kind.example}") from None
            door = 2
        else:
            where, value, door = "the default", option.default, 3
        setattr(options, option.name, value)
        options.origin[option.name] = where
        doors[option.name] = door
    if doors["select"] < doors["ignore"]:
        # A selection given nearer says exactly what is on: a farther ignore must not take from it.
        options.ignore = ()
    return options


def _from_words(option: Option, value: Any, base: str, where: str) -> Any:
    if isinstance(value, bool):
        return value
    words = [value] if isinstance(value, str) else [str(item) for item in value]
    try:
        return option.kind.words(words, base)
    except ValueError as error:
        raise ConfigError(f"{where} must be {error}, not {' '.join(words)!r}") from None


def pyproject(start: str) -> tuple[str, dict[str, Any]]:
    """The nearest pyproject.toml with a table of ours, from ``start`` upwards, and that table."""
    folder = os.path.abspath(start or os.curdir)
    if not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    while True:
        path = os.path.join(folder, CONFIGURATION)
        try:
            with open(path, "rb") as file:
                data = file.read()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            data = b""
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
        # Looked for before tomllib is imported: most projects' files say nothing to us, or name the package alone.
        # The table may be written in several ways.
        if data.count(b"amp-check") > data.count(b"pytest-amp-check"):
            table = _table(path, data)
            if table is not None:
                return path, table
        for wrong in (b"[tool.amp_check", b"[tool.ampcheck", b"[tool.pytest-amp-check", b"[tool.pytest_amp_check"):
            if wrong in data:
                raise ConfigError(f"{path} has a table {wrong.decode()}]: amp-check reads {TABLE}")
        parent = os.path.dirname(folder)
        if parent == folder:
            return "", {}
        folder = parent


def _table(path: str, data: bytes) -> dict[str, Any] | None:
    import sys

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        whole = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    tool = whole.get("tool")
    table = tool.get("amp-check") if isinstance(tool, dict) else None
    if table is None:
        return None  # The bytes stood in a comment or a string.
    if not isinstance(table, dict):
        raise ConfigError(f"{TABLE} of {path} must be a table")
    keys = tuple(option.key for option in OPTIONS)
    for key in table:
        if key not in keys:
            hint = nearest(key, keys) or f": it has {', '.join(keys)}"
            raise ConfigError(f"unknown key {key!r} in {TABLE} of {path}{hint}")
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
        setting = "ignore"
        selected = in_runs(options.select, options.ignore, RULES)
        if options.show_blind_spots or (options.statistics and options.select is None):
            selected |= {SPOTS}
        setting = "per_file_ignores"
        ignores = tuple(
            (pattern, frozenset[str]().union(*(expand(word, RULES)[0] for word in words)))
            for pattern, words in options.per_file_ignores.items()
        )
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
    return Settings(selected, ignores, severity, options.exclude, force_exclude=options.force_exclude)


def nearer(options: Options, own: Settings, resolved: Callable[[str], Options]) -> Callable[[str], Settings | None]:
    """What finds the settings of a folder that has a configuration of its own: the nearest one to a file holds for it.

    ``options`` and ``own`` are those that are known already, ``resolved`` resolves those that hold in a folder.
    """
    known = {os.path.realpath(options.project): own} if options.project else {}

    def at(folder: str) -> Settings | None:
        if folder not in known and os.path.isfile(os.path.join(folder, CONFIGURATION)):
            found = resolved(folder)
            if found.project and os.path.realpath(found.project) == folder:
                known[folder] = settings(found)
        return known.get(folder)

    return at


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
        if option.kind is FLAG:
            add(flag, action="store_true", **more)
            add(flag.replace("--", "--no-", 1), action="store_false", **{**more, "help": f"not {flag}"})
        elif option.kind is FORMAT:
            add(flag, choices=tuple(FORMATS), **more)
        else:
            add(flag, action="append", metavar=option.metavar, **more)


def _flag(option: Option, face: str) -> str:
    return {CLI: option.flag, RUN: option.run_flag, PYTEST: option.pytest_flag}[face]


def destination(option: Option, face: str) -> str:
    return f"amp_{option.name}" if face == PYTEST else option.name


def flags(namespace: Any, face: str) -> dict[str, Any]:
    """What the command line says: option name -> value, None where it says nothing."""
    return {option.name: getattr(namespace, destination(option, face), None) for option in OPTIONS}
