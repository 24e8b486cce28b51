"""Code block: one program of a file, and the positions of its lines in the file."""

from __future__ import annotations

import warnings

from ...protocol.finding import Finding
from ...protocol.sites import Site
from .newer_syntax import Rejection, explain_rejection

#: Position of a line of a program: cell, line in the cell, and number of characters cut off before the line.
LinePosition = tuple[int | None, int, int]


class Block:
    """One program of a file.

    ``line_positions`` holds the position of each line of ``text``; None means the same lines as in the file.
    ``parse_error`` is the reason if the program is no valid Python.
    """

    __slots__ = ("line_positions", "parse_error", "text")

    def __init__(
        self, text: str, line_positions: list[LinePosition] | None = None, parse_error: Rejection | None = None
    ) -> None:
        self.text = text
        self.line_positions = line_positions
        self.parse_error = parse_error

    def move_findings(self, findings: list[Finding], path: str) -> list[Finding]:
        """Move the findings in this program to the positions of its lines in the file, and return the findings.

        Locations in other files stay unchanged: nothing imports a notebook or documentation.
        """
        if self.line_positions is None:
            return findings
        moved: dict[int, Site] = {}
        for finding in findings:
            finding.site = self._move_site(finding.site, path, moved)
            finding.trace = tuple(step.move(self._move_site(step.site, path, moved)) for step in finding.trace)
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


#: An unknown future feature: compilation stops there, directly after the parser, so that only the parser runs.
_PARSED_ONLY = "from __future__ import braces\n"


def is_parsable(text: str) -> bool:
    """Return True if the parser accepts a text. The parser alone may reject more than is invalid.

    No syntax tree is built, which would take as long as parsing. A caller with many texts switches off the parser's
    warnings once for all texts.
    """
    try:
        compile(_PARSED_ONLY + text, "<unknown>", "exec", dont_inherit=True)
    except SyntaxError as error:
        # An error in the text is behind the first line.
        return error.lineno == 1
    except (ValueError, RecursionError, MemoryError):
        pass
    return False


def find_parse_error(text: str) -> Rejection | None:
    """Return the reason why a text is no valid Python, or None. None also means that only the analysis can tell."""
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
