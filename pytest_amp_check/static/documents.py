"""Programs that stand among other things: the cells of a notebook are one, each fenced block of Markdown is one.

A notebook runs cell by cell in one namespace, so its Python cells in order are one program, without what IPython alone
understands: magics, shell commands, help. A block of Markdown shows a piece of code and runs nowhere, so that each is a
program of its own, and one that is not valid Python is no mistake. Other files are one program from end to end.
"""

from __future__ import annotations

import re
import warnings
from bisect import bisect_right
from collections.abc import Iterator

from ..protocol.events import Site
from ..protocol.finding import Finding, Step
from . import sources
from .search import Code
from .sources import Unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Where a line of a program stands: its cell, its line there, and the characters that were cut off before it.
Place = tuple[int | None, int, int]


class Block:
    """One program of a file.

    ``places`` says for each line of ``text`` where it stands, and is None where that is the same line of the file.
    ``broken`` is the line of the program that is no Python, and why.
    """

    __slots__ = ("broken", "places", "text")

    def __init__(self, text: str, places: list[Place] | None = None, broken: tuple[int, str] | None = None) -> None:
        self.text = text
        self.places = places
        self.broken = broken

    def placed(self, findings: list[Finding], path: str) -> list[Finding]:
        """Findings in this program of a file, moved to where its lines stand in the file.

        What they say of other files stays as it is: nothing imports a notebook or a piece of documentation.
        """
        if self.places is None:
            return findings
        moved: dict[int, Site] = {}
        for finding in findings:
            finding.site = self._moved(finding.site, path, moved)
            finding.witness = tuple(Step(self._moved(s.site, path, moved), s.text) for s in finding.witness)
        return findings

    def _moved(self, site: Site, path: str, moved: dict[int, Site]) -> Site:
        known = moved.get(id(site))
        if known is None:
            caller = self._moved(site.caller, path, moved) if site.caller is not None else None
            span = (site.line, site.column, site.end_line, site.end_column)
            cell = site.cell
            if site.path == path:
                cell, line, cut = self._place(site.line)
                last_cell, end_line, end_cut = self._place(site.end_line)
                span = (line, site.column + cut, end_line, site.end_column + end_cut)
                if last_cell != cell:
                    span = (line, site.column + cut, line, site.column + cut)
            known = moved[id(site)] = Site(site.path, *span, site.function, caller, cell)
        return known

    def _place(self, line: int) -> Place:
        assert self.places is not None
        return self.places[min(line, len(self.places)) - 1]


# Which files are what.


def is_notebook(path: str) -> bool:
    return path.lower().endswith(".ipynb")


def is_markdown(path: str) -> bool:
    return path.lower().endswith(".md")


def decode(path: str, data: bytes) -> str:
    """The text of a file, with a newline character at the end of each line; see :func:`.sources.decode`."""
    if is_markdown(path):
        # Documentation in another encoding is documentation all the same, and its code is ASCII nearly always.
        return sources.newlines(data.decode("utf-8-sig", "replace"))
    if is_notebook(path):
        return sources.utf8(data)
    return sources.decode(data)


def blocks(path: str, text: str) -> list[Block]:
    """The programs in the text of a file. Raises :class:`Unreadable` for a notebook that is none."""
    if is_notebook(path):
        return _programs(text)
    if is_markdown(path):
        shown = _fenced(sources.newlines(text))
        sources.refuse_large(sum(len(block.text) for block in shown))
        return [block for block in shown if _speaks(block.text) and _error(block.text) is None]
    return [Block(text)]


def _speaks(text: str) -> bool:
    return Code(text.encode("utf-8", "replace")).speaks()


def code(path: str, data: bytes) -> bytes:
    """What of a file may be Python, to be looked at before it is parsed; all of it, where that cannot be told.

    A notebook is mostly what its cells have put out, in megabytes of pictures. Its JSON is parsed all the same: that
    takes 10 ms per megabyte, and searching it for every word that matters takes 20 ms.
    """
    if is_notebook(path):
        try:
            found = [source for _, source in _code_cells(decode(path, data))]
        except Unreadable:
            return data
    elif is_markdown(path):
        if not (re.search(rb"```[^\n`]*[pP][yY]", data) or re.search(rb"~~~[^\n]*[pP][yY]", data)):
            return b""
        found = [block.text for block in _fenced(decode(path, data))]
    else:
        return data
    return "\n".join(found).encode("utf-8", "replace")


def cells(text: str) -> dict[int, str]:
    """The source of each code cell of a notebook by its number; none of a file that is no notebook."""
    try:
        return dict(_code_cells(text))
    except Unreadable:
        return {}


def _error(text: str) -> tuple[int, str] | None:
    """Where and why a text is no Python; None where it is, and where that can only be said by whoever reads it."""
    import ast

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ast.parse(text)
        except SyntaxError as error:
            return error.lineno or 1, sources.invalid(error)
        except ValueError as error:
            return 1, str(error)
        except (RecursionError, MemoryError):
            return None
    return None


# Notebooks.


