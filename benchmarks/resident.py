"""How much memory a command takes together with the processes that it starts, as Linux shows it in /proc."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Peak(NamedTuple):
    """Bytes at the peak: of all processes together, and of the largest of them.

    ``together`` is the largest of the sums that were sampled. It counts a page as often as processes share it, as it
    is after a fork, so it is too large rather than too small; peaks between two samples are missed. ``largest`` is
    told by the system and misses none.
    """

    together: int
    largest: int


def peak(command: Sequence[str], codes: tuple[int, ...] = (0, 1), every: float = 0.01) -> Peak | None:
    """The memory that a command takes at its peak, looked at every so many seconds; None where there is no /proc."""
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
    """Resident bytes of a process and of all that it has started, now."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
        children = " ".join(
            path.read_text(encoding="ascii") for path in Path(f"/proc/{pid}/task").glob("*/children")
        ).split()
    except (OSError, ValueError, IndexError):
        # It has ended since it was seen.
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(_resident(int(child)) for child in children)
