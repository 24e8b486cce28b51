"""Resolved values of all options."""

from __future__ import annotations


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
