"""Atomic file writes: the whole file or nothing, so that a full disk destroys no old content."""

from __future__ import annotations

import os
from io import StringIO


class OutputBuffer(StringIO):
    """Buffer for the content of a file, with the name of the file. The buffer is no terminal and gets no color."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


def write_file(path: str, text: str) -> None:
    """Write a text atomically to a path. Raise OSError and keep the old content on failure.

    An existing path that is no file, such as a pipe or a terminal, is written directly.
    """
    from ..static.sources.atomic_replace import replace_file

    real = os.path.realpath(path)
    # A path may contain bytes that are no valid text.
    data = text.encode("utf-8", "backslashreplace")
    if os.path.isfile(real) or not os.path.exists(real):
        replace_file(real, data)
        return
    with open(real, "wb") as file:
        file.write(data)
