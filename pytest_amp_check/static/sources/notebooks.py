"""Programs of a notebook: the cells as Python, without IPython syntax."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from functools import partial

from ...protocol.bounded_json import JsonTooLarge, parse_json
from . import source_files
from .block import Block, LinePosition, find_parse_error
from .newer_syntax import Rejection
from .source_files import Unreadable
from .tokens import refuse_dense

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    #: Converts an IPython statement that begins in a line of a cell to one line of Python.
    Translate = Callable[[int, str], str]


def code_cells(text: str) -> Iterator[tuple[int, str]]:
    """Yield the source of each Python code cell, with the number of the cell among all cells."""
    notebook = _parse_notebook(text)
    if not _is_python(_as_dict(notebook.get("metadata"))):
        return
    # Worksheets belong to format 3, in which IPython wrote notebooks until 2015.
    holders = [notebook, *map(_as_dict, _as_list(notebook.get("worksheets")))]
    found = [_as_dict(cell) for holder in holders for cell in _as_list(holder.get("cells"))]
    for number, cell in enumerate(found, 1):
        editor = _as_dict(_as_dict(cell.get("metadata")).get("vscode")).get("languageId", "python")
        if cell.get("cell_type") == "code" and editor == "python" and cell.get("language", "python") == "python":
            source = cell.get("source", cell.get("input", ""))
            if isinstance(source, list):
                source = "".join(line for line in source if isinstance(line, str))
            if isinstance(source, str):
                yield number, source_files.normalize_newlines(source)


def _parse_notebook(text: str) -> dict[str, Any]:
    """Return the JSON object of a notebook. Raise :class:`Unreadable` for another text."""
    if not text.strip():
        raise Unreadable("a notebook is JSON, and this is empty")
    try:
        notebook = parse_json(text)
    except JsonTooLarge as error:
        raise Unreadable(f"its JSON cannot be read: {error}") from None
    except ValueError as error:
        line = getattr(error, "lineno", 1)
        raise Unreadable(f"a notebook is JSON, and this is not: {getattr(error, 'msg', error)}", line) from None
    if not isinstance(notebook, dict):
        raise Unreadable("it is JSON, but no notebook")
    if not isinstance(notebook.get("cells", notebook.get("worksheets")), list):
        raise Unreadable("it is JSON, but no notebook: it has no list of cells")
    return notebook


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _is_python(metadata: dict[str, Any]) -> bool:
    """Return True if a notebook declares Python, or declares no language."""
    language = _as_dict(metadata.get("language_info")).get("name") or _as_dict(metadata.get("kernelspec")).get(
        "language"
    )
    return not isinstance(language, str) or "python" in language.lower()


def split_programs(text: str, largest: int = 0) -> list[Block]:
    """Return the program of all cells, and the Python files that cells write.

    Raise :class:`Unreadable` for code above ``largest`` bytes (0 is no limit).
    """
    cells = list(code_cells(text))
    source_files.refuse_large(sum(len(source) for _, source in cells), largest)
    refuse_dense("\n".join(source for _, source in cells), largest)
    rows: list[str] = []
    line_positions: list[LinePosition] = []
    parse_error: Rejection | None = None
    written: list[Block] = []
    for number, source in cells:
        cell = _Cell(source, None)
        if cell.is_standalone:
            block = Block(_text_of(cell.rows), [(number, *position) for position in cell.line_positions])
            if find_parse_error(block.text) is None:
                written.append(block)
        elif cell.rows:
            if cell.parse_error is not None and parse_error is None:
                parse_error = cell.parse_error._replace(line=len(rows) + cell.parse_error.line)
            rows += cell.rows
            line_positions += [(number, *position) for position in cell.line_positions]
    return [Block(_text_of(rows), line_positions, parse_error), *written] if rows else written


def _text_of(rows: list[str]) -> str:
    return "".join([f"{row}\n" for row in rows])


def split_cells(text: str, translate: Callable[[int, int, str], str]) -> Iterator[tuple[int, Block]]:
    """Yield each Python cell as a program that runs, with the number of the cell among all cells.

    ``translate`` receives the cell, the line in the cell and the text of a statement of IPython, and returns one line
    of Python. Magics that only measure the code of a cell are left out, and the code runs as part of the notebook.
    """
    for number, source in code_cells(text):
        cell = _Cell(source, partial(translate, number))
        positions: list[LinePosition] = [(number, *position) for position in cell.line_positions]
        yield number, Block("\n".join(cell.rows) + "\n", positions)


#: Cell magics that run the rest of the cell as part of the program.
_RUNNING_MAGICS = frozenset(
    "amp capture debug heat ipytest local lprun memit mprun notify prun pyinstrument scalene snakeviz time timeit "
    "wandb".split()
)
#: Cell magics that run the cell as a separate Python program, or write the cell to a file of any kind.
_PROGRAM_MAGICS = frozenset("pypy python python3".split())
_FILE_MAGICS = frozenset({"file", "writefile"})
#: Commands that users often write without the percent sign. IPython runs a line as a command if the line is no Python.
_AUTOMATIC = re.compile(
    r"(?:cat|cd|conda|cp|env|less|load_ext|ls|man|mamba|matplotlib|mkdir|more|mv|pip|pwd|reload_ext|rm|rmdir|run|uv)\s+[^\s=(,]"
)
#: Maximum number of commands removed from a cell. Each removal parses the whole cell again.
MAX_COMMANDS = 50
#: Characters that never begin a line of Python: magics, shell commands, help, automatic brackets and quotes.
_ESCAPES = tuple("%!?/,;")
_HELP_REQUEST = re.compile(r"[^'\"#]*[\w*\])]\?{1,2}\s*$")
_ASSIGNED_MAGIC = re.compile(r"((?:[\w.,* \t]|\[[^\]]*\])+(?::[^=]+)?=[ \t]*)[%!](?!=)")
_TIMED_MAGIC = re.compile(r"%(?:time|prun|timeit((?:[ \t]+-(?:[nrp][ \t]*\d+|[tcqo]+))*))[ \t]+(?=[^\s-])")
#: Tokens that decide if the next line begins a statement.
_LEXEMES = re.compile(
    r"""\#[^\n]*|\"{3}(?:\\.|[^\\])*?(?:\"{3}|\Z)|'{3}(?:\\.|[^\\])*?(?:'{3}|\Z)
    |"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?|[(\[{]|[)\]}]|\\\n|\n""",
    re.VERBOSE | re.DOTALL,
)
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")
_UNKNOWN_VALUE = "get_ipython()"


