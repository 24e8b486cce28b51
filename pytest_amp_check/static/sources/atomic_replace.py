"""Puts a new content in the place of a file: at once or not at all, and nothing else is left behind."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

#: What the names of files begin with that are about to take the place of others.
TEMPORARY_PREFIX = ".amp-check-"
#: What ends a process from outside and can be held back.
TERMINATION_SIGNALS = ("SIGHUP", "SIGINT", "SIGTERM")


@contextmanager
def blocked_signals() -> Iterator[None]:
    """What would end this process from outside waits until this is done. Windows knows no such thing."""
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
    """The numbers of the signals that end a process from outside, as far as this system has them."""
    import signal

    return [getattr(signal, name) for name in TERMINATION_SIGNALS if hasattr(signal, name)]


def replace_file(path: str, data: bytes, *, is_synced: bool = True) -> list[str]:
    """Write a file anew beside the old one, and put it in its place with the owner, group and mode of that.

    Gives what could not be kept, in words. ``lasting`` waits until the disk has it. What lies there as a link is
    replaced, and not what that leads to. Raises OSError.
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
    """The file that is to be replaced, if there is one."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def _create_beside(path: str, mode: int) -> tuple[int, str]:
    """A new file in the folder of another, open to be written, and its path: never one that lies there already."""
    number = 0
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    while True:
        part = os.path.join(os.path.dirname(path), f"{TEMPORARY_PREFIX}{os.getpid()}-{number}")
        try:
            return os.open(part, flags, mode), part
        except FileExistsError:
            number += 1


def _copy_metadata(handle: int, part: str, path: str, old: os.stat_result) -> list[str]:
    """Give a new file what the old one has besides its content; what could not be kept of it."""
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
    # Access that is given to further users, and what else hangs on a file.
    for name in os.listxattr(path) if hasattr(os, "listxattr") else ():
        with suppress(OSError):
            os.setxattr(part, name, os.getxattr(path, name))
    # Last: a change of the owner takes rights away.
    os.chmod(part, stat.S_IMODE(old.st_mode))
    return lost
