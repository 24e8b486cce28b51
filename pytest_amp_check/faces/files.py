"""Files that are written: all of one at once, or nothing, so that a full disk costs nobody what lay there before."""

from __future__ import annotations

import os


def write(path: str, text: str) -> None:
    """Write a text in the place of what lies at a path. Raises OSError, and then that lies there as it did.

    What is there and is no file, such as a pipe or a terminal, is written to.
    """
    from ..static.sources.replacing import put

    real = os.path.realpath(path)
    # A path may hold bytes that are no text.
    data = text.encode("utf-8", "backslashreplace")
    if os.path.isfile(real) or not os.path.exists(real):
        put(real, data)
        return
    with open(real, "wb") as file:
        file.write(data)
