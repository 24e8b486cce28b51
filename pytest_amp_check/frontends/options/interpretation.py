"""Interpretation of options: engine settings, fixable rules, failing severities."""

from __future__ import annotations

import os
from collections.abc import Callable

from ...protocol.severities import SEVERITIES
from .files import FILES, ConfigError
from .option_values import Options
from .table import CACHE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...static.settings import Settings


def make_settings(options: Options) -> Settings:
    """Return the engine settings, with rule words converted to codes."""
    from ...protocol.rules import RULES
    from ...protocol.selection import UnknownRule, expand_word, resolve_for_runs
    from ...protocol.selection import resolve_codes as resolve_rules
    from ...static.file_analysis import UNANALYZED_CALL_CODE
    from ...static.settings import FileSelection, Settings

    setting = "select"
    try:
        if options.select is not None:
            resolve_rules(options.select, (), RULES)
        setting = "extend_select"
        resolve_rules(options.extend_select, (), RULES)
        setting = "ignore"
        selected = resolve_for_runs(options.select, options.ignore, RULES, options.extend_select)
        selected |= resolve_rules(options.insisted_select, (), RULES)
        if options.show_blind_spots or (options.statistics and options.select is None):
            selected |= {UNANALYZED_CALL_CODE}
        ignores: list[tuple[str, frozenset[str]]] = []
        for setting in ("per_file_ignores", "extend_per_file_ignores"):
            for pattern, words in getattr(options, setting).items():
                ignores.append((pattern, frozenset[str]().union(*(expand_word(word, RULES)[0] for word in words))))
        setting = "severity"
        severity: dict[str, str] = {}
        widths: dict[str, int] = {}
        for word, level in options.severity.items():
            codes, width = expand_word(word, RULES)
            for code in codes:
                if width >= widths.get(code, 0):
                    severity[code], widths[code] = level, width
    except UnknownRule as error:
        raise ConfigError(f"{options.origins[setting]}: {error}") from None
    # Invalid words in these options are reported early, and also if nothing is fixed.
    find_fixable_codes(options)
    return Settings(
        select=selected,
        per_file_ignores=tuple(ignores),
        severity=severity,
        files=FileSelection(
            exclude=options.exclude + options.extend_exclude,
            include=options.include,
            force_exclude=options.force_exclude,
            gitignore=options.respect_gitignore,
        ),
        suppress=not options.ignore_noqa,
        helpers=options.helpers,
        torch=options.torch_version,
        devices=options.devices,
        assumed_dtype=options.assume_precision or "",
        largest=options.max_file_size,
    )


def make_settings_finder(
    options: Options, own: Settings, resolved: Callable[[str], Options]
) -> Callable[[str], Settings | None]:
    """Return a function that finds the settings of a folder with a separate configuration.

    The nearest one applies to a file.

    ``options`` and ``own`` are already resolved. ``resolved`` resolves the options of a folder.
    """
    known = {os.path.realpath(options.project_folder): own} if options.project_folder else {}

    def find_settings(folder: str) -> Settings | None:
        if folder not in known and any(os.path.exists(os.path.join(folder, name)) for name in FILES):
            found = resolved(folder)
            if found.project_folder and os.path.realpath(found.project_folder) == folder:
                known[folder] = make_settings(found)
        return known.get(folder)

    return find_settings


def find_fixable_codes(options: Options) -> frozenset[str]:
    """Return the codes of the rules that may be fixed."""
    from ...protocol.rules import RULES
    from ...protocol.selection import ALL, UnknownRule
    from ...protocol.selection import resolve_codes as resolve_rules

    setting = "fixable"
    try:
        resolve_rules(options.fixable, (), RULES)
        setting = "extend_fixable"
        resolve_rules(options.extend_fixable, (), RULES)
        setting = "unfixable"
        # The more specific word wins, as in select and ignore.
        words = (ALL,) if options.fixable is None else options.fixable
        return resolve_rules((*words, *options.extend_fixable), options.unfixable, RULES)
    except UnknownRule as error:
        raise ConfigError(f"{options.origins[setting]}: {error}") from None


def is_failing(options: Options, severity: str) -> bool:
    """Return True if a finding of this severity fails a check."""
    return SEVERITIES.index(severity) <= SEVERITIES.index(options.fail_level)


def find_cache_folder(options: Options, base: str = os.curdir) -> str | None:
    """Return the cache folder, or None if the cache is disabled.

    ``base`` is the project folder without configuration.
    """
    if not options.cache:
        return None
    return options.cache_dir or os.path.join(options.project_folder or base, CACHE)