def _code_cells(text: str) -> Iterator[tuple[int, str]]:
    """The number, among all cells, and the source of each cell that holds Python code."""
    import json

    if not text.strip():
        return
    try:
        notebook = json.loads(text)
    except ValueError as error:
        line = getattr(error, "lineno", 1)
        raise Unreadable(f"a notebook is JSON, and this is not: {getattr(error, 'msg', error)}", line) from None
    except RecursionError:
        raise Unreadable("its JSON is nested too deeply") from None
    if not isinstance(notebook, dict):
        raise Unreadable("it is JSON, but no notebook")
    found = _listed(notebook.get("cells"))
    # The format 3, in which IPython wrote notebooks until 2015.
    for sheet in _listed(notebook.get("worksheets")):
        found = found + _listed(_mapped(sheet).get("cells"))
    if "cells" not in notebook and "worksheets" not in notebook:
        raise Unreadable("it is JSON, but no notebook: it has no cells")
    if not _is_python(_mapped(notebook.get("metadata"))):
        return
    for number, cell in enumerate(map(_mapped, found), 1):
        editor = _mapped(_mapped(cell.get("metadata")).get("vscode")).get("languageId", "python")
        if cell.get("cell_type") == "code" and editor == "python" and cell.get("language", "python") == "python":
            source = cell.get("source", cell.get("input", ""))
            if isinstance(source, list):
                source = "".join(line for line in source if isinstance(line, str))
            if isinstance(source, str):
                yield number, sources.newlines(source)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _mapped(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _is_python(metadata: dict[str, Any]) -> bool:
    """Whether a notebook says that it is in Python, or does not say in what."""
    language = _mapped(metadata.get("language_info")).get("name") or _mapped(metadata.get("kernelspec")).get("language")
    return not isinstance(language, str) or "python" in language.lower()


def _programs(text: str) -> list[Block]:
    """The program that the cells of a notebook are, and after it the files that they write."""
    whole = Block("", [])
    assert whole.places is not None
    rows: list[str] = []
    written: list[Block] = []
    for number, source in _code_cells(text):
        cell = _Cell(source)
        if cell.writes:
            block = Block("\n".join(cell.rows) + "\n", [(number, *place) for place in cell.places])
            if _error(block.text) is None:
                written.append(block)
        elif cell.rows:
            if cell.error is not None and whole.broken is None:
                line, reason = cell.error
                whole.broken = (len(rows) + line, reason)
            rows += cell.rows
            whole.places += [(number, *place) for place in cell.places]
    if not rows:
        return written
    whole.text = "\n".join(rows) + "\n"
    sources.refuse_large(len(whole.text))
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
        self.error: tuple[int, str] | None = None
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
            name = re.split(r"\W", row[2:], maxsplit=1)[0]
            if name in _STANDALONE or (name in _FILES and row.rstrip("'\"").endswith(".py")):
                self.writes = True
                return True
            if name not in _RUNNING:
                return False
        return True

    def _translate(self, first: int) -> None:
        """Put Python in the place of what only IPython understands."""
        before = list(self.rows)
        if _error("\n".join(before)) is None:
            return
        self._replace()
        error = _error("\n".join(self.rows))
        while error is not None:
            number = min(error[0], len(self.rows)) - 1
            if not _AUTOMATIC.match(self.rows[number]):
                break
            self.rows[number] = ""
            error = _error("\n".join(self.rows))
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
            if timed and _error(said[timed.end() :]) is None:
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


# Markdown.

_FENCE = re.compile(r"((?:[ \t]|>|[-*+](?=[ \t])|\d{1,9}[.)](?=[ \t]))*)(`{3,}(?=[^`]*$)|~{3,})[ \t]*(.*)")
_PYTHON = re.compile(r"\{?[ \t]*\.?(?:code(?:-block|-cell)?\}[ \t]*)?(?:python3?|py3?)(?![\w.+-])", re.IGNORECASE)
_QUOTE = re.compile(r"[ \t]{0,3}>[ \t]?")


def _fenced(text: str) -> list[Block]:
    """The blocks that are fenced and said to be Python, valid or not. ``text`` has no line end but the newline."""
    found: list[Block] = []
    lines = text.split("\n")
    number = 0
    while number < len(lines):
        row = lines[number]
        number += 1
        opened = _FENCE.match(row) if "```" in row or "~~~" in row else None
        if opened is None:
            continue
        container, fence, info = opened.groups()
        quotes = container.count(">")
        width = _columns(container[_unquoted(container, quotes) :])
        rows: list[str] = []
        places: list[Place] = []
        while number < len(lines):
            row = lines[number]
            cut = _unquoted(row, quotes)
            if cut < 0:
                # The quotation ends, and the block with it.
                break
            number += 1
            if fence in row and row[cut:].strip().startswith(fence) and not row[cut:].strip().strip(fence[0]):
                break
            if width:
                cut += _indented(row[cut:], width)
            rows.append(row[cut:])
            places.append((None, number, cut))
        if rows and _PYTHON.match(info):
            found.append(Block("\n".join(rows) + "\n", places))
    return found


def _unquoted(row: str, quotes: int) -> int:
    """The characters that so many marks of quotation take at the head of a line; -1 where they are not there."""
    at = 0
    for _ in range(quotes):
        mark = _QUOTE.match(row, at)
        if mark is None:
            return -1
        at = mark.end()
    return at


def _columns(text: str) -> int:
    return len(text.expandtabs(4))


def _indented(row: str, width: int) -> int:
    """The characters of white space that fill the columns of a container."""
    at = 0
    while at < len(row) and row[at] in " \t" and _columns(row[:at]) < width:
        at += 1
    return at