class _Cell:
    """Cell as lines of Python; for each line, the line in the cell and the number of characters cut off before it.

    ``translate`` converts each statement of IPython. Without it, IPython is removed.

    ``is_standalone`` says that the lines are a separate program. ``parse_error`` has a line among them, from 1, and the
    reason why the lines are no valid Python.
    """

    __slots__ = ("is_standalone", "line_positions", "parse_error", "rows")

    def __init__(self, source: str, translate: Translate | None) -> None:
        lines = source.split("\n")
        if lines and not lines[-1]:
            lines.pop()
        self.rows = lines
        self.line_positions = [(line, 0) for line in range(1, len(lines) + 1)]
        self.is_standalone = False
        self.parse_error: Rejection | None = None
        first = next((number for number, row in enumerate(lines) if row.strip()), len(lines))
        self._dedent(first)
        is_python = self._remove_cell_magics(first)
        if not is_python or (self.is_standalone and translate is not None):
            self._replace_all(translate, first, source)
        elif not self.is_standalone:
            self._replace_ipython(first, translate, source)

    def _replace_all(self, translate: Translate | None, first: int, source: str) -> None:
        """Replace the whole cell, which is no part of the program, by the call that runs the cell in IPython."""
        self.rows = [] if translate is None else [translate(first + 1, source)]
        self.line_positions = self.line_positions[first : first + len(self.rows)]

    def _dedent(self, first: int) -> None:
        """Remove the indentation of the first line from all lines, as IPython does."""
        if first == len(self.rows):
            return
        row = self.rows[first]
        indent = row[: len(row) - len(row.lstrip())]
        if indent:
            for number, each in enumerate(self.rows):
                if each.startswith(indent):
                    self._cut_row(number, each[len(indent) :], len(indent))

    def _cut_row(self, number: int, row: str, cut: int) -> None:
        self.rows[number] = row
        line, before = self.line_positions[number]
        self.line_positions[number] = (line, before + cut)

    def _remove_cell_magics(self, first: int) -> bool:
        """Remove the cell magics at the top. Return True if the rest is Python."""
        for number in range(first, len(self.rows)):
            row = self.rows[number].strip()
            if not row:
                continue
            if not row.startswith("%%"):
                return True
            self.rows[number] = ""
            name = re.split(r"\W", row[2:])[0]
            if name in _PROGRAM_MAGICS or (name in _FILE_MAGICS and row.rstrip("'\"").endswith(".py")):
                self.is_standalone = True
                return True
            if name not in _RUNNING_MAGICS:
                return False
        return True

    def _replace_ipython(self, first: int, translate: Translate | None, source: str) -> None:
        """Replace IPython syntax by Python."""
        before = list(self.rows)
        if find_parse_error(_text_of(before)) is None:
            return
        self._replace_escapes(translate)
        error = find_parse_error(_text_of(self.rows))
        for _ in range(MAX_COMMANDS):
            if error is None:
                break
            number = min(error.line, len(self.rows)) - 1
            if not _AUTOMATIC.match(self.rows[number]):
                break
            row = self.rows[number]
            self.rows[number] = "" if translate is None else translate(number + 1, f"%{row}")
            error = find_parse_error(_text_of(self.rows))
        if error is not None and before[first].startswith("%"):
            # A magic for a text of its own, such as ``%sql`` or ``%md`` in notebooks with several languages.
            self._replace_all(translate, first, source)
            error = None
        self.parse_error = error

    def _replace_escapes(self, translate: Translate | None) -> None:
        text = _text_of(self.rows)
        starts = [0, *(match.end() for match in re.finditer("\n", text))]
        number = 0
        while number < len(self.rows):
            row, last = self.rows[number], number
            start = len(row) - len(row.lstrip())
            code = row[start:]
            timed, assigned = _TIMED_MAGIC.match(code), _ASSIGNED_MAGIC.match(code)
            if timed and find_parse_error(code[timed.end() :]) is None:
                self._cut_row(number, row[:start] + code[timed.end() :], timed.end())
            elif assigned or code.startswith(_ESCAPES) or _HELP_REQUEST.match(code):
                goes_on = row.endswith("\\")
                while goes_on and last + 1 < len(self.rows):
                    last += 1
                    goes_on = self.rows[last].endswith("\\")
                statement = [code, *self.rows[number + 1 : last + 1]]
                self.rows[number : last + 1] = [""] * len(statement)
                if translate is not None:
                    self.rows[number] = row[:start] + translate(number + 1, "\n".join(statement))
                else:
                    # A line without indentation becomes empty, not a statement: a comment for the file may follow.
                    self.rows[number] = row[:start] + (
                        assigned.group(1) + _UNKNOWN_VALUE if assigned else "pass" if start else ""
                    )
            else:
                last = bisect_right(starts, _statement_end(text, starts[number])) - 1
            number = last + 1


def _statement_end(text: str, start: int) -> int:
    """Return the end of the last line of the statement that begins at ``start``, found by brackets and strings."""
    depth = 0
    for lexeme in _LEXEMES.finditer(text, start):
        found = lexeme.group()
        if found in _OPENING:
            depth += 1
        elif found in _CLOSING:
            depth -= 1
        elif found == "\n" and depth <= 0:
            return lexeme.start()
    return len(text)
