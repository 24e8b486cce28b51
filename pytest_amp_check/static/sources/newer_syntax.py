"""Syntax of newer Pythons, recognized in source that the running Python rejects."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

from ...protocol.fast_namedtuple import NamedTuple

#: Version of Python, such as (3, 14).
Version = tuple[int, int]

#: Patterns of constructs that begin a line, with the version that introduced them.
_STATEMENTS: tuple[tuple[Version, str], ...] = (
    ((3, 15), r"\s*lazy\s+(?:import|from)\s+[\w.]"),  # PEP 810
    ((3, 13), r"\s*(?:(?:async\s+)?def|class|type)\s+\w+\s*\[[^\]]*[^=!<>]=[^=]"),  # PEP 696
    ((3, 12), r"\s*(?:(?:async\s+)?def|class)\s+\w+\s*\[.*\]\s*[(:]"),  # PEP 695
    ((3, 12), r"\s*type\s+[^\W\d]\w*\s*(?:=[^=]|\[)"),
    ((3, 11), r"\s*except\s*\*"),  # PEP 654
    ((3, 11), r".*\w\s*\[(?:[^\]]*,)?\s*\*\w"),  # PEP 646
    ((3, 11), r".*\*\w+\s*:\s*\*\w"),
)
#: Messages of the parser for syntax that a later version accepts, with that version.
_MESSAGES: tuple[tuple[Version, str], ...] = (
    ((3, 15), "iterable unpacking cannot be used in comprehension"),  # PEP 798
    ((3, 15), "dict unpacking cannot be used in dict comprehension"),
)
#: Python 2 wrote ``except ValueError, error``. Class names alone are the syntax of Python 3.14 (PEP 758).
_UNPARENTHESIZED = re.compile(r"\s*except\*?\s+(?:[\w.]*\b[A-Z]\w*\s*,\s*)+[\w.]*\b[A-Z]\w*\s*:")
#: Maximum number of matched characters of a line. The patterns take quadratic time.
_LONGEST_LINE = 1000
_FORMATTED: Version = (3, 12)  # PEP 701: any expression in a field of an f-string, its quotes included
_TEMPLATE: Version = (3, 14)  # PEP 750
_DOUBLE = re.compile(r'[^"\\\n]*(?:\\.[^"\\\n]*)*"', re.DOTALL)
_SINGLE = re.compile(r"[^'\\\n]*(?:\\.[^'\\\n]*)*'", re.DOTALL)
_LONG_DOUBLE = re.compile(r'[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*"""', re.DOTALL)
_LONG_SINGLE = re.compile(r"[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*'''", re.DOTALL)
#: Match from behind the opening quotes of a string to its end.
_ENDS = {'"': _DOUBLE.match, "'": _SINGLE.match, '"""': _LONG_DOUBLE.match, "'''": _LONG_SINGLE.match}
_TOKEN = re.compile(r"#[^\n]*|(?<!\w)([a-zA-Z]{0,2})(\"\"\"|'''|\"|')")


class Rejection(NamedTuple):
    """Rejection of a text by Python's parser: line, from 1, and reason.

    ``python_version`` is the version that accepts the syntax, such as "3.14", or empty for an error in every version.
    """

    line: int
    reason: str
    python_version: str = ""


def explain_rejection(text: str, error: SyntaxError | ValueError) -> Rejection:
    """Return the rejection for an error of the parser on a text."""
    if not isinstance(error, SyntaxError):
        return Rejection(1, str(error))
    line = error.lineno or 1
    needed = needed_python(text, line, error.msg)
    reason = f"it is not valid Python {sys.version_info[0]}.{sys.version_info[1]}: {error.msg}"
    return Rejection(line, reason, f"{needed[0]}.{needed[1]}" if needed else "")


def needed_python(text: str, line: int, message: str) -> Version | None:
    """Return the oldest Python whose syntax explains a parser error, or None for an error in every version.

    ``line`` is the line of the error from 1, and ``message`` the message of the error without a position.
    """
    running = sys.version_info[:2]
    try:
        return next((version for version in _needed_versions(text, line, message) if version > running), None)
    except RecursionError:  # nested f-strings, deeper than any Python accepts
        return None


