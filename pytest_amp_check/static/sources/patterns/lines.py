"""Lines of code that contain words, found by a search in the bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

WORD_BYTES = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
START_OF_DEFINITION = rb"\n(?=class |def )"
_QUOTES = b'"""'


def strip_docstrings(data: bytes) -> bytes:
    """Return code without triple-quoted strings. Return all code if the start of such a string is ambiguous."""
    if b"'''" in data:
        return data
    parts = data.split(_QUOTES)
    codes, strings = parts[::2], parts[1::2]
    if len(codes) == len(strings) or any(string.endswith(b"\\") for string in strings):
        return data
    for before in codes[:-1]:
        line = before[before.rfind(b"\n") + 1 :]
        if any(mark in line for mark in (b"#", b"'", b'"')):
            return data
    return b"''".join(codes) if strings else data


def lines_containing(word: bytes, data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the position and the text of each line that contains a word.

    The byte search is much faster than a line loop.
    """
    if not data.endswith(b"\n"):
        data += b"\n"
    position = data.find(word)
    while position >= 0:
        start = data.rfind(b"\n", 0, position) + 1
        end = data.index(b"\n", position)
        yield start, data[start:end]
        position = data.find(word, end)


def lines_with(word: bytes, data: bytes) -> Iterator[int]:
    """Yield the positions at which a word begins a line, after blanks."""
    for start, line in lines_containing(word, data):
        code = line.lstrip(b" \t")
        if code.startswith(word):
            yield start + len(line) - len(code)


def lines_of_words(words: Iterable[bytes], data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the position and the text of each line with one of some words, once for each such word."""
    return (found for word in words for found in lines_containing(word, data))


def has_line(pattern: bytes, words: Iterable[bytes], data: bytes) -> bool:
    """Return True if a line with one of some words matches a pattern.

    A byte search for the words and a search of these lines take a tenth of the time of a search of all code.
    """
    lines = b"\n".join([line for _, line in lines_of_words(words, data)])
    return bool(lines) and re.search(pattern, lines) is not None
