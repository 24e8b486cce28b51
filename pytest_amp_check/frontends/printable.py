"""Texts of unknown origin for terminals and CI hosts, without control characters and commands."""

from __future__ import annotations

import re

#: A line of text parts, each with the name of a style: a key of :data:`STYLES`, or ``source``.
Line = list[tuple[str, str]]
#: Characters that change the display order of other characters (Unicode's Bidi_Control).
_TURNING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


#: Line ends, beside the control characters, in a single-line text.
_ENDS = frozenset("\n\f\u2028\u2029")
#: Command prefix of Azure Pipelines anywhere in a line, and of old GitHub workflows.
_COMMAND = re.compile(r"##(?=(?:vso)?\[)", re.IGNORECASE)
#: Command prefix of GitHub at the start of a line, after optional white space.
_WORKFLOW = re.compile(r"\A(\s*):(?=:)")


def escape_line_start(line: Line) -> Line:
    """Return a line that GitHub does not treat as a command. The line may begin with a file name."""
    for number, (piece, style) in enumerate(line):
        if piece and not piece.isspace():
            return [*line[:number], (_WORKFLOW.sub(r"\1\\x3a", piece), style), *line[number + 1 :]]
    return line


def make_printable(text: str) -> str:
    """Return a text with control characters replaced: source code must not move the cursor of a terminal."""
    text = escape_command(text)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in text)


def make_visible(text: str) -> str:
    """Return a text with visible escapes for characters that move the cursor or change the display order.

    Commands of CI hosts are also escaped. Other characters stay, including white space, so that a diff can still be
    applied.
    """
    text = escape_command(text)
    if text.isprintable():
        return text
    return "".join(_escape_character(c) if is_hidden(c) else c for c in text)


def escape_command(text: str) -> str:
    """Return a text that contains no command of a CI host at any position."""
    return _COMMAND.sub(r"#\\x23", text) if "##" in text else text


def make_single_line(text: str) -> str:
    """Return a text as a single line: line ends are escaped, and no host treats the line as a command."""
    text = "".join(_escape_character(c) if c in _ENDS else c for c in make_visible(text))
    return escape_line_start([(text, "")])[0][0]


def is_hidden(character: str) -> bool:
    """Return True if a character is invisible and affects the display of other characters."""
    control = character < " " or "\x7f" <= character <= "\x9f"
    return character in _TURNING or (control and character not in "\t\n\f")


def _escape_character(character: str) -> str:
    return f"\\x{ord(character):02x}" if ord(character) < 0x100 else f"\\u{ord(character):04x}"
