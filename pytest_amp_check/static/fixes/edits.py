"""Application of edits to a text, and detection of overlapping edits."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable

from ...protocol.fix import Edit

_LINE_END = r"\r\n|\r|\n"


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """Return the text with edits applied. The edits must not overlap; inserted text gets the line ends of the text."""
    starts, ends = [0], []
    for match in re.finditer(_LINE_END, text):
        ends.append(match.group())
        starts.append(match.end())
    usual = ends[0] if ends else "\n"
    chunks: list[str] = []
    at = 0
    for edit in sorted(edits, key=Edit.sort_key):
        start = starts[edit.line - 1] + edit.column if edit.line <= len(starts) else len(text)
        end = starts[edit.end_line - 1] + edit.end_column if edit.end_line <= len(starts) else len(text)
        near = ends[min(edit.line, len(ends)) - 1] if ends else usual
        chunks += [text[at:start], edit.content.replace("\n", near)]
        at = end
    chunks.append(text[at:])
    return "".join(chunks)


def make_insertion(line: int, column: int, content: str) -> Edit:
    """Return an edit that only inserts text."""
    return Edit(line, column, line, column, content)


def surround_span(span: tuple[int, int, int, int], before: str, behind: str) -> list[Edit]:
    """Return the edits that insert text before and after a span."""
    return [make_insertion(*span[:2], before), make_insertion(*span[2:], behind)]


def has_overlap(some: Iterable[Edit], others: Iterable[Edit]) -> bool:
    """Return True if two fixes change the same part of a text. Identical edits do not count as overlap."""
    others = list(others)
    known = {edit.sort_key() for edit in others}
    return any(_do_overlap(one, other) for one in some if one.sort_key() not in known for other in others)


def _do_overlap(one: Edit, other: Edit) -> bool:
    first, second = sorted((one, other), key=_start_of)
    return _start_of(first) == _start_of(second) or _end_of(first) > _start_of(second)


def make_minimal_edit(line: int, column: int, old: str, new: str) -> Edit:
    """Return the edit that changes ``old`` at a position to ``new``, without the common start and end."""
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    start = find_position(line, column, old, head)
    end = find_position(line, column, old, len(old) - tail)
    return Edit(*start, *end, new[head : len(new) - tail])


def find_position(line: int, column: int, text: str, offset: int) -> tuple[int, int]:
    """Return the position of the character at ``offset`` in a text that begins at a line and column."""
    starts = [0, *(match.end() for match in re.finditer(_LINE_END, text))]
    row = bisect_right(starts, offset) - 1
    return line + row, offset - starts[row] + (column if row == 0 else 0)


def _start_of(edit: Edit) -> tuple[int, int, int]:
    return edit.cell or 0, edit.line, edit.column


def _end_of(edit: Edit) -> tuple[int, int, int]:
    return edit.cell or 0, edit.end_line, edit.end_column
