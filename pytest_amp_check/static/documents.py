"""Programs that stand among other things: the cells of a notebook are one, each fenced block of Markdown is one.

A notebook runs cell by cell in one namespace, so its Python cells in order are one program, without what IPython alone
understands: magics, shell commands, help. A block of Markdown shows a piece of code and runs nowhere, so that each is a
program of its own, and one that is not valid Python is no mistake. Other files are one program from end to end.
"""

from __future__ import annotations

import re
import warnings

from ..protocol.events import Site
from ..protocol.finding import Finding, Step
from . import sources
from .search import Code
from .sources import Unreadable

#: Where a line of a program stands: its cell, its line there, and the characters that were cut off before it.
Place = tuple[int | None, int, int]


class Block:
    """One program of a file.

    ``places`` says for each line of ``text`` where it stands, and is None where that is the same line of the file.
    ``broken`` is the line of the program that is no Python, and why.
    """

    __slots__ = ("broken", "places", "text")

    def __init__(self, text: str, places: list[Place] | None = None, broken: tuple[int, str] | None = None) -> None:
        self.text = text
        self.places = places
        self.broken = broken

    def placed(self, findings: list[Finding], path: str) -> list[Finding]:
        """Findings in this program of a file, moved to where its lines stand in the file.

        What they say of other files stays as it is: nothing imports a notebook or a piece of documentation.
        """
        if self.places is None:
            return findings
        moved: dict[int, Site] = {}
        for finding in findings:
            finding.site = self._moved(finding.site, path, moved)
            finding.witness = tuple(Step(self._moved(s.site, path, moved), s.text) for s in finding.witness)
        return findings

    def _moved(self, site: Site, path: str, moved: dict[int, Site]) -> Site:
        known = moved.get(id(site))
        if known is None:
            caller = self._moved(site.caller, path, moved) if site.caller is not None else None
            span = (site.line, site.column, site.end_line, site.end_column)
            cell = site.cell
            if site.path == path:
                cell, line, cut = self._place(site.line)
                last_cell, end_line, end_cut = self._place(site.end_line)
                span = (line, site.column + cut, end_line, site.end_column + end_cut)
                if last_cell != cell:
                    span = (line, site.column + cut, line, site.column + cut)
            known = moved[id(site)] = Site(site.path, *span, site.function, caller, cell)
        return known

    def _place(self, line: int) -> Place:
        assert self.places is not None
        return self.places[min(line, len(self.places)) - 1]


# Which files are what.


def is_notebook(path: str) -> bool:
    return path.lower().endswith(".ipynb")


def is_markdown(path: str) -> bool:
    return path.lower().endswith(".md")


def decode(path: str, data: bytes) -> str:
    """The text of a file, with a newline character at the end of each line; see :func:`.sources.decode`."""
    if is_markdown(path):
        # Documentation in another encoding is documentation all the same, and its code is ASCII nearly always.
        return sources.newlines(data.decode("utf-8-sig", "replace"))
    if is_notebook(path):
        return sources.utf8(data)
    return sources.decode(data)


def blocks(path: str, text: str) -> list[Block]:
    """The programs in the text of a file. Raises :class:`Unreadable` for a notebook that is none."""
    if is_notebook(path):
        from . import notebooks

        return notebooks.programs(text)
    if is_markdown(path):
        from . import markdown

        shown = markdown.fenced(sources.newlines(text))
        sources.refuse_large(sum(len(block.text) for block in shown))
        return [block for block in shown if _speaks(block.text) and invalid(block.text) is None]
    return [Block(text)]


def _speaks(text: str) -> bool:
    return Code(text.encode("utf-8", "replace")).speaks()


def code(path: str, data: bytes) -> bytes:
    """What of a file may be Python, to be looked at before it is parsed; all of it, where that cannot be told.

    A notebook is mostly what its cells have put out, in megabytes of pictures. Its JSON is parsed all the same: that
    takes 10 ms per megabyte, and searching it for every word that matters takes 20 ms.
    """
    if is_notebook(path):
        from . import notebooks

        try:
            found = [source for _, source in notebooks.code_cells(decode(path, data))]
        except Unreadable:
            return data
    elif is_markdown(path):
        if not (re.search(rb"```[^\n`]*[pP][yY]", data) or re.search(rb"~~~[^\n]*[pP][yY]", data)):
            return b""
        from . import markdown

        found = [block.text for block in markdown.fenced(decode(path, data))]
    else:
        return data
    return "\n".join(found).encode("utf-8", "replace")


def cells(text: str) -> dict[int, str]:
    """The source of each code cell of a notebook by its number; none of a file that is no notebook."""
    from . import notebooks

    try:
        return dict(notebooks.code_cells(text))
    except Unreadable:
        return {}


def invalid(text: str) -> tuple[int, str] | None:
    """Where and why a text is no Python; None where it is, and where that can only be said by whoever reads it."""
    import ast

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ast.parse(text)
        except SyntaxError as error:
            return error.lineno or 1, sources.invalid(error)
        except ValueError as error:
            return 1, str(error)
        except (RecursionError, MemoryError):
            return None
    return None
