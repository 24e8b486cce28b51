"""A fix is data: the edits of a text that put a finding right, and how safe they are."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

#: What edits are sorted by: cell, range, content.
Order = tuple[int, int, int, int, int, str]
#: Whether a fix restores what torch documents and nothing else, or also changes what a user may have tuned around.
SAFE, UNSAFE = "safe", "unsafe"
APPLICABILITIES = (SAFE, UNSAFE)


class UnwritableFix(Exception):
    """The edits of a fix cannot be written after all; the message says why."""


class Edit:
    """A range of a text, lines from 1 and columns from 0, and what is to stand there instead.

    Lines of ``content`` end in a newline character, whatever ends those of the text. ``cell`` is the number of the
    notebook cell whose lines are counted.
    """

    __slots__ = ("cell", "column", "content", "end_column", "end_line", "line")

    def __init__(
        self, line: int, column: int, end_line: int, end_column: int, content: str, cell: int | None = None
    ) -> None:
        self.cell = cell
        self.line = line
        self.column = column
        self.end_line = end_line
        self.end_column = end_column
        self.content = content

    def sort_key(self) -> Order:
        return (self.cell or 0, self.line, self.column, self.end_line, self.end_column, self.content)

    def as_dict(self) -> dict[str, Any]:
        """The edit in the shape ruff's JSON has."""
        shown: dict[str, Any] = {
            "content": self.content,
            "location": {"row": self.line, "column": self.column + 1},
            "end_location": {"row": self.end_line, "column": self.end_column + 1},
        }
        return shown if self.cell is None else {"cell": self.cell, **shown}

    def __repr__(self) -> str:
        return f"<edit {self.line}:{self.column}-{self.end_line}:{self.end_column} {self.content!r}>"


class Fix:
    """Edits that belong together: all of them are made, or none. Several findings may share one fix.

    ``message`` says what is done, as a request. ``write`` gives the edits, which cost more than the offer of them.
    """

    __slots__ = ("_edits", "_write_edits", "applicability", "message")

    def __init__(self, applicability: str, message: str, write_edits: Callable[[], Iterable[Edit]]) -> None:
        self.applicability = applicability
        self.message = message
        self._write_edits = write_edits
        self._edits: list[Edit] | None = None

    @property
    def edits(self) -> list[Edit]:
        """The edits in their order, written when they are first asked for. Raises :class:`Unwritten`."""
        if self._edits is None:
            self._edits = sorted(self._write_edits(), key=Edit.sort_key)
        return self._edits

    def identity_key(self) -> tuple[Order, ...]:
        """What two fixes have in common that do the same."""
        return tuple(edit.sort_key() for edit in self.edits)

    def as_dict(self) -> dict[str, Any]:
        """The fix in the shape ruff's JSON has."""
        return {
            "applicability": self.applicability,
            "message": self.message,
            "edits": [edit.as_dict() for edit in self.edits],
        }

    def __repr__(self) -> str:
        return f"<{self.applicability} fix: {self.message}>"
