"""Configuration files: search, parsing, and validation of keys."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from ...protocol.regular_files import LARGEST_CONFIG, FileTooLarge, NotRegularFile, read_regular
from .kinds import InvalidValue, suggest_nearest
from .table import BY_KEY, OPTIONS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TABLE = "[tool.amp-check]"
#: Keys about the files themselves.
EXTEND, REQUIRED = "extend", "required-version"
#: Configuration files. The first file in a folder counts; all but the last contain only keys of this tool.
FILES = (".amp-check.toml", "amp-check.toml", "pyproject.toml")


class ConfigError(ValueError):
    """Error for an invalid setting. The message is one sentence with the location and the allowed values."""


def find_nearest_file(start: str) -> tuple[str, dict[str, Any]]:
    """Return the nearest configuration file, from ``start`` upwards, and its table.

    The file is a pyproject.toml with the tool's table, or a file of the tool, which has priority in a folder.
    """
    folder = os.path.abspath(start or os.curdir)
    if not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    while True:
        for name in FILES:
            path = os.path.join(folder, name)
            table = read_table(path)
            if table is not None:
                return path, table
        parent = os.path.dirname(folder)
        if parent == folder:
            return "", {}
        folder = parent


def list_candidates(paths: Iterable[str]) -> list[str]:
    """Return all possible paths of configuration files for some files and folders."""
    folders: dict[str, None] = {}
    for path in paths:
        folder = os.path.abspath(path)
        if not os.path.isdir(folder):
            folder = os.path.dirname(folder)
        while folder not in folders:
            folders[folder] = None
            folder = os.path.dirname(folder)
    return [os.path.join(folder, name) for folder in folders for name in FILES]


def read_table(path: str) -> dict[str, Any] | None:
    """Return the table of a configuration file, or None if the file or the table does not exist."""
    try:
        data = read_regular(path, LARGEST_CONFIG)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError as error:
        if not os.path.lexists(path):
            # The folder is not accessible, so the file may exist; an error is reported for each checked file there.
            return None
        remedy = ": remove it, or give --isolated" if isinstance(error, (NotRegularFile, FileTooLarge)) else ""
        raise ConfigError(f"{path} cannot be read: {error.strerror}{remedy}") from None
    if os.path.basename(path) != FILES[-1]:
        return check_table(parse_toml(data, path), path)
    # Text search before importing tomllib: most files have no table of this tool, or name only the package. The table
    # can be written in several forms.
    if data.count(b"amp-check") > data.count(b"pytest-amp-check"):
        tool = parse_toml(data, path).get("tool")
        table = tool.get("amp-check") if isinstance(tool, dict) else None
        # None: the text was in a comment or a string.
        if table is not None:
            return check_table(table, path)
    for wrong in (b"[tool.amp_check", b"[tool.ampcheck", b"[tool.pytest-amp-check", b"[tool.pytest_amp_check"):
        if wrong in data:
            raise ConfigError(f"{path} has a table {wrong.decode()}]: amp-check reads {TABLE}")
    return None


def load_extended(path: str, table: dict[str, Any], extended: str | None) -> list[tuple[str, dict[str, Any]]]:
    """Return a configuration file and the files that it extends, the nearest first, each with its table.

    ``extended`` is the file that the first one extends, or None. Raise ConfigError for a missing file and for a cycle.
    """
    layers = [(path, table)] if path else []
    while extended is not None:
        where = f"{EXTEND} in {display_name(path)}" if path else EXTEND
        if any(os.path.realpath(extended) == os.path.realpath(known) for known, _ in layers):
            chain = " extends ".join([*(known for known, _ in layers), extended])
            raise ConfigError(f"{where} leads in a circle, {chain}: remove one of them")
        found = read_table(extended)
        if found is None:
            what = f"has no table {TABLE}" if os.path.isfile(extended) else "does not exist"
            raise ConfigError(f"{where} names {extended}, which {what}")
        layers.append((extended, found))
        path, extended = extended, find_extended(found, extended)
    return layers


def find_extended(table: dict[str, Any], path: str) -> str | None:
    """Return the path of the file that a configuration file extends, or None."""
    if EXTEND not in table:
        return None
    kind = BY_KEY[EXTEND].kind
    try:
        found: str = kind.from_toml(table[EXTEND], os.path.dirname(path))
    except InvalidValue as error:
        raise ConfigError(f"{EXTEND} in {display_name(path)} must be {error}, such as {kind.example}") from None
    return found


def refuse_other_version(versions: str, where: str) -> None:
    """Raise ConfigError if a version specifier does not allow this version of amp-check."""
    from ... import __version__
    from .versions import allows_version

    if not allows_version(versions, __version__):
        raise ConfigError(f"{where} is {versions}, and this is amp-check {__version__}: install one of those versions")


def _holds_null(value: Any) -> bool:
    """Return True if a string in a TOML value contains a null byte, at any depth."""
    if isinstance(value, dict):
        return any(_holds_null(each) for pair in value.items() for each in pair)
    if isinstance(value, list):
        return any(map(_holds_null, value))
    return isinstance(value, str) and "\0" in value


def display_name(path: str) -> str:
    """Return the name of a configuration file in messages, with the table name for a shared file."""
    return f"{TABLE} of {path}" if os.path.basename(path) == FILES[-1] else path


def parse_toml(data: bytes | str, where: str) -> dict[str, Any]:
    import sys

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        found: dict[str, Any] = tomllib.loads(data.decode() if isinstance(data, bytes) else data)
    except ValueError as error:  # not only TOMLDecodeError: also no UTF-8, or a number of 5,000 digits
        raise ConfigError(f"{where} is not valid TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{where} is nested too deeply to be read") from None
    return found


def check_table(table: Any, path: str) -> dict[str, Any]:
    """Return the settings of a table. Raise ConfigError for a key that is no option of a file."""
    if not isinstance(table, dict):
        raise ConfigError(f"{display_name(path)} must be a table")
    # First of all: another version may know other keys.
    with suppress(InvalidValue):
        if REQUIRED in table:
            versions = BY_KEY[REQUIRED].kind.from_toml(table[REQUIRED], "")
            refuse_other_version(versions, f"{REQUIRED} in {display_name(path)}")
    keys = tuple(option.key for option in OPTIONS if option.allowed_in_file)
    for key, value in table.items():
        if key in keys:
            if _holds_null(value):
                raise ConfigError(f"{key} in {display_name(path)} holds a null byte, which no name has: leave it out")
            continue
        option = BY_KEY.get(key)
        if option is not None:
            raise ConfigError(f"{key} in {display_name(path)} is no setting of a file: give {option.flag}")
        if key == "tool":
            raise ConfigError(f"unknown key 'tool' in {path}: it holds the keys alone, without {TABLE}")
        hint = suggest_nearest(key, keys) or f": it has {', '.join(keys)}"
        raise ConfigError(f"unknown key {key!r} in {display_name(path)}{hint}")
    return table
