"""One program of a file, and where its lines stand in the file."""

from __future__ import annotations

import warnings

from ...protocol.events import Site
from ...protocol.finding import Finding, TraceStep
from .newer_syntax import Rejection, explain_rejection

#: Where a line of a program stands: its cell, its line there, and the characters that were cut off before it.
LinePosition = tuple[int | None, int, int]


class Block:
    """One program of a file.

    ``places`` says for each line of ``text`` where it stands, and is None where that is the same line of the file.
    ``broken`` says why the program is no Python.
    """

    __slots__ = ("line_positions", "parse_error", "text")

    def __init__(
        self, text: str, line_positions: list[LinePosition] | None = None, parse_error: Rejection | None = None
    ) -> None:
        self.text = text
        self.line_positions = line_positions
        self.parse_error = parse_error

    def move_findings(self, findings: list[Finding], path: str) -> list[Finding]:
        """Findings in this program of a file, moved to where its lines stand in the file.

        What they say of other files stays as it is: nothing imports a notebook or a piece of documentation.
        """
        if self.line_positions is None:
            return findings
        moved: dict[int, Site] = {}
        for finding in findings:
            finding.site = self._move_site(finding.site, path, moved)
            finding.witness = tuple(TraceStep(self._move_site(s.site, path, moved), s.text) for s in finding.witness)
        return findings

    def _move_site(self, site: Site, path: str, moved: dict[int, Site]) -> Site:
        known = moved.get(id(site))
        if known is None:
            caller = self._move_site(site.caller, path, moved) if site.caller is not None else None
            span = (site.line, site.column, site.end_line, site.end_column)
            cell = site.cell
            if site.path == path:
                cell, line, cut = self._position_of(site.line)
                last_cell, end_line, end_cut = self._position_of(site.end_line)
                span = (line, site.column + cut, end_line, site.end_column + end_cut)
                if last_cell != cell:
                    span = (line, site.column + cut, line, site.column + cut)
            known = moved[id(site)] = Site(site.path, *span, site.function, caller, cell)
        return known

    def _position_of(self, line: int) -> LinePosition:
        assert self.line_positions is not None
        return self.line_positions[min(line, len(self.line_positions)) - 1]


#: No future that Python knows: compiling ends there, right behind the parser, which is all that is wanted of it.
_PARSED_ONLY = "from __future__ import braces\n"


def is_parsable(text: str) -> bool:
    """Whether a text is Python, as far as the parser tells by itself; it may refuse more than is invalid.

    A syntax tree takes as long to make as all of the parsing, and is not asked for. Nor are the parser's warnings,
    which whoever has many texts switches off once for all of them.
    """
    try:
        compile(_PARSED_ONLY + text, "<unknown>", "exec", dont_inherit=True)
    except SyntaxError as error:
        # What is wrong in the text stands behind the first line.
        return error.lineno == 1
    except (ValueError, RecursionError, MemoryError):
        return False
    return False


def find_parse_error(text: str) -> Rejection | None:
    """Return why a text is no Python. None means that it is, or that only the analysis can tell."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if is_parsable(text):
            return None
        import ast

        try:
            ast.parse(text)
        except (SyntaxError, ValueError) as error:
            return explain_rejection(text, error)
        except (RecursionError, MemoryError):
            return None
    return None
