"""Files that are written: all of one at once, or nothing, so that a full disk costs nobody what lay there before."""

from __future__ import annotations

import os
from contextlib import suppress


def write(path: str, text: str) -> None:
    """Write a text in the place of what lies at a path. Raises OSError, and then that lies there as it did.

    What is there and is no file, such as a pipe or a terminal, is written to.
    """
    real = os.path.realpath(path)
    part = f"{real}.{os.getpid()}" if os.path.isfile(real) or not os.path.exists(real) else real
    try:
        # A path may hold bytes that are no text.
        with open(part, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.write(text)
        if part != real:
            os.replace(part, real)
    except OSError:
        if part != real:
            with suppress(OSError):
                os.remove(part)
        raise
