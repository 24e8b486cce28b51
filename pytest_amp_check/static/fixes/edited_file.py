"""A file that is being put right: its programs, and its bytes with edits made in them and nothing else touched."""

from __future__ import annotations

from copy import copy

from ...protocol.events import Site
from ...protocol.finding import Finding, Step
from ...protocol.fix import UNSAFE, Edit, Fix
from ..project.surroundings import Surroundings
from ..sources import programs, source_files
from ..sources.block import Block
from . import edits
from .layout import Layout
from .matchers import Unfit
from .rebuilt import Change, Rebuilt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .fixers import Needed
    from .queries import Fixer

#: The newest torch that a project is taken to have which does not say which: before 2.3, torch.amp had no GradScaler.
EVERY_TORCH = (2, 2)


class EditedFile:
    """One version of a file. Raises :class:`~..sources.source_files.Unreadable` for what is no text, or no notebook."""

    __slots__ = ("_programs", "around", "codec", "path", "raw", "text")

    def __init__(self, path: str, raw: str, codec: str, around: Surroundings | None = None) -> None:
        self.path = path
        self.raw = raw
        self.codec = codec
        self.around = around or Surroundings()
        self.text = source_files.newlines(raw)
        blocks = [] if programs.is_markdown(path) else programs.blocks(path, self.text)
        self._programs = [_Program(block, path, self.around) for block in blocks if block.broken is None]

    @classmethod
    def of(cls, path: str, data: bytes, around: Surroundings | None = None) -> EditedFile:
        if programs.is_notebook(path) or programs.is_markdown(path):
            programs.decode(path, data)
            codec = "utf-8-sig" if data.startswith(source_files.BYTE_ORDER_MARK) else "utf-8"
            return cls(path, data.decode(codec, "replace"), codec)
        return cls(path, *source_files.spelled(data), around)

    def data(self) -> bytes:
        """The bytes of this version. Raises UnicodeEncodeError for what the encoding of the file does not have."""
        return self.raw.encode(self.codec)

    def fix(self, finding: Finding, fixer: Fixer, applicability: str, needed: Needed | None = None) -> Fix:
        """The fix of a finding in this file, its edits where they stand in the file. Raises :class:`Unfit`.

        It is opt-in where it needs a torch that nothing says the project has.
        """
        for program in self._programs:
            inner = program.inward(finding)
            if inner is not None:
                message, changes = fixer(program.layout(), inner)
                version = needed(program.layout(), inner) if needed is not None else EVERY_TORCH
                if version > EVERY_TORCH and not self.around.declares(self.path, version):
                    applicability = UNSAFE
                return Fix(applicability, message, program.outward(changes))
        raise Unfit

    def edited(self, made: Iterable[Edit]) -> EditedFile:
        """The version with edits made, of which no two overlap."""
        if not programs.is_notebook(self.path):
            return EditedFile(self.path, edits.apply(self.raw, made), self.codec, self.around)
        from . import notebook_json

        by_cell: dict[int, list[Edit]] = {}
        for edit in made:
            by_cell.setdefault(edit.cell or 0, []).append(edit)
        raw = self.raw
        # From the last one on, so that the places of those before it stay what they are.
        for cell, (start, end) in sorted(notebook_json.spans(self.raw).items(), reverse=True):
            if cell in by_cell:
                source = notebook_json.edited(raw[start:end], by_cell.pop(cell), ascii_only=self.raw.isascii())
                raw = raw[:start] + source + raw[end:]
        if by_cell:
            raise Unfit
        return EditedFile(self.path, raw, self.codec, self.around)

    def parts(self) -> dict[int | None, str]:
        """The text of the file, or that of each cell of a notebook."""
        if programs.is_notebook(self.path):
            return dict(list[tuple[int | None, str]](programs.cells(self.text).items()))
        return {None: self.raw}


class _Program:
    """A program of a file, and the way between its lines and those of the file."""

    def __init__(self, block: Block, path: str, around: Surroundings) -> None:
        self._around = around
        self._block = block
        self._path = path
        self._layout: Layout | None = None
        self._rows = {(cell, line): at for at, (cell, line, _) in enumerate(block.places or ())}

    def layout(self) -> Layout:
        if self._layout is None:
            try:
                self._layout = Layout(self._block.text, self._path, self._around)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                raise Unfit from None
        return self._layout

    def inward(self, finding: Finding) -> Finding | None:
        """The finding with the lines that this program has; None for one of another program."""
        if self._block.places is None:
            return finding
        site = self._within(finding.site)
        if site is None:
            return None
        inner = copy(finding)
        inner.site = site
        steps = [(self._within(step.site), step.text) for step in finding.witness]
        inner.witness = tuple(Step(at, text) for at, text in steps if at is not None)
        return inner

    def _within(self, site: Site) -> Site | None:
        at = self._rows.get((site.cell, site.line))
        if at is None or site.path != self._path:
            return None
        assert self._block.places is not None
        cut = self._block.places[at][2]
        last = at + site.end_line - site.line
        return Site(site.path, at + 1, site.column - cut, last + 1, site.end_column - cut, site.function)

    def outward(self, changes: Sequence[Change]) -> Callable[[], list[Edit]]:
        """What gives the edits in the lines of the file. Raises :class:`Unfit` for what these do not have together."""
        if self._block.places is None:
            return lambda: [each.edit() if isinstance(each, Rebuilt) else each for each in changes]
        edits = [self._outward(each.reach if isinstance(each, Rebuilt) else each) for each in changes]
        return lambda: [
            self._outward(change.edit()) if isinstance(change, Rebuilt) else edit
            for change, edit in zip(changes, edits, strict=True)
        ]

    def _outward(self, edit: Edit) -> Edit:
        """The edit in the lines of the file."""
        places = self._block.places
        assert places is not None
        rows = self.layout().lines
        line, column, end_line, end_column = edit.line, edit.column, edit.end_line, edit.end_column
        if end_line > line and not end_column and not edit.content and not column:
            # Lines that are taken out: the one after them may be of another cell.
            end_line, end_column = end_line - 1, len(rows[end_line - 2])
            if line > 1 and places[line - 2][0] == places[line - 1][0]:
                line, column = line - 1, len(rows[line - 2])
        if end_line > len(places) or any(
            (cell, number - places[line - 1][1], cut) != (places[line - 1][0], at, 0)
            for at, (cell, number, cut) in enumerate(places[line - 1 : end_line])
        ):
            raise Unfit
        cell, first, _ = places[line - 1]
        return Edit(first, column, first + end_line - line, end_column, edit.content, cell)
