"""The option table."""

from __future__ import annotations

from ...protocol.byte_sizes import LARGEST_FILE
from ...protocol.declared_wrappers import DOES
from ...protocol.finding import SEVERITIES, WARNING
from .kinds import (
    AUTO,
    COUNT,
    DEVICE,
    DTYPE,
    FLAG,
    FOLDER,
    FORMAT,
    HALF,
    HELPERS,
    IGNORES,
    LEVEL,
    LEVELS,
    PATH,
    PATHS,
    PATTERNS,
    REVISION,
    SECONDS,
    SIZE,
    SOURCES,
    TYPES,
    VERSION,
    WHEN,
    WORDS,
    OptionKind,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Prefix of environment variables; the option name follows.
VARIABLE = "AMP_CHECK_"
#: Name of the cache folder.
CACHE = ".amp_check_cache"


class Option:
    """One option.

    ``key`` is the name in [tool.amp-check]. ``flag`` is the flag of amp-check check, and ``run_flag`` of amp-check run,
    by default the same. ``pytest_flag`` and ``ini`` are the names in pytest. ``short_flag`` is a one-letter flag, and
    ``off_flag`` a flag that disables the option. ``allowed_in_file`` means that a configuration file may set the
    option. ``is_extension`` means that the values of all sources are combined.
    """

    __slots__ = (
        "allowed_in_file",
        "default",
        "environment_variable",
        "flag",
        "help",
        "ini",
        "is_extension",
        "key",
        "kind",
        "metavar",
        "name",
        "off_flag",
        "pytest_flag",
        "run_flag",
        "short_flag",
    )

    def __init__(
        self,
        key: str,
        kind: OptionKind,
        default: Any,
        help: str,
        *,
        metavar: str = "",
        flag: str = "",
        run_flag: str | None = None,
        pytest_flag: str = "",
        ini: str = "",
        short_flag: str = "",
        off_flag: str = "",
        allowed_in_file: bool = True,
        is_extension: bool = False,
    ) -> None:
        self.key = key
        self.name = key.replace("-", "_")
        self.environment_variable = VARIABLE + self.name.upper()
        self.kind = kind
        self.default = default
        self.help = help
        self.metavar = metavar
        self.flag = flag
        self.run_flag = flag if run_flag is None else run_flag
        self.pytest_flag = pytest_flag
        self.ini = ini
        self.short_flag = short_flag
        self.off_flag = off_flag
        self.allowed_in_file = allowed_in_file
        self.is_extension = is_extension


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
        is_extension=True,
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
        is_extension=True,
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
        is_extension=True,
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
        "file that findings are written to, or what --show-files or --show-settings lists, instead of standard output",
        metavar="FILE",
        flag="--output-file",
        short_flag="-o",
        allowed_in_file=False,
    ),
    Option("exit-zero", FLAG, False, "leave with 0 even when something was found", flag="--exit-zero", short_flag="-e"),
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
    Option(
        "allow-no-files",
        FLAG,
        False,
        "leave with 0 from a check that found no file to look at, too",
        flag="--allow-no-files",
        run_flag="",
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
        is_extension=True,
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
        allowed_in_file=False,
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
        allowed_in_file=False,
    ),
    Option(
        "diff-base",
        REVISION,
        None,
        "show only what was not found at a revision of git, where this work tree and it parted",
        metavar="REV",
        flag="--diff-base",
        run_flag="",
        allowed_in_file=False,
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
        off_flag="-n",
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
        allowed_in_file=False,
    ),
    Option(
        "show-settings",
        FLAG,
        False,
        "list every option with its value and where that comes from, and check nothing",
        flag="--show-settings",
        run_flag="",
        allowed_in_file=False,
    ),
    Option(
        "watch",
        FLAG,
        False,
        "check again whenever a file changes, until Ctrl-C",
        flag="--watch",
        run_flag="",
        short_flag="-w",
        allowed_in_file=False,
    ),
    Option(
        "quiet", FLAG, False, "show findings and nothing else", flag="--quiet", short_flag="-q", allowed_in_file=False
    ),
    Option(
        "silent",
        FLAG,
        False,
        "show nothing: the exit code tells",
        flag="--silent",
        short_flag="-s",
        allowed_in_file=False,
    ),
    Option(
        "verbose",
        FLAG,
        False,
        "say on standard error which functions were read on their own, and what each led to",
        flag="--verbose",
        run_flag="",
        short_flag="-v",
        allowed_in_file=False,
    ),
    Option(
        "color",
        WHEN,
        AUTO,
        "when there is colour: auto asks NO_COLOR, FORCE_COLOR and the terminal",
        metavar="WHEN",
        flag="--color",
        allowed_in_file=False,
    ),
    Option(
        "config",
        SOURCES,
        (),
        "a configuration file instead of the nearest one, or KEY=VALUE in TOML, which counts for more than any file",
        metavar="FILE|KEY=VALUE",
        flag="--config",
        allowed_in_file=False,
    ),
    Option("isolated", FLAG, False, "read no configuration file", flag="--isolated", allowed_in_file=False),
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
        "max-file-size",
        SIZE,
        LARGEST_FILE,
        "bytes of code above which a file is not parsed, which is said (AMP903): a number, or a size such as 20MB; "
        "0 for no limit",
        metavar="SIZE",
        flag="--max-file-size",
        run_flag="",
        ini="amp_max_file_size",
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
        "rank-timeout",
        SECONDS,
        600.0,
        "seconds for which the ranks of a script may all stand still, or be waited for after the first has ended, "
        "before that is a failure; 0 for no limit",
        metavar="SECONDS",
        run_flag="--rank-timeout",
    ),
    Option(
        "memory",
        FLAG,
        False,
        "record what a script needs memory for, by category, with what made most of it; it takes time, and what made "
        "a loss not finite is not looked for then",
        run_flag="--memory",
        allowed_in_file=False,
    ),
    Option(
        "memory-limit",
        SIZE,
        None,
        "the most memory that a script, or each of its ranks, may need at one moment, which records it too: bytes, or "
        "a size such as 1.5GiB; more is a failure",
        metavar="SIZE",
        run_flag="--memory-limit",
    ),
    Option(
        "data",
        PATH,
        None,
        "JSON file for all that was recorded of a script, of each of its ranks where it has several, or of tests",
        metavar="FILE",
        run_flag="--data",
        pytest_flag="--amp-data",
        allowed_in_file=False,
    ),
    Option(
        "update-baselines",
        FLAG,
        False,
        "write the baselines of run.assert_baseline() as they are now, and remove those of tests that are gone",
        pytest_flag="--amp-update-baselines",
        allowed_in_file=False,
    ),
    Option(
        "report",
        PATH,
        None,
        "HTML file for what recorded tests or scripts look like: loss scale, gradients, memory, dtypes, findings; "
        "for amp-check check the findings with their source",
        metavar="FILE",
        flag="--report",
        pytest_flag="--amp-report",
        ini="amp_report",
    ),
    Option(
        "compare",
        PATH,
        None,
        "JSON file of another run, of --data, --amp-data or run.to_json(), which the report shows beside this one",
        metavar="FILE",
        run_flag="--compare",
        pytest_flag="--amp-compare",
        allowed_in_file=False,
    ),
)
BY_KEY = {option.key: option for option in OPTIONS}


class Options:
    """The resolved value of every option."""

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
    allow_no_files: bool
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
    max_file_size: int
    only: str | None
    device: str
    rank_timeout: float
    memory: bool
    memory_limit: int | None
    update_baselines: bool
    data: str | None
    dtype: str
    report: str | None
    compare: str | None
    #: Folder of the configuration file, or "" without file.
    project_folder: str
    #: Options set by a configuration file that was not named by --config: the file belongs to the checked code.
    set_by_file: frozenset[str]
    #: Words of extend_select with higher priority than ignore, which ignore does not remove.
    insisted_select: tuple[str, ...]
    #: Option name -> location of the value, as text.
    origins: dict[str, str]
