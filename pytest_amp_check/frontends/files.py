"""Files that are written: all of one at once, or nothing, so that a full disk costs nobody what lay there before."""

from __future__ import annotations

import os
from io import StringIO


class OutputBuffer(StringIO):
    """What a file is to hold, by the name of that file: no terminal, which might get colour."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


def write_file(path: str, text: str) -> None:
    """Write a text in the place of what lies at a path. Raises OSError, and then that lies there as it did.

    What is there and is no file, such as a pipe or a terminal, is written to.
    """
    from ..static.sources.atomic_replace import replace_file

    real = os.path.realpath(path)
    # A path may hold bytes that are no text.
    data = text.encode("utf-8", "backslashreplace")
    if os.path.isfile(real) or not os.path.exists(real):
        replace_file(real, data)
        return
    with open(real, "wb") as file:
        file.write(data)
