"""The programs of a notebook: its cells as Python, without what IPython alone understands."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator

from ...protocol.bounded_json import TooMuch, parse_json
from . import source_files
from .block import Block, invalid
from .newer_syntax import Rejection
from .source_files import Unreadable
from .tokens import refuse_dense

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def code_cells(text: str) -> Iterator[tuple[int, str]]:
    """The number, among all cells, and the source of each cell that holds Python code."""
    notebook = _parsed(text)
    if not _is_python(_mapped(notebook.get("metadata"))):
        return
    # Worksheets are those of the format 3, in which IPython wrote notebooks until 2015.
    holders = [notebook, *map(_mapped, _listed(notebook.get("worksheets")))]
    found = [_mapped(cell) for holder in holders for cell in _listed(holder.get("cells"))]
    for number, cell in enumerate(found, 1):
        editor = _mapped(_mapped(cell.get("metadata")).get("vscode")).get("languageId", "python")
        if cell.get("cell_type") == "code" and editor == "python" and cell.get("language", "python") == "python":
            source = cell.get("source", cell.get("input", ""))
            if isinstance(source, list):
                source = "".join(line for line in source if isinstance(line, str))
            if isinstance(source, str):
                yield number, source_files.newlines(source)


def _parsed(text: str) -> dict[str, Any]:
    """The JSON of a notebook. Raises :class:`Unreadable` for any other."""
    if not text.strip():
        raise Unreadable("a notebook is JSON, and this is empty")
    try:
        notebook = parse_json(text)
    except TooMuch as error:
        raise Unreadable(f"its JSON cannot be read: {error}") from None
    except ValueError as error:
        line = getattr(error, "lineno", 1)
        raise Unreadable(f"a notebook is JSON, and this is not: {getattr(error, 'msg', error)}", line) from None
    if not isinstance(notebook, dict):
        raise Unreadable("it is JSON, but no notebook")
    if not isinstance(notebook.get("cells", notebook.get("worksheets")), list):
        raise Unreadable("it is JSON, but no notebook: it has no list of cells")
    return notebook


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _mapped(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _is_python(metadata: dict[str, Any]) -> bool:
    """Whether a notebook says that it is in Python, or does not say in what."""
    language = _mapped(metadata.get("language_info")).get("name") or _mapped(metadata.get("kernelspec")).get("language")
    return not isinstance(language, str) or "python" in language.lower()


def programs(text: str, largest: int = 0) -> list[Block]:
    """The program that the cells of a notebook are, and after it the files that they write.

    Raise :class:`Unreadable` for more code than is parsed (0 is for no limit).
    """
    cells = list(code_cells(text))
    source_files.refuse_large(sum(len(source) for _, source in cells), largest)
    refuse_dense("\n".join(source for _, source in cells), largest)
    whole = Block("", [])
    assert whole.places is not None
    rows: list[str] = []
    written: list[Block] = []
    for number, source in cells:
        cell = _Cell(source)
        if cell.writes:
            block = Block("\n".join(cell.rows) + "\n", [(number, *place) for place in cell.places])
            if invalid(block.text) is None:
                written.append(block)
        elif cell.rows:
            if cell.error is not None and whole.broken is None:
                whole.broken = cell.error._replace(line=len(rows) + cell.error.line)
            rows += cell.rows
            whole.places += [(number, *place) for place in cell.places]
    if not rows:
        return written
    whole.text = "\n".join(rows) + "\n"
    return [whole, *written]


#: Cell magics that run the rest of their cell as a part of the program.
_RUNNING = frozenset(
    "capture debug heat ipytest local lprun memit mprun notify prun pyinstrument scalene snakeviz time timeit "
    "wandb".split()
)
#: Those that make a Python program of their own of it, or a file, which need not be Python.
_STANDALONE = frozenset("pypy python python3".split())
_FILES = frozenset({"file", "writefile"})
#: Commands that are often given without the sign that makes them one. IPython takes a line for one if it can be none
#: of Python's.
_AUTOMATIC = re.compile(
    r"(?:cat|cd|conda|cp|env|less|load_ext|ls|man|mamba|matplotlib|mkdir|more|mv|pip|pwd|reload_ext|rm|rmdir|run|uv)\s+[^\s=(,]"
)
#: Commands of a cell that are looked for one after the other: each time all of it is parsed again.
COMMANDS = 50
#: What a line of Python never begins with: magics, shell commands, help, automatic brackets and quotes.
_ESCAPES = tuple("%!?/,;")
_ASKING = re.compile(r"[^'\"#]*[\w*\])]\?{1,2}\s*$")
_ASSIGNED = re.compile(r"((?:[\w.,* \t]|\[[^\]]*\])+(?::[^=]+)?=[ \t]*)[%!](?!=)")
_TIMED = re.compile(r"%(?:time|prun|timeit((?:[ \t]+-(?:[nrp][ \t]*\d+|[tcqo]+))*))[ \t]+(?=[^\s-])")
#: What decides whether the next line begins a statement.
_LEXEMES = re.compile(
    r"""\#[^\n]*|\"{3}(?:\\.|[^\\])*?(?:\"{3}|\Z)|'{3}(?:\\.|[^\\])*?(?:'{3}|\Z)
    |"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?|[(\[{]|[)\]}]|\\\n|\n""",
    re.VERBOSE | re.DOTALL,
)
_UNKNOWN = "get_ipython()"


