"""Comments that silence what was found, written into the sources: how an old code base begins."""

from __future__ import annotations

import re

from . import text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..protocol.finding import Finding
    from ..protocol.fix import Edit
    from ..static.fixes.edited_file import EditedFile
    from .write_guard import WriteGuard

#: What a comment in the source cannot silence, or what is about such a comment.
NEVER = frozenset(("AMP902", "AMP903"))
_LISTED = r"(?<!#)(#+\s*amp:\s*ignore\[)([^\]#]*)\]"


def add_ignores(findings: Sequence[Finding], write_guard: WriteGuard) -> tuple[int, int, list[str]]:
    """Silence findings by comments on their lines: how many, in how many files, and what could not be done.

    What may not be written, and what a comment cannot silence, is said.
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
                text.write_warning(refused)
                continue
            if outcome.has_changed:
                for sentence in fix_files.save_file(outcome):
                    text.write_warning(sentence)
                files += 1
        except source_files.Unreadable:
            # Nothing can be written into it, either.
            pass
        except fix_files.WriteRefused as error:
            wrong.append(str(error))
            continue
        number += len(silenced)
        for finding in left:
            text.write_warning(f"{finding.site.location_text}: a comment cannot silence {finding.code} here")
    return number, files, wrong


def _silence_findings(
    document: EditedFile, findings: Sequence[Finding]
) -> tuple[EditedFile, list[Finding], list[Finding]]:
    """A file with comments for findings, those that they silence, and those that they do not."""
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
    """The lines of a program, and where its statements end."""

    def __init__(self, source: str) -> None:
        self.lines = source.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self._last_lines = dict(_map_statement_lines(self.lines))

    def last_line_of(self, row: int) -> int:
        """The last line of the statement that a line belongs to: a comment there speaks of all of it."""
        return self._last_lines.get(row, row)

    def make_edit(self, row: int, codes: Iterable[str], cell: int | None) -> Edit:
        """What adds codes to the comment at the end of a line, or adds such a comment."""
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
    """Every line of a statement with the last line of it, as far as the source can be taken apart."""
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
    except (TokenError, SyntaxError):
        # A line of a notebook that is no Python: what follows it goes by its own lines.
        return
