"""Notebook cells: Python knows the code of a cell by a name of its own, and users know the notebook, cell and line."""

from __future__ import annotations

import copy
import linecache
import re
import sys
from collections.abc import Sequence

from ...protocol.finding import Finding
from ...protocol.sites import Site

#: Path of a notebook that runs in IPython, which does not know the file.
UNNAMED = "notebook"


class CellCode:
    """The notebook and the number of a cell, and the number of characters cut off before each line of its code.

    ``program`` is the code of all cells, in which the code of this cell begins at the index ``first_line``.
    """

    def __init__(
        self, path: str, number: int, cuts: Sequence[int] = (), program: Sequence[str] = (), first_line: int = 0
    ) -> None:
        self.path = path
        self.number = number
        self.cuts = cuts
        self.program = program
        self.first_line = first_line

    def place(self, site: Site, caller: Site | None) -> Site:
        """Return the location in the notebook of a location in this code."""
        column, end_column = site.column + self._cut(site.line), site.end_column + self._cut(site.end_line)
        return Site(self.path, site.line, column, site.end_line, end_column, site.function, caller, self.number)

    def _cut(self, line: int) -> int:
        return self.cuts[line - 1] if line <= len(self.cuts) else 0


#: Cells by the name of their code.
_known_cells: dict[str, CellCode] = {}


def register_cell(code_name: str, cell: CellCode) -> None:
    """Register the cell whose code is compiled under a name."""
    _known_cells[code_name] = cell


def find_cell(code_name: str) -> CellCode | None:
    """Return the cell whose code has a name: a registered cell, or a cell of the running IPython; else None."""
    return _known_cells.get(code_name) or _find_in_ipython(code_name)


def _find_in_ipython(code_name: str) -> CellCode | None:
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = None if get_shell is None else get_shell()
    # IPython shows ("Cell", "In[3]") in the place of the name.
    label = None if shell is None else shell.compile.format_code_name(code_name)
    number = None if label is None else re.search(r"\d+", label[1])
    return None if number is None else CellCode(UNNAMED, int(number[0]))


def locate_site(site: Site) -> Site:
    """Return a location with the cells in its call chain as users know them."""
    caller = None if site.caller is None else locate_site(site.caller)
    cell = find_cell(site.path)
    if cell is not None:
        return cell.place(site, caller)
    if caller is site.caller:
        return site
    return Site(site.path, site.line, site.column, site.end_line, site.end_column, site.function, caller)


def locate_finding(finding: Finding) -> Finding:
    """Return a finding with all locations as users know them."""
    site = locate_site(finding.site)
    trace = tuple(step.move(locate_site(step.site)) for step in finding.trace)
    if site is finding.site and all(new.site is old.site for new, old in zip(trace, finding.trace, strict=True)):
        return finding
    located = copy.copy(finding)
    located.site, located.trace = site, trace
    return located


def find_suppressed_text(finding: Finding) -> tuple[str, str, Finding]:
    """Return the file of a finding, its source text, and the finding at its lines of this text.

    A comment for a whole file applies to all cells of a notebook, so the text of a registered cell is the program.
    """
    cell = _known_cells.get(finding.filename)
    if cell is None:
        return finding.filename, "".join(linecache.getlines(finding.filename)), finding
    site, moved = finding.site, copy.copy(finding)
    first, last = site.line + cell.first_line, site.end_line + cell.first_line
    moved.site = Site(cell.path, first, site.column, last, site.end_column)
    return cell.path, "\n".join(cell.program), moved
