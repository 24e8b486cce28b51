"""The option table."""

from __future__ import annotations

from ...protocol.byte_sizes import LARGEST_FILE
from ...protocol.declared_wrappers import DOES
from ...protocol.severities import SEVERITIES, WARNING
from .kinds import (
    AUTO,
    CONFIGURATION,
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
    PART,
    PATH,
    PATHS,
    PATTERNS,
    REQUIREMENT,
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


#: The options by topic, in the order of the help and of the documentation.
TOPICS: dict[str, tuple[Option, ...]] = {
    "rules": (
        Option(
            "select",
            WORDS,
            None,
            "rules to enable instead of the default ones: codes, prefixes, names or ALL",
            metavar="RULES",
            flag="--select",
            pytest_flag="--amp-select",
            ini="amp_select",
        ),
        Option(
            "ignore",
            WORDS,
            (),
            "rules to disable: codes, prefixes or names",
            metavar="RULES",
            flag="--ignore",
            pytest_flag="--amp-ignore",
            ini="amp_ignore",
        ),
        Option(
            "extend-select",
            WORDS,
            (),
            "rules to enable in addition to the selected ones",
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
            "rules to disable in files that match a pattern",
            metavar="PATTERN:RULES",
            flag="--per-file-ignores",
            ini="amp_per_file_ignores",
        ),
        Option(
            "extend-per-file-ignores",
            IGNORES,
            {},
            "rules to disable in files that match a pattern, in addition to per-file-ignores",
            metavar="PATTERN:RULES",
            flag="--extend-per-file-ignores",
            ini="amp_extend_per_file_ignores",
            is_extension=True,
        ),
        Option(
            "severity",
            LEVELS,
            {},
            f"severity of rules instead of the default: {', '.join(SEVERITIES)} (info does not fail)",
            metavar="RULE=SEVERITY",
            flag="--severity",
            ini="amp_severity",
        ),
    ),
    "files": (
        Option(
            "paths",
            PATHS,
            (),
            "files and folders to check: for amp-check check without arguments, "
            "and for pytest --amp-check in addition to collected files",
            ini="amp_check_paths",
        ),
        Option(
            "include",
            PATTERNS,
            (),
            "patterns of files to check in folders, instead of all Python files, notebooks and Markdown",
            metavar="PATTERNS",
            flag="--include",
            run_flag="",
            ini="amp_include",
        ),
        Option(
            "exclude",
            PATTERNS,
            (),
            "file and folder patterns to skip",
            metavar="PATTERNS",
            flag="--exclude",
            run_flag="",
            ini="amp_exclude",
        ),
        Option(
            "extend-exclude",
            PATTERNS,
            (),
            "file and folder patterns to skip, in addition to exclude",
            metavar="PATTERNS",
            flag="--extend-exclude",
            run_flag="",
            ini="amp_extend_exclude",
            is_extension=True,
        ),
        Option(
            "force-exclude",
            FLAG,
            False,
            "apply exclude and include also to files given on the command line",
            flag="--force-exclude",
            run_flag="",
        ),
        Option(
            "respect-gitignore",
            FLAG,
            True,
            "skip files that git ignores (disable: --no-respect-gitignore)",
            flag="--respect-gitignore",
            run_flag="",
            ini="amp_respect_gitignore",
        ),
        Option(
            "max-file-size",
            SIZE,
            LARGEST_FILE,
            "skip larger files and report them as AMP903: bytes, or a size such as 20MB; 0 = no limit",
            metavar="SIZE",
            flag="--max-file-size",
            run_flag="",
            ini="amp_max_file_size",
        ),
        Option(
            "show-files",
            FLAG,
            False,
            "list the files to check, and check none",
            flag="--show-files",
            run_flag="",
            allowed_in_file=False,
        ),
    ),
    "code that is checked": (
        Option(
            "torch-version",
            VERSION,
            None,
            "oldest supported torch version, instead of the one in the project's own files",
            metavar="VERSION",
            flag="--torch-version",
            run_flag="",
            ini="amp_torch_version",
        ),
        Option(
            "devices",
            TYPES,
            (),
            "device types to assume where the code does not say",
            metavar="TYPES",
            flag="--devices",
            run_flag="",
            ini="amp_devices",
        ),
        Option(
            "assume-precision",
            DTYPE,
            None,
            "analyze modules and functions as if their floating-point inputs and weights had this dtype: float16 or "
            "bfloat16",
            metavar="DTYPE",
            flag="--assume-precision",
            run_flag="",
            ini="amp_assume_precision",
        ),
        Option(
            "helpers",
            HELPERS,
            {},
            "unanalyzed functions by dotted name, each with its effects on the scaler, optimizer, loss and "
            f"parameters passed to it, in order: {', '.join(DOES)}",
            metavar="NAME:EVENTS",
            flag="--helpers",
            run_flag="",
            ini="amp_helpers",
        ),
        Option(
            "show-blind-spots",
            FLAG,
            False,
            "also list AMP calls that could not be analyzed (AMP904)",
            flag="--show-blind-spots",
            run_flag="",
        ),
    ),
    "known findings": (
        Option(
            "baseline",
            PATH,
            None,
            "file of accepted findings, which are neither shown nor counted",
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
            "create the baseline file, or remove findings that no longer occur",
            flag="--update-baseline",
            run_flag="",
            allowed_in_file=False,
        ),
        Option(
            "diff-base",
            REVISION,
            None,
            "show only findings that are new since the merge base with this git revision",
            metavar="REV",
            flag="--diff-base",
            run_flag="",
            allowed_in_file=False,
        ),
        Option(
            "ignore-noqa",
            FLAG,
            False,
            "also show findings suppressed by comments (# amp: ignore, # noqa)",
            flag="--ignore-noqa",
            ini="amp_ignore_noqa",
        ),
        Option(
            "add-ignores",
            FLAG,
            False,
            "add a suppression comment to every finding and show nothing",
            flag="--add-ignores",
            run_flag="",
            allowed_in_file=False,
        ),
    ),
    "output": (
        Option("output-format", FORMAT, "full", "output format of findings", metavar="FORMAT", flag="--output-format"),
        Option(
            "output-file",
            PATH,
            None,
            "file for findings, or for the list of --show-files or --show-settings, instead of standard output",
            metavar="FILE",
            flag="--output-file",
            short_flag="-o",
            allowed_in_file=False,
        ),
        Option(
            "report",
            PATH,
            None,
            "HTML report of recorded tests or scripts: loss scale, gradients, memory, dtypes, findings; "
            "with amp-check check: findings with source",
            metavar="FILE",
            flag="--report",
            pytest_flag="--amp-report",
            ini="amp_report",
        ),
        Option(
            "statistics", FLAG, False, "count the findings of each rule instead of showing them", flag="--statistics"
        ),
        Option(
            "quiet",
            FLAG,
            False,
            "show findings and nothing else",
            flag="--quiet",
            short_flag="-q",
            allowed_in_file=False,
        ),
        Option(
            "silent",
            FLAG,
            False,
            "show nothing; only set the exit code",
            flag="--silent",
            short_flag="-s",
            allowed_in_file=False,
        ),
        Option(
            "verbose",
            FLAG,
            False,
            "log the analyzed entry points and the functions reached from each on standard error",
            flag="--verbose",
            run_flag="",
            short_flag="-v",
            allowed_in_file=False,
        ),
        Option(
            "color",
            WHEN,
            AUTO,
            "when to use colors: auto follows NO_COLOR, FORCE_COLOR and the terminal",
            metavar="WHEN",
            flag="--color",
            allowed_in_file=False,
        ),
    ),
    "exit code": (
        Option(
            "fail-level",
            LEVEL,
            WARNING,
            "lowest severity that fails the check",
            metavar="SEVERITY",
            flag="--fail-level",
            pytest_flag="--amp-fail-level",
            ini="amp_fail_level",
        ),
        Option("exit-zero", FLAG, False, "exit with 0 even if there are findings", flag="--exit-zero", short_flag="-e"),
        Option(
            "exit-non-zero-on-fix",
            FLAG,
            False,
            "exit with 1 if --fix changed a file, even if no finding is left",
            flag="--exit-non-zero-on-fix",
            run_flag="",
        ),
        Option(
            "allow-no-files",
            FLAG,
            False,
            "exit with 0 even if there are no files to check",
            flag="--allow-no-files",
            run_flag="",
        ),
        Option(
            "allow-no-steps",
            FLAG,
            False,
            "exit with 0 even if no training step was recorded",
            run_flag="--allow-no-steps",
        ),
    ),
    "fixes": (
        Option("fix", FLAG, False, "apply safe fixes and show the remaining findings", flag="--fix", run_flag=""),
        Option(
            "fix-only",
            FLAG,
            False,
            "apply safe fixes; do not show remaining findings or fail because of them",
            flag="--fix-only",
            run_flag="",
        ),
        Option(
            "diff",
            FLAG,
            False,
            "show the changes of --fix without writing them; exit with 1 if there are any",
            flag="--diff",
            run_flag="",
        ),
        Option(
            "unsafe-fixes",
            FLAG,
            False,
            "also apply fixes that may change training results",
            flag="--unsafe-fixes",
            run_flag="",
        ),
        Option(
            "fixable",
            WORDS,
            None,
            "rules to fix, instead of all that have a fix",
            metavar="RULES",
            flag="--fixable",
            run_flag="",
        ),
        Option(
            "extend-fixable",
            WORDS,
            (),
            "rules to fix, in addition to fixable",
            metavar="RULES",
            flag="--extend-fixable",
            run_flag="",
            is_extension=True,
        ),
        Option(
            "unfixable",
            WORDS,
            (),
            "rules not to fix",
            metavar="RULES",
            flag="--unfixable",
            run_flag="",
        ),
        Option(
            "show-fixes",
            FLAG,
            False,
            "list applied fixes by file and rule on standard error",
            flag="--show-fixes",
            run_flag="",
        ),
    ),
    "processes and cache": (
        Option(
            "cache",
            FLAG,
            True,
            "cache results and re-check only changed files (disable: --no-cache)",
            flag="--cache",
            run_flag="",
            off_flag="-n",
        ),
        Option(
            "cache-dir",
            FOLDER,
            None,
            f"folder of the cache, instead of {CACHE} beside the pyproject.toml with the settings, or else in the "
            "current folder (with pytest, in the root folder)",
            metavar="FOLDER",
            flag="--cache-dir",
            run_flag="",
        ),
        Option(
            "jobs",
            COUNT,
            None,
            "number of processes for a large tree, instead of one for each processor",
            metavar="N",
            flag="--jobs",
            run_flag="",
        ),
        Option(
            "shard",
            PART,
            None,
            "check one part of the files, such as 1/4: the parts together report what one check reports",
            metavar="I/N",
            flag="--shard",
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
    ),
    "configuration": (
        Option(
            "config",
            SOURCES,
            (),
            "configuration file instead of the nearest one, or KEY=VALUE in TOML, which overrides every file",
            metavar="FILE|KEY=VALUE",
            flag="--config",
            allowed_in_file=False,
        ),
        Option(
            "extend",
            CONFIGURATION,
            None,
            "configuration file with values for the options that this file does not set",
            metavar="FILE",
        ),
        Option(
            "required-version",
            REQUIREMENT,
            None,
            "versions of amp-check that may use this configuration; other versions report an error",
            metavar="VERSIONS",
        ),
        Option("isolated", FLAG, False, "read no configuration file", flag="--isolated", allowed_in_file=False),
        Option(
            "show-settings",
            FLAG,
            False,
            "list every option with its value and origin, also as JSON (--output-format), and check nothing",
            flag="--show-settings",
            run_flag="",
            allowed_in_file=False,
        ),
    ),
    "recording": (
        Option(
            "only",
            HALF,
            None,
            "run only one part of --amp-check: static lints files, runtime records tests",
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
            "default autocast dtype of the fixture amp: float16 or bfloat16",
            metavar="DTYPE",
            pytest_flag="--amp-dtype",
            ini="amp_dtype",
        ),
        Option(
            "rank-timeout",
            SECONDS,
            600.0,
            "seconds without progress of all ranks, or after the end of the first rank, until the run fails; 0 = no "
            "limit",
            metavar="SECONDS",
            run_flag="--rank-timeout",
        ),
        Option(
            "memory",
            FLAG,
            False,
            "record memory by category with the largest allocations; slower, and disables the search for non-finite "
            "values",
            run_flag="--memory",
            allowed_in_file=False,
        ),
        Option(
            "memory-limit",
            SIZE,
            None,
            "peak-memory limit for the script or each rank; exceeding it fails the run; implies recording: bytes, or "
            "a size such as 1.5GiB",
            metavar="SIZE",
            run_flag="--memory-limit",
        ),
        Option(
            "data",
            PATH,
            None,
            "JSON file for all recorded data of a script, each of its ranks, or tests",
            metavar="FILE",
            run_flag="--data",
            pytest_flag="--amp-data",
            allowed_in_file=False,
        ),
        Option(
            "compare",
            PATH,
            None,
            "JSON file of another run (--data, --amp-data or run.to_json()) for comparison in the report",
            metavar="FILE",
            run_flag="--compare",
            pytest_flag="--amp-compare",
            allowed_in_file=False,
        ),
        Option(
            "update-baselines",
            FLAG,
            False,
            "rewrite the baselines of run.assert_baseline() and remove those of deleted tests",
            pytest_flag="--amp-update-baselines",
            allowed_in_file=False,
        ),
    ),
}
OPTIONS = tuple(option for topic in TOPICS.values() for option in topic)
BY_KEY = {option.key: option for option in OPTIONS}


class Options:
    """The resolved value of every option."""

    select: tuple[str, ...] | None
    ignore: tuple[str, ...]
    extend_select: tuple[str, ...]
    per_file_ignores: dict[str, tuple[str, ...]]
    extend_per_file_ignores: dict[str, tuple[str, ...]]
    include: tuple[str, ...]
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
    shard: tuple[int, int] | None
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
    extend: str | None
    required_version: str | None
    isolated: bool
    paths: tuple[str, ...]
    helpers: dict[str, tuple[str, ...]]
    torch_version: tuple[int, int] | None
    devices: tuple[str, ...]
    assume_precision: str | None
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
    #: Paths of the configuration file and of the files that it extends.
    configuration_files: tuple[str, ...]
    #: Options set by a configuration file that was not named by --config: the file belongs to the checked code.
    set_by_file: frozenset[str]
    #: Words of extend_select with higher priority than ignore, which ignore does not remove.
    insisted_select: tuple[str, ...]
    #: Option name -> location of the value, as text.
    origins: dict[str, str]