def _needed_versions(text: str, line: int, message: str) -> Iterator[Version]:
    """Yield the versions whose new syntax occurs at the position of the parser error."""
    yield from (version for version, known in _MESSAGES if known in message)
    lines = text.split("\n", line)
    # No line at all if the parser stopped behind the last line.
    written = "".join(lines[line - 1 : line])[:_LONGEST_LINE]
    if _UNPARENTHESIZED.match(written):
        # Such a line may also have the older syntax of exception groups.
        yield 3, 14
    yield from (version for version, pattern in _STATEMENTS if re.match(pattern, written))
    for prefix, first, last, newer in _string_spans(text):
        if first > line:
            return
        if last >= line and "t" in prefix:
            yield _TEMPLATE
        elif last >= line and newer:
            yield _FORMATTED


def _string_spans(text: str) -> Iterator[tuple[str, int, int, bool]]:
    """Yield the prefix, first and last line of each string, and True if Python rejected the string before 3.12."""
    position, line = 0, 1
    while found := _TOKEN.search(text, position):
        if found[2] is None:
            position = found.end()
            continue
        prefix, start = found[1].lower(), found.end()
        try:
            end = _end_of_string(text, found)
        except _Unterminated:
            # Behind an unterminated string, strings and code cannot be distinguished.
            return
        newer = False
        if _is_formatted(prefix):
            plain = _ENDS[found[2]](text, start)
            newer = plain is None or plain.end() != end or _has_newer_field(text[start:end])
        first = line + text.count("\n", position, start)
        last = first + text.count("\n", start, end)
        yield prefix, first, last, newer
        position, line = end, last


def _is_formatted(prefix: str) -> bool:
    """Return True for the prefix of an f-string or a template string."""
    return not {"f", "t"}.isdisjoint(prefix)


def _has_newer_field(body: str) -> bool:
    """Return True if a field of an f-string has a backslash or a comment, which needs Python 3.12."""
    return any("\\" in field or "#" in field.partition(":")[0] for field in re.findall(r"(?<!\{)\{([^{}]*)\}", body))


class _Unterminated(Exception):
    """Error for a string, or a field of an f-string, without an end."""


def _end_of_string(text: str, opening: re.Match[str]) -> int:
    """Return the end of the string that a prefix and quotes open, quotes included. Raise :class:`_Unterminated`."""
    if _is_formatted(opening[1].lower()):
        return _end_of_formatted(text, opening.end(), opening[2])
    found = _ENDS[opening[2]](text, opening.end())
    if found is None:
        raise _Unterminated
    return found.end()


def _end_of_formatted(text: str, position: int, quote: str) -> int:
    """Return the end of an f-string with arbitrary expressions in its fields. Raise :class:`_Unterminated`."""
    while position < len(text):
        if text.startswith(quote, position):
            return position + len(quote)
        character = text[position]
        if character == "\n" and len(quote) == 1:
            break
        if text.startswith("{{", position) or character == "\\":
            position += 2
        elif character == "{":
            position = _end_of_field(text, position + 1)
        else:
            position += 1
    raise _Unterminated


def _end_of_field(text: str, position: int) -> int:
    """Return the end of a field that begins at a position, brace included. Raise :class:`_Unterminated`."""
    depth, in_format = 0, False
    while position < len(text):
        character = text[position]
        found = None if in_format else _TOKEN.match(text, position)
        if found is not None:
            position = found.end() if found[2] is None else _end_of_string(text, found)
        elif character == "{" and in_format:
            position = _end_of_field(text, position + 1)
        elif character == "}" and depth == 0:
            return position + 1
        else:
            in_format = in_format or (character == ":" and depth == 0)
            depth += (character in "([{") - (character in ")]}")
            position += 1
    raise _Unterminated
