"""Code actions of an editor for a finding: the fix of ``--fix``, and a suppression comment."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from difflib import SequenceMatcher
from itertools import pairwise

from lsprotocol import types

from ...protocol.finding import Finding
from ...protocol.fix import SAFE
from ...protocol.sites import Site
from ...protocol.suppressions import Suppressions
from ...static.fixes import fix_files
from ...static.fixes.edited_file import EditedFile
from ...static.project.project_context import ProjectContext
from ...static.sources.source_files import Unreadable
from .checking import CheckedDocument, DocumentText
from .documents import count_units

FIX_ALL = "source.fixAll.amp-check"
_ENDS = re.compile(r"\r\n|\r|\n")
#: Code list of a suppression comment at the end of a line.
_LISTED = re.compile(r"#\s*amp:\s*ignore\[([^\]#]*)\]")
#: Edits by notebook cell, or for the file (None).
Edits = dict[int | None, list[types.TextEdit]]


def make_fix_edits(
    text: DocumentText, checked: CheckedDocument, wanted: Sequence[Finding], *, unsafe: bool
) -> Edits | None:
    """Return the edits that fix some findings of a document, or None if no fix is valid.

    As in ``--fix``, the fixed text is analyzed again before the fix is accepted.
    """
    data, tree = text.data, checked.project
    try:
        document = EditedFile.from_bytes(
            text.name, data, ProjectContext([text.name] if text.path else [], tree.members)
        )
    except Unreadable:
        return None
    outcome = fix_files.fix_file(document, wanted, checked.settings, tree, unsafe=unsafe)
    if not outcome.has_changed:
        return None
    before, after = outcome.original.cell_texts(), outcome.fixed_document.cell_texts()
    return {part: edits for part in before if (edits := list(_make_diff_edits(before[part], after.get(part, ""))))}


def _make_diff_edits(before: str, after: str) -> Iterator[types.TextEdit]:
    """Yield the edits in whole lines that convert one text to another."""
    old, new = _split_lines(before), _split_lines(after)
    for what, start, end, first, last in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if what != "equal":
            yield types.TextEdit(_find_line_range(old, start, end), "".join(new[first:last]))


def _split_lines(text: str) -> list[str]:
    """Return the lines of a text, including line ends."""
    cuts = [0, *(match.end() for match in _ENDS.finditer(text)), len(text)]
    return [text[start:end] for start, end in pairwise(cuts) if start < end]


def _find_line_range(lines: Sequence[str], start: int, end: int) -> types.Range:
    def find_position(number: int) -> types.Position:
        if number < len(lines) or not lines or _ENDS.search(lines[-1]):
            return types.Position(number, 0)
        # Behind a last line without line end.
        return types.Position(len(lines) - 1, count_units(lines[-1], len(lines[-1])))

    return types.Range(find_position(start), find_position(end))


def make_fix_title(finding: Finding) -> str:
    """Return the title of a finding's fix."""
    assert finding.fix is not None
    marked = "" if finding.fix.applicability == SAFE else " (unsafe: it changes what may have been tuned around)"
    return f"{finding.fix.message} ({finding.code}){marked}"


def make_ignore_edit(finding: Finding, lines: Sequence[str]) -> types.TextEdit | None:
    """Return the edit that suppresses a finding, or None if no comment is possible.

    The comment is added at the end of the first line, else at the end of the last line, else on a separate line above.
    """
    site = finding.site
    for line in dict.fromkeys((site.line, site.end_line)):
        # A comment cannot follow a backslash.
        if 0 < line <= len(lines) and not lines[line - 1].endswith("\\"):
            edit = _append_ignore(finding.code, lines[line - 1], line)
            if _is_silenced_by(finding, lines, edit):
                return edit
    if not 0 < site.line <= len(lines):
        return None
    row = lines[site.line - 1]
    indent = row[: len(row) - len(row.lstrip())]
    at = types.Position(site.line - 1, 0)
    edit = types.TextEdit(types.Range(at, at), f"{indent}# amp: ignore[{finding.code}]\n")
    moved = copy(finding)
    moved.site = Site(site.path, site.line + 1, site.column, max(site.end_line, site.line) + 1, site.end_column)
    return edit if _is_silenced_by(moved, lines, edit) else None


def _append_ignore(code: str, row: str, line: int) -> types.TextEdit:
    """Return the edit that appends a comment to a line, or adds a code to the existing comment."""
    known = _LISTED.search(row)
    if known is not None:
        at, content = known.end(1), f", {code}" if known.group(1).strip() else code
    else:
        at, content = len(row.rstrip()), f"  # amp: ignore[{code}]"
    place = types.Position(line - 1, count_units(row, at))
    return types.TextEdit(types.Range(place, place), content)


def _is_silenced_by(finding: Finding, lines: Sequence[str], edit: types.TextEdit) -> bool:
    at = edit.range.start
    row = lines[at.line]
    column = next(column for column in range(len(row) + 1) if count_units(row, column) == at.character)
    rows = [*lines[: at.line], row[:column] + edit.new_text + row[column:], *lines[at.line + 1 :]]
    return Suppressions.from_text("\n".join(rows)).suppresses_finding(finding)


def do_overlap(one: types.Range, other: types.Range) -> bool:
    """Return True if two ranges overlap or touch."""

    def position_key(at: types.Position) -> tuple[int, int]:
        return at.line, at.character

    return position_key(one.start) <= position_key(other.end) and position_key(other.start) <= position_key(one.end)


def is_requested(only: Iterable[types.CodeActionKind | str] | None, kind: str) -> bool:
    """Return True if the requested kinds of code actions include a kind."""
    if only is None:
        return not kind.startswith("source")
    asked = [each.value if isinstance(each, types.CodeActionKind) else each for each in only]
    return any(kind == each or kind.startswith(f"{each}.") or not each for each in asked)
