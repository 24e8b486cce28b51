"""The number of tokens in source, estimated before it is parsed: what parsing costs depends on it."""

from __future__ import annotations

import re

from .source_files import Unreadable

#: Characters of source that are parsed whatever they hold. The densest take half a gigabyte and ten seconds.
ALWAYS_PARSED = 500_000
#: Tokens that are parsed at most under the limit of :data:`~...protocol.byte_sizes.LARGEST_FILE`: those of 1.8 MB of
#: common code. A token takes up to a kilobyte and 50 microseconds.
MAX_TOKENS = 400_000
#: Bytes of a higher limit that allow for one token more.
BYTES_OF_TOKEN = 25
_ESCAPED = re.compile(r"\\.", re.DOTALL)
#: A string counts once, and so does a comment. Escapes are taken out before, so that each quote is looked behind at
#: most once in a line.
_TOKEN = re.compile(r"""\"[^"\n]*"|'[^'\n]*'|\#[^\n]*|\d[\w.]*|\w+|[^\w\s]|\n""")


def refuse_dense(text: str, largest: int) -> None:
    """Raise :class:`Unreadable` for source with too many tokens, unless ``largest`` is no limit (0)."""
    most = max(MAX_TOKENS, largest // BYTES_OF_TOKEN)
    if largest and is_dense(text, most):
        raise Unreadable(
            f"it has more than {most:,} tokens of code, which is too much to analyze: split it, or raise max-file-size"
        )


def is_dense(text: str, most: int = MAX_TOKENS) -> bool:
    """Return True if source has more than ``most`` tokens, as far as they can be told without parsing."""
    if len(text) <= max(ALWAYS_PARSED, most):
        return False
    tokens = _TOKEN.finditer(_ESCAPED.sub("", text))
    return any(number >= most for number, _ in enumerate(tokens))
