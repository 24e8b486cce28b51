"""The JSON of a notebook: positions of cell sources, and cell sources with edits applied."""

from __future__ import annotations

import re
from bisect import bisect_right

from ...protocol.fix import Edit
from ..sources import source_files
from . import edits
from .matchers import require, require_type

#: Pattern of a JSON token. An unterminated string extends to the end, so that no inner quote begins another string.
_LEXEME = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[\]{},:]|[^\s\[\]{},:"]+', re.DOTALL)
_ODD = frozenset("\v\f\x1c\x1d\x1e\x85\u2028\u2029")


def find_source_spans(raw: str) -> dict[int, tuple[int, int]]:
    """Return the span of each cell's source in the JSON of a notebook, by cell number."""
    found: dict[int, tuple[int, int]] = {}
    path: list[str | int] = []
    starts: list[int] = []
    key = ""
    keyed = False  # True if the key of the next value was read
    for match in _LEXEME.finditer(raw):
        lexeme = match.group()
        if lexeme == ":":
            keyed = True
            continue
        if lexeme == ",":
            if path and isinstance(path[-1], int):
                path[-1] += 1
            keyed = False
            continue
        if lexeme in "]}":
            path.pop()
            start = starts.pop()
            if _is_source(path):
                found[int(path[1]) + 1] = (start, match.end())
            continue
        inside = bool(path) and isinstance(path[-1], str)
        if inside and not keyed:
            key = lexeme
            path[-1] = key[1:-1]
            continue
        if lexeme in "[{":
            starts.append(match.start())
            path.append(0 if lexeme == "[" else "")
        elif _is_source(path):
            found[int(path[1]) + 1] = (match.start(), match.end())
        keyed = False
    return found


def find_line_locations(raw: str) -> dict[tuple[int, int], tuple[int, int, int]]:
    """Return the position of each cell line in the JSON: line of the string, start column and end column.

    Cells and lines count from 1, columns from 0.
    """
    import json

    found: dict[tuple[int, int], tuple[int, int, int]] = {}
    starts = [0, *(match.end() for match in re.finditer("\n", raw))]
    for cell, (start, end) in find_source_spans(raw).items():
        line = 1
        for match in _LEXEME.finditer(raw, start, end):
            if match.group()[0] != '"':
                continue
            row = bisect_right(starts, match.start())
            place = (row, match.start() - starts[row - 1], match.end() - starts[row - 1])
            breaks = source_files.normalize_newlines(json.loads(match.group(), strict=False)).count("\n")
            for number in range(line, line + breaks + 1):
                # If two strings share a line, the first string contains the start of the line.
                found.setdefault((cell, number), place)
            line += breaks
            # Text after a line end begins in the next string.
            if breaks and json.loads(match.group(), strict=False)[-1:] in "\r\n":
                found.pop((cell, line))
    return found


def _is_source(path: list[str | int]) -> bool:
    return len(path) == 3 and path[0] == "cells" and isinstance(path[1], int) and path[2] == "source"


def edit_source(raw: str, new_edits: list[Edit], *, ascii_only: bool) -> str:
    """Return the JSON of a cell's source with edits applied, in the same layout."""
    import json

    value = json.loads(raw)
    if isinstance(value, str):
        return json.dumps(edits.apply_edits(value, new_edits), ensure_ascii=ascii_only)
    lines = [require_type(line, str) for line in require_type(value, list)]
    # Characters that only ``str.splitlines`` treats as line ends.
    require(lines and _ODD.isdisjoint("".join(lines)))
    items = [match for match in _LEXEME.finditer(raw) if match.group()[0] == '"']
    as_written = dict(zip(lines, (match.group() for match in items), strict=True))
    between = raw[items[0].end() : items[1].start()] if len(items) > 1 else "," + raw[1 : items[0].start()]
    now = edits.apply_edits("".join(lines), new_edits).splitlines(keepends=True)
    shown = [as_written.get(line) or json.dumps(line, ensure_ascii=ascii_only) for line in now]
    return raw[: items[0].start()] + between.join(shown) + raw[items[-1].end() :]
