"""Where a value comes from: the nearest place that says it.

That is the command line, ``--config KEY=VALUE``, an environment variable, pytest's configuration, the configuration
file, or the default. What extends another option is taken from all of them together.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from .files import TABLE, ConfigError, checked, name_of, nearest_file, parsed, read_table
from .flags import CLI, flag_of
from .kinds import FLAG, Wrong, split
from .table import BY_KEY, OPTIONS, VARIABLE, Option, Options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: The variable that is no option: it shows where an internal error comes from.
DEBUG = "AMP_CHECK_DEBUG"
TRUTHS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


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
    ini_places: Mapping[str, str] | None = None,
    face: str = CLI,
) -> Options:
    """Every option from the nearest place that sets it.

    ``flags`` and ``ini`` map option names to what the command line and pytest's configuration hold, None where they say
    nothing, ``ini_places`` to where the latter stands, in words. ``start`` is the file or folder from which a
    configuration file is looked for, upwards.
    """
    options = Options()
    options.origin = {}
    _refuse_unknown_variables()

    def on_command_line(option: Option) -> _Said | None:
        return _from_strings(option, flags.get(option.name), os.getcwd(), flag_of(option, face))

    def in_pytest(option: Option) -> _Said | None:
        where = (ini_places or {}).get(option.name, option.ini)
        return _from_strings(option, (ini or {}).get(option.name), ini_base, where)

    # Which file is read is asked first.
    config, isolated = (
        _said(BY_KEY[key], [on_command_line, _from_variable])[0].value for key in ("config", "isolated")
    )
    path, table, overrides = _configuration(config, start, isolated=isolated)
    options.project = os.path.dirname(path)
    places: list[Place] = [
        on_command_line,
        lambda option: _from_table(option, overrides, os.getcwd(), f"--config {option.key}"),
        _from_variable,
        in_pytest,
        lambda option: _from_table(option, table, options.project, f"{option.key} in {name_of(path)}"),
    ]
    said = {option.name: _said(option, places) for option in OPTIONS}
    for option in OPTIONS:
        found = said[option.name]
        value = _together([each.value for each in found], option.default) if option.extends else found[0].value
        setattr(options, option.name, value)
        options.origin[option.name] = " and ".join(each.where for each in found)
    named = path in map(os.path.abspath, config)
    by_file = (name for name, each in said.items() if each[0].door == len(places) - 1)
    options.found = frozenset(() if named else by_file)
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
    words = split([text], option.kind.separators) if option.kind.separators else (text,)
    return _Said(where, _from_words(option, list(words), os.getcwd(), where))


def _from_strings(option: Option, value: Any, base: str, where: str) -> _Said | None:
    return None if value is None else _Said(where, _from_words(option, value, base, where))


def _from_table(option: Option, table: Mapping[str, Any], base: str, where: str) -> _Said | None:
    if option.key not in table:
        return None
    try:
        return _Said(where, option.kind.toml(table[option.key], base))
    except Wrong as error:
        raise ConfigError(f"{where} must be {error}, such as {option.kind.example}{error.hint}") from None


def _from_words(option: Option, value: Any, base: str, where: str) -> Any:
    if isinstance(value, bool):
        return value
    words = [value] if isinstance(value, str) else [str(item) for item in value]
    try:
        return option.kind.words(words, base)
    except Wrong as error:
        raise ConfigError(f"{where} must be {error}, not {' '.join(words)!r}{error.hint}") from None


def _configuration(given: tuple[str, ...], start: str, *, isolated: bool) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The path of the configuration file that counts, what it says, and what ``--config KEY=VALUE`` says."""
    overrides: dict[str, Any] = {}
    files: list[str] = []
    for text in given:
        if os.path.isfile(text) or (text.endswith(".toml") and "=" not in text):
            files.append(text)
        elif "=" in text:
            overrides.update(checked(parsed(text, f"--config {text}"), "--config"))
        else:
            raise ConfigError(f"--config must be the path of a TOML file or KEY=VALUE, not {text!r}")
    if len(files) > 1:
        raise ConfigError(f"--config names {' and '.join(files)}: one file can be given")
    if files and isolated:
        raise ConfigError(f"--config names {files[0]}, and --isolated reads no file: leave one of the two out")
    if not files:
        return (*(("", {}) if isolated else nearest_file(start)), overrides)
    path = os.path.abspath(files[0])
    table = read_table(path)
    if table is None:
        raise ConfigError(f"{path} has no table {TABLE}" if os.path.isfile(path) else f"{path} does not exist")
    return path, table, overrides
