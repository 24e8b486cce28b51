"""Memory of a command together with its child processes, as Linux shows it in /proc."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Peak(NamedTuple):
    """Bytes at the peak: of all processes together, and of the largest process.

    ``together`` is the largest of the sampled sums. It counts a page once for each process that shares the page, as
    after a fork, so the value is too large rather than too small. Peaks between two samples are missed. ``largest``
    comes from the system and misses no peak.
    """

    together: int
    largest: int


def peak(command: Sequence[str], codes: tuple[int, ...] = (0, 1), every: float = 0.01) -> Peak | None:
    """Return the peak memory of a command, sampled ``every`` seconds, or None without /proc."""
    if not Path("/proc/self/stat").exists():
        return None
    together = 0
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while True:
        done, status, usage = os.wait4(process.pid, os.WNOHANG)
        if done:
            break
        together = max(together, _resident(process.pid))
        time.sleep(every)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in codes:
        raise SystemExit(f"`{' '.join(command)}` ended with {process.returncode}")
    return Peak(together, usage.ru_maxrss * 1024)


def _resident(pid: int) -> int:
    """Return the current resident bytes of a process and all its descendants."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
        children = " ".join(
            path.read_text(encoding="ascii") for path in Path(f"/proc/{pid}/task").glob("*/children")
        ).split()
    except (OSError, ValueError, IndexError):
        # The process has ended in the meantime.
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(_resident(int(child)) for child in children)
