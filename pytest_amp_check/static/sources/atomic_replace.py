"""Atomic replacement of a file: the new content is complete or absent, and no temporary file stays behind."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

#: Prefix of the names of temporary files.
TEMPORARY_PREFIX = ".amp-check-"
#: Signals that end a process from outside and can be blocked.
TERMINATION_SIGNALS = ("SIGHUP", "SIGINT", "SIGTERM")


@contextmanager
def blocked_signals() -> Iterator[None]:
    """Block the signals that would end this process, until the ``with`` block ends. Windows has no such signals."""
    import signal

    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, termination_signals())
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def termination_signals() -> list[int]:
    """Return the numbers of the signals that end a process from outside, as far as this system has them."""
    import signal

    return [getattr(signal, name) for name in TERMINATION_SIGNALS if hasattr(signal, name)]


def replace_file(path: str, data: bytes, *, is_synced: bool = True) -> list[str]:
    """Write a new file beside the old file, and replace the old file; keep owner, group and mode.

    Return sentences about metadata that is lost. ``is_synced`` waits until the data is on disk. A link at ``path`` is
    replaced, not its target. Raise OSError.
    """
    old = _stat_of_old(path)
    lost: list[str] = []
    with blocked_signals():
        handle, part = _create_beside(path, 0o666 if old is None else stat.S_IMODE(old.st_mode) & 0o777)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                if old is not None:
                    lost = _copy_metadata(file.fileno(), part, path, old)
                if is_synced:
                    os.fsync(file.fileno())
            os.replace(part, path)
        except BaseException:
            with suppress(OSError):
                os.remove(part)
            raise
    return lost


def _stat_of_old(path: str) -> os.stat_result | None:
    """Return the stat of the regular file to replace, or None."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def _create_beside(path: str, mode: int) -> tuple[int, str]:
    """Create a new file in the same folder and return an open handle and the path. Never open an existing file."""
    number = 0
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    while True:
        part = os.path.join(os.path.dirname(path), f"{TEMPORARY_PREFIX}{os.getpid()}-{number}")
        try:
            return os.open(part, flags, mode), part
        except FileExistsError:
            number += 1


def _copy_metadata(handle: int, part: str, path: str, old: os.stat_result) -> list[str]:
    """Copy the metadata of the old file to the new file. Return sentences about metadata that is lost."""
    lost: list[str] = []
    if old.st_nlink > 1:
        others = f"{old.st_nlink - 1} other name{'s' if old.st_nlink > 2 else ''}"
        lost.append(f"it had {others} (hard links), which keep what it held")
    new = os.fstat(handle)
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
        try:
            os.chown(part, old.st_uid, old.st_gid)
        except OSError:
            lost.append("its owner and group could not be kept")
    # Access rights of further users (ACLs) and other extended attributes.
    for name in os.listxattr(path) if hasattr(os, "listxattr") else ():
        with suppress(OSError):
            os.setxattr(part, name, os.getxattr(path, name))
    # Set the mode last: a change of the owner removes rights.
    os.chmod(part, stat.S_IMODE(old.st_mode))
    return lost
