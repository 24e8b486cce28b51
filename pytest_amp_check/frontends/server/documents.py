"""What an editor has open: texts and notebooks, and the way between their places and those of findings."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

from lsprotocol import types
from pygls.uris import to_fs_path

from ...protocol.events import Site
from ...static.sources import code_blocks, source_files
from ..text import SourceLines

#: Where a line ends in the language server protocol. A form feed ends none, for which ``str.splitlines`` takes it.
_ENDS = re.compile(r"\r\n|\r|\n")
Change = types.TextDocumentContentChangePartial | types.TextDocumentContentChangeWholeDocument


class TextBuffer:
    """One text, in which the protocol counts UTF-16 code units of a line, and everything else characters."""

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
        """The characters before a position; one that lies behind the end of its line, or of all lines, is that end."""
        start = 0
        for number, match in enumerate(_ENDS.finditer(self.text)):
            if number == position.line:
                return start + count_characters(self.text[start : match.start()], position.character)
            start = match.end()
        behind = position.line > len(self.split_lines()) - 1
        return len(self.text) if behind else start + count_characters(self.text[start:], position.character)


def count_characters(line: str, units: int) -> int:
    """The number of characters of a line that so many UTF-16 code units hold."""
    if line.isascii():
        return min(units, len(line))
    for number, character in enumerate(line):
        if units <= 0:
            return number
        units -= 1 + (character > "\uffff")
    return len(line)


def count_units(line: str, column: int) -> int:
    """The number of UTF-16 code units of so many characters of a line."""
    before = line[:column]
    return len(before) + sum(character > "\uffff" for character in before)


class Document:
    """A file as it is in an editor, saved or not. The cells of a notebook have a buffer each, by their numbers."""

    def __init__(self, uri: str, version: int, buffers: dict[int | None, TextBuffer]) -> None:
        self.uri = uri
        self.version = version
        self.buffers = buffers
        found = to_fs_path(uri) if uri.startswith("file:") else None
        #: Absolute; empty for what was never saved, and for what can be no file.
        self.path = os.path.abspath(found) if found and "\0" not in found else ""

    @property
    def name(self) -> str:
        """What findings call it."""
        return self.path or f"<{self.uri}>"

    def read_text(self) -> str:
        return self.buffers[None].text

    def encode_text(self) -> bytes:
        """What the file would hold if it was saved now."""
        return source_files.encode_python(self.read_text())

    def list_addresses(self) -> list[tuple[str, int | None]]:
        """What diagnostics are published for: each address, with its version."""
        return [(buffer.uri, buffer.version) for buffer in self.buffers.values()]

    def find_buffer(self, site: Site) -> TextBuffer | None:
        return self.buffers.get(site.cell)

    def find_location(self, site: Site) -> tuple[str, types.Range] | None:
        """The address and range of a place; None for one that is shown nowhere."""
        buffer = self.find_buffer(site)
        if buffer is not None:
            return buffer.uri, find_range(site, buffer.split_lines())
        if None in self.buffers and code_blocks.is_notebook(self.name):
            # The JSON of a notebook as a text.
            sources = SourceLines({site.path: source_files.normalize_newlines(self.read_text())})
            line, column, _ = sources.locate_in_notebook(site, site.line)
            end, _, end_column = sources.locate_in_notebook(site, max(site.line, site.end_line))
            inner = Site(site.path, line, column, end, end_column)
            return self.uri, find_range(inner, self.buffers[None].split_lines())
        return None


class Notebook(Document):
    """A notebook whose cells the editor shows as texts of their own."""

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
        """The notebook as a file would hold it, without what its cells have put out."""
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
        """What happened to the cells; the addresses of those that are gone."""
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
    """The range of a place among lines."""
    last = max(site.end_line, site.line, 1)
    start = _find_position(lines, max(site.line, 1), site.column)
    end = _find_position(lines, last, site.end_column)
    return types.Range(start, max(start, end, key=lambda at: (at.line, at.character)))


def _find_position(lines: Sequence[str], line: int, column: int) -> types.Position:
    at = min(line, len(lines)) - 1
    return types.Position(at, count_units(lines[at], column))
