"""Source lines of files, notebooks and standard input, for messages."""

from __future__ import annotations

import sys
from collections.abc import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

    from ..protocol.sites import Site


#: Number of characters above which a file or cell is not split into lines to show one line.
SHOWN = 10_000_000


class NoStandardInput(Exception):
    """Error for missing standard input; the message is one sentence."""


def open_standard_input() -> TextIO:
    """Return standard input. Raise :class:`NoStandardInput` if the calling process closed standard input."""
    if sys.stdin is None:
        raise NoStandardInput("standard input is closed, so nothing can be read from it")
    reconfigure = getattr(sys.stdin, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")
    return sys.stdin


class SourceLines:
    """Lines of source files and notebook cells, for code frames. An unreadable file has no lines."""

    def __init__(self, texts: Mapping[str, str] | None = None) -> None:
        self._texts = dict(texts or {})
        self._lines_by_cell: dict[str, dict[int | None, list[str]]] = {}
        self._notebook_lines: dict[str, dict[tuple[int, int], tuple[int, int, int]]] = {}

    def _load_text(self, path: str) -> str:
        return self._texts[path] if path in self._texts else _read_text(path)

    def find_line(self, path: str, number: int, cell: int | None = None) -> str | None:
        parts = self._lines_by_cell.get(path)
        if parts is None:
            parts = self._lines_by_cell[path] = _split_cells(path, self._load_text(path))
        lines = parts.get(cell, [])
        return lines[number - 1] if 0 < number <= len(lines) else None

    def find_line_at(self, site: Site, number: int) -> str | None:
        """Return a line of the file or cell of a location, or None."""
        return self.find_line(site.path, number, site.cell)

    def locate_in_notebook(self, site: Site, number: int) -> tuple[int, int, int]:
        """Return the position of a cell line in the notebook's JSON: line from 1, start and end column from 0."""
        known = self._notebook_lines.get(site.path)
        if known is None:
            from ..static.fixes import notebook_json

            known = self._notebook_lines[site.path] = notebook_json.find_line_locations(self._load_text(site.path))
        return known.get((site.cell or 0, number), (1, 0, 0))


def _split_cells(path: str, text: str) -> dict[int | None, list[str]]:
    """Return the lines of a file, or of each cell of a notebook."""
    if path.lower().endswith(".ipynb"):
        from ..static.sources import code_blocks

        return {number: _split_lines(source) for number, source in code_blocks.notebook_cells(text).items()}
    return {None: _split_lines(text)}


def _read_text(path: str) -> str:
    from ..static.sources import code_blocks, source_files

    try:
        data = code_blocks.load_source(path, SHOWN)
    except source_files.Unreadable:
        return ""
    try:
        return code_blocks.decode_source(path, data)
    except source_files.Unreadable:
        return data.decode("utf-8", "replace")


def _split_lines(text: str) -> list[str]:
    if len(text) > SHOWN:
        return []
    # No splitlines: a form feed or line separator inside a line does not end the line in Python.
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
