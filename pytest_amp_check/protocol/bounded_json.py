"""JSON parsing in bounded memory, for files of unknown origin."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Maximum number of values. An object takes up to 230 bytes of memory, so the values take at most about a gigabyte. A
#: notebook of the maximum size with a million chart points has fewer values.
MOST_VALUES = 5_000_000
#: Characters that begin another value outside strings. Strings hold most of a notebook.
_MARKS = "[{,"
#: Pattern of a string. An unterminated string extends to the end of the text, so that later quotes are not tried again.
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)


class JsonTooLarge(ValueError):
    """Error for a JSON text with too many values, or with too deep nesting."""


def parse_json(text: str) -> Any:
    """Return the value of a JSON text.

    Raise ValueError for invalid text, and :class:`JsonTooLarge` for text with too many values or levels.
    """
    import json

    if _count_values(text) > MOST_VALUES and _count_values(_STRING.sub("", text)) > MOST_VALUES:
        raise JsonTooLarge(f"it holds more than {MOST_VALUES:,} values")
    try:
        return json.loads(text)
    except RecursionError:
        raise JsonTooLarge("it is nested too deeply") from None


def _count_values(text: str) -> int:
    return sum(map(text.count, _MARKS))
