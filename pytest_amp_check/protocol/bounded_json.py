"""JSON of files that anybody may have written, parsed in bounded memory."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Values that are parsed at most. An object takes up to 230 bytes of memory, so that these take a gigabyte at most,
#: and a notebook of the largest size with a million points in a chart has fewer.
MOST_VALUES = 5_000_000
#: What begins another value. In strings, which hold most of a notebook, it begins none.
_MARKS = "[{,"
#: A string without an end goes on to the end of the text, lest each quote in it is tried again.
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)


class JsonTooLarge(ValueError):
    """A JSON text with more values, or deeper ones, than are parsed."""


def parse_json(text: str) -> Any:
    """Return the value that a JSON text holds. Raise ValueError for any other text, :class:`TooMuch` for a bomb."""
    import json

    if _count_values(text) > MOST_VALUES and _count_values(_STRING.sub("", text)) > MOST_VALUES:
        raise JsonTooLarge(f"it holds more than {MOST_VALUES:,} values")
    try:
        return json.loads(text)
    except RecursionError:
        raise JsonTooLarge("it is nested too deeply") from None


def _count_values(text: str) -> int:
    return sum(map(text.count, _MARKS))
