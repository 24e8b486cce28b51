"""Open documents of an editor: texts and notebooks, and the conversion of positions."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

from lsprotocol import types
from pygls.uris import to_fs_path

from ...protocol.sites import Site
from ...static.sources import code_blocks, source_files
from ..source_lines import SourceLines

#: Line ends in the language server protocol. A form feed is no line end, unlike in ``str.splitlines``.
_ENDS = re.compile(r"\r\n|\r|\n")
Change = types.TextDocumentContentChangePartial | types.TextDocumentContentChangeWholeDocument


class TextBuffer:
    """One text. The protocol counts UTF-16 code units in a line; all other code counts characters."""

    def __init__(self, uri: str, version: int, text: str) -> None:
        self.uri = uri
        self.version = version
        self.text = text

    def split_lines(self) -> list[str]:
        return _ENDS.split(self.text)

    def apply_changes(self, changes: Iterable[Change], version: int) -> None:
        self.version = version
        for change in changes:
            if isinstance(change, types.TextDocumentContentChangeWholeDocument):
                self.text = change.text
            else:
                start, end = self._find_offset(change.range.start), self._find_offset(change.range.end)
                self.text = self.text[:start] + change.text + self.text[max(start, end) :]

    def _find_offset(self, position: types.Position) -> int:
        """Return the character offset of a position.

        A position behind the end of a line or text is moved to the end.
        """
        start = 0
        for number, match in enumerate(_ENDS.finditer(self.text)):
            if number == position.line:
                return start + count_characters(self.text[start : match.start()], position.character)
            start = match.end()
        behind = position.line > len(self.split_lines()) - 1
        return len(self.text) if behind else start + count_characters(self.text[start:], position.character)


def count_characters(line: str, units: int) -> int:
    """Return the number of characters in a number of UTF-16 code units of a line."""
    if line.isascii():
        return min(units, len(line))
    for number, character in enumerate(line):
        if units <= 0:
            return number
        units -= 1 + (character > "\uffff")
    return len(line)


def count_units(line: str, column: int) -> int:
    """Return the number of UTF-16 code units in a number of characters of a line."""
    before = line[:column]
    return len(before) + sum(character > "\uffff" for character in before)


class Document:
    """A file in an editor, saved or not. Each cell of a notebook has a separate buffer, by number."""

    def __init__(self, uri: str, version: int, buffers: dict[int | None, TextBuffer]) -> None:
        self.uri = uri
        self.version = version
        self.buffers = buffers
        found = to_fs_path(uri) if uri.startswith("file:") else None
        #: Absolute path; empty if never saved, or if no file can have the name.
        self.path = os.path.abspath(found) if found and "\0" not in found else ""

    @property
    def name(self) -> str:
        """Name of the document in findings."""
        return self.path or f"<{self.uri}>"

    def read_text(self) -> str:
        return self.buffers[None].text

    def encode_text(self) -> bytes:
        """Return the content of the file if saved now."""
        return source_files.encode_python(self.read_text())

    def list_addresses(self) -> list[tuple[str, int | None]]:
        """Return the addresses for diagnostics, each with the version."""
        return [(buffer.uri, buffer.version) for buffer in self.buffers.values()]

    def find_buffer(self, site: Site) -> TextBuffer | None:
        return self.buffers.get(site.cell)

    def find_location(self, site: Site) -> tuple[str, types.Range] | None:
        """Return the address and range of a source location, or None if not displayed."""
        buffer = self.find_buffer(site)
        if buffer is not None:
            return buffer.uri, find_range(site, buffer.split_lines())
        if None in self.buffers and code_blocks.is_notebook(self.name):
            # The editor shows the notebook's JSON as text.
            sources = SourceLines({site.path: source_files.normalize_newlines(self.read_text())})
            line, column, _ = sources.locate_in_notebook(site, site.line)
            end, _, end_column = sources.locate_in_notebook(site, max(site.line, site.end_line))
            inner = Site(site.path, line, column, end, end_column)
            return self.uri, find_range(inner, self.buffers[None].split_lines())
        return None


class Notebook(Document):
    """A notebook whose cells the editor shows as separate texts."""

    def __init__(self, opened: types.NotebookDocument, texts: Sequence[types.TextDocumentItem]) -> None:
        super().__init__(opened.uri, opened.version, {})
        self._cells = list(opened.cells)
        self._buffers_by_uri = {item.uri: TextBuffer(item.uri, item.version, item.text) for item in texts}
        self._languages = {item.uri: item.language_id for item in texts}
        self._number_cells()

    def _number_cells(self) -> None:
        found = ((number, self._buffers_by_uri.get(cell.document)) for number, cell in enumerate(self._cells, 1))
        self.buffers = {number: buffer for number, buffer in found if buffer is not None}

    def read_text(self) -> str:
        """Return the notebook as a file would contain it, without cell outputs."""
        cells: list[dict[str, Any]] = []
        for cell in self._cells:
            buffer = self._buffers_by_uri.get(cell.document)
            code = cell.kind == types.NotebookCellKind.Code
            language = self._languages.get(cell.document, "python")
            metadata = {"vscode": {"languageId": language}} if code and language != "python" else {}
            source = buffer.text if buffer is not None else ""
            cells.append({"cell_type": "code" if code else "markdown", "metadata": metadata, "source": source})
        return json.dumps({"cells": cells})

    def apply_change(self, event: types.NotebookDocumentChangeEvent, version: int) -> list[str]:
        """Apply a change of the cells, and return the addresses of removed cells."""
        self.version = version
        gone: list[str] = []
        cells = event.cells
        if cells is None:
            return gone
        if cells.structure is not None:
            array = cells.structure.array
            self._cells[array.start : array.start + array.delete_count] = array.cells or []
            for item in cells.structure.did_open or ():
                self._buffers_by_uri[item.uri] = TextBuffer(item.uri, item.version, item.text)
                self._languages[item.uri] = item.language_id
            gone = [closed.uri for closed in cells.structure.did_close or ()]
            for uri in gone:
                self._buffers_by_uri.pop(uri, None)
        kinds = {cell.document: cell for cell in cells.data or ()}
        self._cells = [kinds.get(cell.document, cell) for cell in self._cells]
        for text in cells.text_content or ():
            if text.document.uri in self._buffers_by_uri:
                self._buffers_by_uri[text.document.uri].apply_changes(text.changes, text.document.version)
        self._number_cells()
        return gone


def find_range(site: Site, lines: Sequence[str]) -> types.Range:
    """Return the range of a source location in lines."""
    last = max(site.end_line, site.line, 1)
    start = _find_position(lines, max(site.line, 1), site.column)
    end = _find_position(lines, last, site.end_column)
    return types.Range(start, max(start, end, key=lambda at: (at.line, at.character)))


def _find_position(lines: Sequence[str], line: int, column: int) -> types.Position:
    at = min(line, len(lines)) - 1
    return types.Position(at, count_units(lines[at], column))
