"""Source locations, with the chain of calls that led there."""

from __future__ import annotations

#: A call in source: path, line from 1, column from 0.
Call = tuple[str, int, int]


class Site:
    """A source location, with the chain of calls that led to the location.

    ``line`` and ``end_line`` count from 1, ``column`` and ``end_column`` from 0, in characters. ``caller`` is the
    location of the call that entered the function of this location, or None in the entry point. ``cell`` is the number
    of the notebook cell, from 1, and lines then count in this cell. ``cell`` is None in any other file.
    """

    __slots__ = ("caller", "cell", "column", "end_column", "end_line", "function", "line", "path")

    def __init__(
        self,
        path: str,
        line: int,
        column: int = 0,
        end_line: int | None = None,
        end_column: int | None = None,
        function: str = "",
        caller: Site | None = None,
        cell: int | None = None,
    ) -> None:
        self.path = path
        self.line = line
        self.column = column
        self.end_line = line if end_line is None else end_line
        self.end_column = column if end_column is None else end_column
        self.function = function
        self.caller = caller
        self.cell = cell

    def list_frames(self) -> list[Site]:
        """Return the calls that led to this location, outermost first, and the location itself."""
        chain: list[Site] = []
        site: Site | None = self
        while site is not None:
            chain.append(site)
            site = site.caller
        chain.reverse()
        return chain

    def call_chain(self) -> tuple[Call, ...]:
        """Return the keys of this call and of the calls that led to it, innermost first."""
        chain: list[Call] = []
        site: Site | None = self
        while site is not None:
            chain.append((site.path, site.line, site.column))
            site = site.caller
        return tuple(chain)

    def is_in_test(self) -> bool:
        """Return True if the location is in test code, or a test runs the code."""
        return is_test_file(self.path) or any(
            part.startswith("test_") for frame in self.list_frames() for part in frame.function.split(".")
        )

    @property
    def call_key(self) -> Call:
        """Return path, line and column, which identify a call for all callers."""
        return self.path, self.line, self.column

    @property
    def location_text(self) -> str:
        """Return path, cell and line as text."""
        return f"{self.path}:{self.line}" if self.cell is None else f"{self.path}:cell {self.cell}:{self.line}"

    def __repr__(self) -> str:
        return f"{self.location_text}:{self.column}"


def is_test_file(path: str) -> bool:
    """Return True for the path of a file that pytest collects as tests."""
    file = path.replace("\\", "/").rpartition("/")[2]
    return file.startswith("test_") or file.endswith("_test.py") or file == "conftest.py"


#: A trace: locations with texts.
TraceFacts = tuple[tuple[Site, str], ...]
