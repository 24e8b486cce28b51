"""Resolution of option values: the source with the highest priority wins.

The sources are the command line, ``--config KEY=VALUE``, an environment variable, pytest's configuration, the
configuration file, the files that it extends, the variables of coding agents, and the default. Options that extend
another option combine all sources.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from .agents import find_agent_variable
from .files import (
    TABLE,
    ConfigError,
    check_table,
    display_name,
    find_nearest_file,
    load_extended,
    parse_toml,
    read_table,
    refuse_other_version,
)
from .flags import CLI, find_flag
from .kinds import AGENT, FLAG, FORMAT, InvalidValue, split_words
from .option import VARIABLE, Option
from .option_values import Options
from .table import BY_KEY, OPTIONS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Environment variable that is no option: shows the traceback of internal errors.
DEBUG = "AMP_CHECK_DEBUG"
TRUTHS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


class _OptionSource:
    """A value of an option from one source: the value, the location as text, and the priority of the source."""

    __slots__ = ("location", "priority", "value")

    def __init__(self, location: str, value: Any, priority: int = 0) -> None:
        self.location = location
        self.value = value
        self.priority = priority


#: A source of option values.
Place = Callable[["Option"], "_OptionSource | None"]


def resolve_options(
    flags: Mapping[str, Any],
    *,
    start: str,
    ini: Mapping[str, Any] | None = None,
    ini_base: str = "",
    ini_places: Mapping[str, str] | None = None,
    frontend: str = CLI,
) -> Options:
    """Return all options, each from the source with the highest priority.

    ``flags`` and ``ini`` map option names to values of the command line and pytest's configuration, None if not given.
    ``ini_places`` describes the location of ini values. ``start`` is the file or folder where the upward search for a
    configuration file begins.
    """
    options = Options()
    options.origins = {}
    _refuse_unknown_variables()

    def from_command_line(option: Option) -> _OptionSource | None:
        return _from_strings(option, flags.get(option.name), os.getcwd(), find_flag(option, frontend))

    def from_pytest(option: Option) -> _OptionSource | None:
        where = (ini_places or {}).get(option.name, option.ini)
        return _from_strings(option, (ini or {}).get(option.name), ini_base, where)

    # The options that select the configuration file are resolved first.
    config, isolated = (
        _find_sources(BY_KEY[key], [from_command_line, _from_variable])[0].value for key in ("config", "isolated")
    )
    path, table, overrides = _load_configuration(config, start, isolated=isolated)
    options.project_folder = os.path.dirname(path)
    places: list[Place] = [
        from_command_line,
        lambda option: _from_table(option, overrides, os.getcwd(), f"--config {option.key}"),
        _from_variable,
        from_pytest,
    ]
    files = len(places)
    extend = BY_KEY["extend"]
    extended = _find_sources(extend, [*places, _make_file_place(path, table)])[0].value
    if isolated and extended is not None:
        raise ConfigError(f"{extend.key} names {extended}, and --isolated reads no file: leave one of the two out")
    layers = load_extended(path, table, extended)
    options.configuration_files = tuple(file for file, _ in layers)
    places += [_make_file_place(*layer) for layer in layers]
    after_files = len(places)
    places.append(_from_agent)
    sources = {option.name: _find_sources(option, places) for option in OPTIONS}
    for option in OPTIONS:
        found = sources[option.name]
        value = (
            _combine_values([each.value for each in found], option.default) if option.is_extension else found[0].value
        )
        setattr(options, option.name, value)
        options.origins[option.name] = " and ".join(each.location for each in found)
    named = path in map(os.path.abspath, config)
    by_file = (name for name, each in sources.items() if files <= each[0].priority < after_files)
    options.set_by_file = frozenset(() if named else by_file)
    for each in sources["required_version"]:
        if each.value is not None and each.priority < files:
            refuse_other_version(each.value, each.location)
    select, ignore = sources["select"][0].priority, sources["ignore"][0].priority
    options.insisted_select = _combine_values(
        [each.value for each in sources["extend_select"] if each.priority < ignore], ()
    )
    if select < ignore:
        # A selection of higher priority is exact: an ignore of lower priority must not reduce the selection.
        options.ignore = ()
    return options


def _make_file_place(path: str, table: Mapping[str, Any]) -> Place:
    """Return the source of the values of a configuration file. Relative paths count from its folder."""
    return lambda option: _from_table(option, table, os.path.dirname(path), f"{option.key} in {display_name(path)}")


def _from_agent(option: Option) -> _OptionSource | None:
    """Return the output format for coding agents if one of them runs the command."""
    if option.kind is not FORMAT:
        return None
    variable = find_agent_variable()
    return None if variable is None else _OptionSource(f"the variable {variable} of a coding agent", AGENT)


def _find_sources(option: Option, places: list[Place]) -> list[_OptionSource]:
    """Return the value of the first source that sets an option, or all values of an extending option."""
    found: list[_OptionSource] = []
    for priority, place in enumerate(places):
        each = place(option)
        if each is not None:
            each.priority = priority
            found.append(each)
            if not option.is_extension:
                break
    return found or [_OptionSource("the default", option.default, len(places))]


def _combine_values(values: list[Any], nothing: Any) -> Any:
    """Combine the values of several sources: concatenate lists, and merge tables by key."""
    if not isinstance(nothing, dict):
        return tuple(item for value in values for item in value)
    found: dict[str, tuple[str, ...]] = {}
    for value in values:
        for key, items in value.items():
            found[key] = found.get(key, ()) + items
    return found


def _refuse_unknown_variables() -> None:
    """Raise ConfigError for an environment variable with a name similar to an option.

    Such a variable would be ignored silently.
    """
    known = {option.environment_variable for option in OPTIONS} | {DEBUG}
    for name in sorted(os.environ):
        if name.startswith(VARIABLE) and name not in known:
            import difflib

            ends = [each.removeprefix(VARIABLE) for each in sorted(known)]
            close = difflib.get_close_matches(name.removeprefix(VARIABLE).upper(), ends, n=1, cutoff=0.65)
            if close:
                raise ConfigError(f"unknown variable {name}: did you mean {VARIABLE}{close[0]}?")


def _from_variable(option: Option) -> _OptionSource | None:
    text = os.environ.get(option.environment_variable)
    if text is None:
        return None
    where = f"the variable {option.environment_variable}"
    if option.kind is FLAG:
        if text.lower() not in TRUTHS:
            raise ConfigError(f"{where} must be one of {', '.join(TRUTHS)}, not {text!r}")
        return _OptionSource(where, TRUTHS[text.lower()])
    words = split_words([text], option.kind.separators) if option.kind.separators else (text,)
    return _OptionSource(where, _from_words(option, list(words), os.getcwd(), where))


def _from_strings(option: Option, value: Any, base: str, where: str) -> _OptionSource | None:
    return None if value is None else _OptionSource(where, _from_words(option, value, base, where))


def _from_table(option: Option, table: Mapping[str, Any], base: str, where: str) -> _OptionSource | None:
    if option.key not in table:
        return None
    try:
        return _OptionSource(where, option.kind.from_toml(table[option.key], base))
    except InvalidValue as error:
        raise ConfigError(f"{where} must be {error}, such as {option.kind.example}{error.hint}") from None


def _from_words(option: Option, value: Any, base: str, where: str) -> Any:
    if isinstance(value, bool):
        return value
    words = [value] if isinstance(value, str) else [str(item) for item in value]
    try:
        return option.kind.from_words(words, base)
    except InvalidValue as error:
        raise ConfigError(f"{where} must be {error}, not {' '.join(words)!r}{error.hint}") from None


def _load_configuration(
    given: tuple[str, ...], start: str, *, isolated: bool
) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return the path of the effective configuration file, the table, and the values of ``--config KEY=VALUE``."""
    overrides: dict[str, Any] = {}
    files: list[str] = []
    for text in given:
        if os.path.isfile(text) or (text.endswith(".toml") and "=" not in text):
            files.append(text)
        elif "=" in text:
            overrides.update(check_table(parse_toml(text, f"--config {text}"), "--config"))
        else:
            raise ConfigError(f"--config must be the path of a TOML file or KEY=VALUE, not {text!r}")
    if len(files) > 1:
        raise ConfigError(f"--config names {' and '.join(files)}: one file can be given")
    if files and isolated:
        raise ConfigError(f"--config names {files[0]}, and --isolated reads no file: leave one of the two out")
    if not files:
        return (*(("", {}) if isolated else find_nearest_file(start)), overrides)
    path = os.path.abspath(files[0])
    table = read_table(path)
    if table is None:
        raise ConfigError(f"{path} has no table {TABLE}" if os.path.isfile(path) else f"{path} does not exist")
    return path, table, overrides
