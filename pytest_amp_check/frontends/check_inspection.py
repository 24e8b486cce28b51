"""Additional output of a check: settings, files, and inlined functions."""

from __future__ import annotations

import re

from . import options as table
from .finding_text import relative_path
from .printable import make_single_line
from .source_lines import SourceLines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any, TextIO

_NAMED = r"\s*(?:async\s+def|def|class)\s+(\w+)"
#: Maximum number of lines between the first decorator of a function and the name.
DECORATED = 20


def show_settings(options: table.Options, stream: TextIO) -> None:
    """Write every option with the value as in TOML, and the source of the value; as JSON for that output format."""
    import json

    values = {option: _plain_value(option, getattr(options, option.name)) for option in table.OPTIONS}
    if options.output_format == "json":
        from .json_formats import dump_json

        rows = {
            option.key: {"value": value, "origin": options.origins[option.name]} for option, value in values.items()
        }
        stream.write(dump_json({"settings": rows, "files": options.configuration_files}))
        return
    for option, value in values.items():
        shown = "" if value is None else f" {json.dumps(value)}"
        stream.write(make_single_line(f"{option.key} ={shown}  # {options.origins[option.name]}") + "\n")


def _plain_value(option: table.Option, value: Any) -> Any:
    """Return a value as a configuration file has it."""
    return ".".join(map(str, value)) if option.kind is table.VERSION and value is not None else value


def show_files(paths: Iterable[str], stream: TextIO) -> None:
    """Write the files to check, one in each line."""
    stream.writelines(f"{make_single_line(relative_path(path))}\n" for path in paths)


def show_reached(reached: Mapping[tuple[str, int], Iterable[tuple[str, int]]], stream: TextIO) -> None:
    """Write the entry points, and the functions reached by the analysis of each entry point."""
    sources = SourceLines()
    for entry in sorted(reached):
        led = sorted(set(reached[entry]) - {entry})
        stream.write(f"amp-check: read {make_single_line(_describe_function(entry, sources))}\n")
        stream.writelines(
            f"amp-check:   led to {make_single_line(_describe_function(function, sources))}\n" for function in led
        )
    stream.flush()


def _describe_function(entry_point: tuple[str, int], sources: SourceLines) -> str:
    path, line = entry_point
    if not line:
        return f"{relative_path(path)} (the body of the module)"
    for number in range(line, line + DECORATED):
        named = re.match(_NAMED, sources.find_line(path, number) or "")
        if named is not None:
            return f"{relative_path(path)}:{line} {named.group(1)}"
    return f"{relative_path(path)}:{line}"
