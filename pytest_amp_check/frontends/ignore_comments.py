"""Suppression comments for existing findings, added to sources: the start for an old code base."""

from __future__ import annotations

import re

from . import output

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..protocol.finding import Finding
    from ..protocol.fix import Edit
    from ..static.fixes.edited_file import EditedFile
    from .write_guard import WriteGuard

#: Rules that a comment cannot suppress, or that concern such comments.
NEVER = frozenset(("AMP902", "AMP903"))
_LISTED = r"(?<!#)(#+\s*amp:\s*ignore\[)([^\]#]*)\]"


def add_ignores(findings: Sequence[Finding], write_guard: WriteGuard) -> tuple[int, int, list[str]]:
    """Suppress findings by comments. Return the number of findings, the number of files, and sentences about failures.

    Failures are files that must not be written, and findings that a comment cannot suppress.
    """
    from ..static.fixes import fix_files
    from ..static.fixes.edited_file import EditedFile
    from ..static.sources import source_files

    by_path: dict[str, list[Finding]] = {}
    for finding in findings:
        by_path.setdefault(finding.filename, []).append(finding)
    number = files = 0
    wrong: list[str] = []
    for path, found in by_path.items():
        silenced: list[Finding] = []
        left = found
        try:
            outcome = fix_files.FixResult(EditedFile.from_bytes(path, source_files.load_bytes(path)))
            outcome.fixed_document, silenced, left = _silence_findings(outcome.original, found)
            refused = write_guard.explain_refusal(path) if outcome.has_changed else ""
            if refused:
                output.write_warning(refused)
                continue
            if outcome.has_changed:
                for sentence in fix_files.save_file(outcome):
                    output.write_warning(sentence)
                files += 1
        except source_files.Unreadable:
            # An unreadable file cannot be written, either.
            pass
        except fix_files.WriteRefused as error:
            wrong.append(str(error))
            continue
        number += len(silenced)
        for finding in left:
            output.write_warning(f"{finding.site.location_text}: a comment cannot silence {finding.code} here")
    return number, files, wrong


def _silence_findings(
    document: EditedFile, findings: Sequence[Finding]
) -> tuple[EditedFile, list[Finding], list[Finding]]:
    """Return a file with comments for findings, the suppressed findings, and the remaining findings."""
    from ..protocol.suppressions import Suppressions
    from ..static.fixes.matchers import NotFixable
    from ..static.sources import code_blocks

    wanted = (
        []
        if code_blocks.is_markdown(document.path)
        else [f for f in findings if f.code not in NEVER and f.elsewhere is None]
    )
    made: list[Edit] = []
    rows = {cell: _StatementLines(part) for cell, part in document.cell_texts().items()} if wanted else {}
    codes: dict[tuple[int | None, int], set[str]] = {}
    for finding in wanted:
        if finding.cell in rows:
            codes.setdefault((finding.cell, rows[finding.cell].last_line_of(finding.line)), set()).add(finding.code)
    for (cell, row), listed in codes.items():
        made.append(rows[cell].make_edit(row, listed, cell))
    try:
        version = document.with_edits(made)
    except NotFixable:
        return document, [], list(findings)
    silencing = {cell: Suppressions.from_text(part) for cell, part in version.cell_texts().items()}
    done = [f for f in wanted if f.cell in silencing and silencing[f.cell].suppresses_finding(f)]
    kept = {id(finding) for finding in done}
    left = [finding for finding in findings if id(finding) not in kept]
    return version, done, left


class _StatementLines:
    """The lines of a program, with the last line of each statement."""

    def __init__(self, source: str) -> None:
        self.lines = source.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self._last_lines = dict(_map_statement_lines(self.lines))

    def last_line_of(self, row: int) -> int:
        """Return the last line of the statement that contains a line.

        A comment there applies to the whole statement.
        """
        return self._last_lines.get(row, row)

    def make_edit(self, row: int, codes: Iterable[str], cell: int | None) -> Edit:
        """Return the edit that adds codes to the comment at the end of a line, or adds a comment."""
        from ..protocol.fix import Edit

        line = self.lines[row - 1]
        listed = re.search(_LISTED, line)
        if listed is not None:
            known = re.findall(r"[^,\s]+", listed.group(2))
            words = ", ".join([*known, *sorted(set(codes) - set(known))])
            return Edit(row, listed.start(2), row, listed.end(2), words, cell)
        end = len(line.rstrip())
        return Edit(row, end, row, len(line), f"  # amp: ignore[{', '.join(sorted(codes))}]", cell)


def _map_statement_lines(lines: list[str]) -> Iterable[tuple[int, int]]:
    """Yield every line of a statement with the last line of the statement, as far as the source can be tokenized."""
    from io import StringIO
    from tokenize import COMMENT, DEDENT, ENDMARKER, INDENT, NEWLINE, NL, TokenError, generate_tokens

    first = 0
    try:
        for kind, _, (row, _), _, _ in generate_tokens(StringIO("\n".join(lines)).readline):
            if kind == NEWLINE:
                yield from ((each, row) for each in range(first, row + 1))
                first = 0
            elif kind not in (NL, COMMENT, INDENT, DEDENT, ENDMARKER) and not first:
                first = row
    except (TokenError, SyntaxError, SystemError):
        # A notebook line that is no Python, or a null byte (3.12 and later): following lines are treated separately.
        return
