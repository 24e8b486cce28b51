"""Fixes as data: the text edits that correct a finding, and the safety of the edits."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

#: Sort key of an edit: cell, range, content.
Order = tuple[int, int, int, int, int, str]
#: A safe fix restores documented torch behavior only. An unsafe fix also changes values that a user may have tuned
#: around.
SAFE, UNSAFE = "safe", "unsafe"
APPLICABILITIES = (SAFE, UNSAFE)


class UnwritableFix(Exception):
    """Error for the edits of a fix that cannot be written; the message gives the reason."""


class Edit:
    """A text range, with lines from 1 and columns from 0, and the replacement text.

    Lines of ``content`` end in a newline character, independent of the line ends of the text. ``cell`` is the number of
    the notebook cell that contains the lines, or None.
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
        """Return the edit in the JSON format of ruff."""
        shown: dict[str, Any] = {
            "content": self.content,
            "location": {"row": self.line, "column": self.column + 1},
            "end_location": {"row": self.end_line, "column": self.end_column + 1},
        }
        return shown if self.cell is None else {"cell": self.cell, **shown}

    def __repr__(self) -> str:
        return f"<edit {self.line}:{self.column}-{self.end_line}:{self.end_column} {self.content!r}>"


class Fix:
    """Edits that are applied together or not at all. Several findings may share one fix.

    ``message`` describes the fix in the imperative. ``write_edits`` computes the edits, which costs more than offering
    the fix.
    """

    __slots__ = ("_edits", "_write_edits", "applicability", "message")

    def __init__(self, applicability: str, message: str, write_edits: Callable[[], Iterable[Edit]]) -> None:
        self.applicability = applicability
        self.message = message
        self._write_edits = write_edits
        self._edits: list[Edit] | None = None

    @property
    def edits(self) -> list[Edit]:
        """Sorted edits, computed at first use.

        :class:`UnwritableFix` is raised if the edits cannot be written.
        """
        if self._edits is None:
            self._edits = sorted(self._write_edits(), key=Edit.sort_key)
        return self._edits

    def identity_key(self) -> tuple[Order, ...]:
        """Return a key that is equal for fixes with the same edits."""
        return tuple(edit.sort_key() for edit in self.edits)

    def as_dict(self) -> dict[str, Any]:
        """Return the fix in the JSON format of ruff."""
        return {
            "applicability": self.applicability,
            "message": self.message,
            "edits": [edit.as_dict() for edit in self.edits],
        }

    def __repr__(self) -> str:
        return f"<{self.applicability} fix: {self.message}>"