class _Cell:
    """The lines of a cell as Python, and of each the line of the cell and the characters that were cut off before it.

    ``writes`` says that the lines are a program of their own. ``error`` is a line among them, from 1, and why it is
    no Python.
    """

    __slots__ = ("error", "places", "rows", "writes")

    def __init__(self, source: str) -> None:
        lines = source.split("\n")
        if lines and not lines[-1]:
            lines.pop()
        self.rows = lines
        self.places = [(line, 0) for line in range(1, len(lines) + 1)]
        self.writes = False
        self.error: Rejection | None = None
        first = next((number for number, row in enumerate(lines) if row.strip()), len(lines))
        self._dedent(first)
        if not self._begin(first):
            self.rows, self.places = [], []
        elif not self.writes:
            self._translate(first)

    def _dedent(self, first: int) -> None:
        """Take the indentation of the first line from all, as IPython does."""
        if first == len(self.rows):
            return
        row = self.rows[first]
        indent = row[: len(row) - len(row.lstrip())]
        if indent:
            for number, each in enumerate(self.rows):
                if each.startswith(indent):
                    self._cut(number, each[len(indent) :], len(indent))

    def _cut(self, number: int, row: str, cut: int) -> None:
        self.rows[number] = row
        line, before = self.places[number]
        self.places[number] = (line, before + cut)

    def _begin(self, first: int) -> bool:
        """Take away the cell magics at the head; whether what is left is Python."""
        for number in range(first, len(self.rows)):
            row = self.rows[number].strip()
            if not row:
                continue
            if not row.startswith("%%"):
                return True
            self.rows[number] = ""
            name = re.split(r"\W", row[2:])[0]
            if name in _STANDALONE or (name in _FILES and row.rstrip("'\"").endswith(".py")):
                self.writes = True
                return True
            if name not in _RUNNING:
                return False
        return True

    def _translate(self, first: int) -> None:
        """Put Python in the place of what only IPython understands."""
        before = list(self.rows)
        if invalid("\n".join(before)) is None:
            return
        self._replace()
        error = invalid("\n".join(self.rows))
        for _ in range(COMMANDS):
            if error is None:
                break
            number = min(error.line, len(self.rows)) - 1
            if not _AUTOMATIC.match(self.rows[number]):
                break
            self.rows[number] = ""
            error = invalid("\n".join(self.rows))
        if error is not None and before[first].startswith("%"):
            # A magic that stands above text of its own, such as ``%sql`` and ``%md`` where there are more languages.
            self.rows, self.places, error = [], [], None
        self.error = error

    def _replace(self) -> None:
        text = "\n".join(self.rows)
        starts = [0, *(match.end() for match in re.finditer("\n", text))]
        number = 0
        while number < len(self.rows):
            row, last = self.rows[number], number
            start = len(row) - len(row.lstrip())
            said = row[start:]
            timed, assigned = _TIMED.match(said), _ASSIGNED.match(said)
            if timed and invalid(said[timed.end() :]) is None:
                self._cut(number, row[:start] + said[timed.end() :], timed.end())
            elif assigned or said.startswith(_ESCAPES) or _ASKING.match(said):
                # What stands alone leaves no statement: a comment for the whole file may follow.
                self.rows[number] = row[:start] + (
                    assigned.group(1) + _UNKNOWN if assigned else "pass" if start else ""
                )
                goes_on = row.endswith("\\")
                while goes_on and last + 1 < len(self.rows):
                    last += 1
                    goes_on = self.rows[last].endswith("\\")
                    self.rows[last] = ""
            else:
                last = bisect_right(starts, _end(text, starts[number])) - 1
            number = last + 1


def _end(text: str, start: int) -> int:
    """Where the line ends on which the Python statement does that begins at ``start``, as brackets and strings tell."""
    depth = 0
    for lexeme in _LEXEMES.finditer(text, start):
        found = lexeme.group()
        if found in "([{":
            depth += 1
        elif found in ")]}":
            depth -= 1
        elif found == "\n" and depth <= 0:
            return lexeme.start()
    return len(text)
