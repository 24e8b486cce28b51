"""Estimate of the number of tokens in source before parsing. The cost of parsing depends on this number."""

from __future__ import annotations

import re

from .source_files import Unreadable

#: Number of characters of source that is parsed in any case. The densest source of this size takes half a gigabyte and
#: ten seconds.
ALWAYS_PARSED = 500_000
#: Maximum number of parsed tokens under the limit of :data:`~...protocol.byte_sizes.LARGEST_FILE`: the tokens of 1.8 MB
#: of common code. A token takes up to a kilobyte and 50 microseconds.
MAX_TOKENS = 400_000
#: Bytes of a higher size limit that allow one more token.
BYTES_OF_TOKEN = 25
_ESCAPED = re.compile(r"\\.", re.DOTALL)
#: A string or a comment counts as one token. Escapes are removed first, so that the search visits each quote at most
#: once in a line.
_TOKEN = re.compile(r"""\"[^"\n]*"|'[^'\n]*'|\#[^\n]*|\d[\w.]*|\w+|[^\w\s]|\n""")


def refuse_dense(text: str, largest: int) -> None:
    """Raise :class:`Unreadable` for source with too many tokens, unless ``largest`` is 0 (no limit)."""
    most = max(MAX_TOKENS, largest // BYTES_OF_TOKEN)
    if largest and is_dense(text, most):
        raise Unreadable(
            f"it has more than {most:,} tokens of code, which is too much to analyze: split it, or raise max-file-size"
        )


def is_dense(text: str, most: int = MAX_TOKENS) -> bool:
    """Return True if source has more than ``most`` tokens, estimated without parsing."""
    if len(text) <= max(ALWAYS_PARSED, most):
        return False
    tokens = _TOKEN.finditer(_ESCAPED.sub("", text))
    return any(number >= most for number, _ in enumerate(tokens))
