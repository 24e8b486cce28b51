"""Checks again whenever a file changes, until Ctrl-C: looks at times and sizes, which works on every file system."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

#: Seconds between two looks.
EVERY = 0.5

Seen = dict[str, tuple[int, int]]


def watch_files(list_files: Callable[[], Sequence[str]], act: Callable[[], object]) -> None:
    """Act now, and whenever one of the files that ``look`` lists is another one than before."""
    seen: Seen | None = None
    try:
        while True:
            now = _stat_files(list_files())
            if now != seen:
                seen = now
                act()
            time.sleep(EVERY)
    except KeyboardInterrupt:
        return


def _stat_files(paths: Sequence[str]) -> Seen:
    found: Seen = {}
    for path in paths:
        try:
            stat = os.stat(path)
        except OSError:
            continue
        found[path] = (stat.st_mtime_ns, stat.st_size)
    return found
