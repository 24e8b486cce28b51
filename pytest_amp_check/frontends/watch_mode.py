"""Watch mode: check again after each file change until Ctrl-C, by times and sizes, on every file system."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

#: Seconds between two scans.
EVERY = 0.5

Seen = dict[str, tuple[int, int]]


def watch_files(list_files: Callable[[], Sequence[str]], act: Callable[[], object]) -> None:
    """Run an action now, and after each change of a listed file."""
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
