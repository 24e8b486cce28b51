"""A file under edit: the programs in the file, and the bytes with edits applied and all other content unchanged."""

from __future__ import annotations

from copy import copy

from ...protocol.finding import Finding
from ...protocol.fix import UNSAFE, Edit, Fix
from ...protocol.sites import Site
from ..project.project_context import ProjectContext
from ..sources import code_blocks, source_files
from ..sources.block import Block
from . import edits
from .layout import ProgramLayout
from .matchers import NotFixable
from .pending_rewrites import Change, PendingRewrite

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .fixers import Needed
    from .queries import Fixer

#: Version assumed for a project without a declared torch version: torch.amp had no GradScaler before 2.3.
EVERY_TORCH = (2, 2)


class EditedFile:
    """One version of a file.

    :class:`~..sources.source_files.Unreadable` is raised for content that is no text or no notebook.
    """

    __slots__ = ("_programs", "codec", "path", "raw_text", "surroundings", "text")

    def __init__(self, path: str, raw_text: str, codec: str, surroundings: ProjectContext | None = None) -> None:
        self.path = path
        self.raw_text = raw_text
        self.codec = codec
        self.surroundings = surroundings or ProjectContext()
        self.text = source_files.normalize_newlines(raw_text)
        blocks = [] if code_blocks.is_markdown(path) else code_blocks.split_blocks(path, self.text)
        self._programs = [_Program(block, path, self.surroundings) for block in blocks if block.parse_error is None]

    @classmethod
    def from_bytes(cls, path: str, data: bytes, surroundings: ProjectContext | None = None) -> EditedFile:
        if code_blocks.is_notebook(path) or code_blocks.is_markdown(path):
            code_blocks.decode_source(path, data)
            codec = "utf-8-sig" if data.startswith(source_files.BYTE_ORDER_MARK) else "utf-8"
            return cls(path, data.decode(codec, "replace"), codec)
        return cls(path, *source_files.decode_with_encoding(data), surroundings)

    def encode_text(self) -> bytes:
        """Return the bytes of this version. Raise UnicodeEncodeError for characters outside the file's encoding."""
        return self.raw_text.encode(self.codec)

    def make_fix(self, finding: Finding, fixer: Fixer, applicability: str, needed: Needed | None = None) -> Fix:
        """Return the fix of a finding in this file, with file positions. Raise :class:`.NotFixable` if there is none.

        The fix is unsafe if the project declares no sufficiently new torch version.
        """
        for program in self._programs:
            inner = program.to_program(finding)
            if inner is not None:
                message, changes = fixer(program.get_layout(), inner)
                version = needed(program.get_layout(), inner) if needed is not None else EVERY_TORCH
                if version > EVERY_TORCH and not self.surroundings.declares_version(self.path, version):
                    applicability = UNSAFE
                return Fix(applicability, message, program.to_file(changes))
        raise NotFixable

    def with_edits(self, new_edits: Iterable[Edit]) -> EditedFile:
        """Return the version with edits applied. The edits must not overlap."""
        if not code_blocks.is_notebook(self.path):
            return EditedFile(self.path, edits.apply_edits(self.raw_text, new_edits), self.codec, self.surroundings)
        from . import notebook_json

        by_cell: dict[int, list[Edit]] = {}
        for edit in new_edits:
            by_cell.setdefault(edit.cell or 0, []).append(edit)
        raw = self.raw_text
        # From last to first, so that the positions of earlier cells stay valid.
        for cell, (start, end) in sorted(notebook_json.find_source_spans(self.raw_text).items(), reverse=True):
            if cell in by_cell:
                source = notebook_json.edit_source(
                    raw[start:end], by_cell.pop(cell), ascii_only=self.raw_text.isascii()
                )
                raw = raw[:start] + source + raw[end:]
        if by_cell:
            raise NotFixable
        return EditedFile(self.path, raw, self.codec, self.surroundings)

    def cell_texts(self) -> dict[int | None, str]:
        """Return the text of the file under None, or the text of each cell of a notebook."""
        if code_blocks.is_notebook(self.path):
            return dict(list[tuple[int | None, str]](code_blocks.notebook_cells(self.text).items()))
        return {None: self.raw_text}


class _Program:
    """A program in a file, and the conversion between program lines and file lines."""

    def __init__(self, block: Block, path: str, surroundings: ProjectContext) -> None:
        self._surroundings = surroundings
        self._block = block
        self._path = path
        self._layout: ProgramLayout | None = None
        self._line_numbers = {(cell, line): at for at, (cell, line, _) in enumerate(block.line_positions or ())}

    def get_layout(self) -> ProgramLayout:
        if self._layout is None:
            try:
                self._layout = ProgramLayout(self._block.text, self._path, self._surroundings)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                raise NotFixable from None
        return self._layout

    def to_program(self, finding: Finding) -> Finding | None:
        """Return the finding with the lines of this program, or None for a finding of another program."""
        if self._block.line_positions is None:
            return finding
        site = self._site_in_program(finding.site)
        if site is None:
            return None
        inner = copy(finding)
        inner.site = site
        moved = [(self._site_in_program(step.site), step) for step in finding.trace]
        inner.trace = tuple(step.move(at) for at, step in moved if at is not None)
        return inner

    def _site_in_program(self, site: Site) -> Site | None:
        at = self._line_numbers.get((site.cell, site.line))
        if at is None or site.path != self._path:
            return None
        assert self._block.line_positions is not None
        cut = self._block.line_positions[at][2]
        last = at + site.end_line - site.line
        return Site(site.path, at + 1, site.column - cut, last + 1, site.end_column - cut, site.function)

    def to_file(self, changes: Sequence[Change]) -> Callable[[], list[Edit]]:
        """Return a function that returns the edits in file lines.

        Raise :class:`.NotFixable` if the lines are not contiguous.
        """
        if self._block.line_positions is None:
            return lambda: [each.make_edit() if isinstance(each, PendingRewrite) else each for each in changes]
        edits = [self._edit_in_file(each.full_edit if isinstance(each, PendingRewrite) else each) for each in changes]
        return lambda: [
            self._edit_in_file(change.make_edit()) if isinstance(change, PendingRewrite) else edit
            for change, edit in zip(changes, edits, strict=True)
        ]

    def _edit_in_file(self, edit: Edit) -> Edit:
        """Return the edit in file lines."""
        places = self._block.line_positions
        assert places is not None
        rows = self.get_layout().lines
        line, column, end_line, end_column = edit.line, edit.column, edit.end_line, edit.end_column
        if end_line > line and not end_column and not edit.content and not column:
            # Removed lines: the next line may belong to another cell.
            end_line, end_column = end_line - 1, len(rows[end_line - 2])
            if line > 1 and places[line - 2][0] == places[line - 1][0]:
                line, column = line - 1, len(rows[line - 2])
        if end_line > len(places) or any(
            (cell, number - places[line - 1][1], cut) != (places[line - 1][0], at, 0)
            for at, (cell, number, cut) in enumerate(places[line - 1 : end_line])
        ):
            raise NotFixable
        cell, first, _ = places[line - 1]
        return Edit(first, column, first + end_line - line, end_column, edit.content, cell)
