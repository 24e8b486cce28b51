"""Python code blocks in Markdown.

No CommonMark parser: fences in the admonitions and tabs of MkDocs are indented by four columns, which CommonMark takes
for text, and edits need the place of each character in its line.
"""

from __future__ import annotations

import re

from .block import Block, LinePosition

_FENCE = re.compile(r"((?:[ \t]|>|[-*+](?=[ \t])|\d{1,9}[.)](?=[ \t]))*)(`{3,}(?=[^`]*$)|~{3,})[ \t]*(.*)")
_PYTHON = re.compile(r"\{?[ \t]*\.?(?:code(?:-block|-cell)?\}[ \t]*)?(?:python3?|py3?)(?![\w.+-])", re.IGNORECASE)
#: Width of a tab, in columns.
_TAB = 4
_QUOTE = re.compile(r"[ \t]{0,3}>[ \t]?")


def python_blocks(text: str) -> list[Block]:
    """Return the fenced blocks marked as Python, valid or not. ``text`` has only newline characters as line ends."""
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
        behind = container.rpartition(">")[2]
        if quotes:
            # A quotation mark includes one blank.
            behind = behind[behind[:1].isspace() :]
        width = len(behind.expandtabs(_TAB))
        rows: list[str] = []
        line_positions: list[LinePosition] = []
        while number < len(lines):
            row = lines[number]
            cut = _quote_width(row, quotes)
            if cut is None:
                # The quotation ends, and the code block with it.
                break
            number += 1
            if fence in row and row[cut:].strip().startswith(fence) and not row[cut:].strip().strip(fence):
                break
            if width:
                cut += _indent_width(row[cut:], width)
            rows.append(row[cut:])
            line_positions.append((None, number, cut))
        if rows and _PYTHON.match(info):
            found.append(Block("\n".join(rows) + "\n", line_positions))
    return found


def _quote_width(row: str, quotes: int) -> int | None:
    """Return the number of characters of the quotation marks at the start of a line, or None without the marks."""
    position = 0
    for _ in range(quotes):
        mark = _QUOTE.match(row, position)
        if mark is None:
            return None
        position = mark.end()
    return position


def _indent_width(row: str, width: int) -> int:
    """Return the number of white-space characters that fill the columns of a container."""
    position = columns = 0
    while position < len(row) and row[position] in " \t" and columns < width:
        columns += 1 if row[position] == " " else _TAB - columns % _TAB
        position += 1
    return position
