"""Bounded reading of regular files. Pipes, devices and oversized files are refused before their content is read."""

from __future__ import annotations

import errno
import os
import stat

#: Bytes of a configuration file or a list of requirements that are read at most: tomllib needs half a second of CPU
#: time for so many bytes of keys.
LARGEST_CONFIG = 1_000_000
#: Bytes of a notebook, a page of Markdown, a cache, a baseline or a recorded run that are read at most, 100 MiB: GitHub
#: takes no larger file.
LARGEST_DOCUMENT = 100 * 2**20
#: Opening a pipe waits for a writer without the first flag; a terminal takes over the process without the second.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)


class NotRegularFile(OSError):
    """A path that leads to a pipe, a socket or a device: reading it may wait for ever, or never end."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EINVAL, "it is no regular file, and pipes, sockets and devices are not read", path)


class FileTooLarge(OSError):
    """A file with more bytes than are read. ``size`` is at least what the file holds beyond that bound."""

    def __init__(self, path: str, size: int, largest: int) -> None:
        super().__init__(errno.EFBIG, f"it has {size:,} bytes, and at most {largest:,} are read", path)
        self.size = size


def read_regular(path: str, largest: int) -> bytes:
    """Return the content of a regular file of at most ``largest`` bytes; 0 is for no limit.

    Raise :class:`NotRegular`, :class:`TooLarge`, IsADirectoryError, or another OSError with a ``strerror``.
    """
    try:
        # Before opening: that alone may rewind a tape, or let the writer of a pipe go on.
        _refuse_irregular(os.stat(path), path, largest)
        handle = os.open(path, _FLAGS)
    except ValueError:
        raise OSError(errno.EINVAL, "its name holds a null byte", path) from None
    try:
        # Once more: another file may have taken the place of the first one.
        found = os.fstat(handle)
        _refuse_irregular(found, path, largest)
        return _read_content(handle, path, found.st_size, largest)
    finally:
        os.close(handle)


def _refuse_irregular(found: os.stat_result, path: str, largest: int) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(found.st_mode):
        raise NotRegularFile(path)
    if 0 < largest < found.st_size:
        raise FileTooLarge(path, found.st_size, largest)


def _read_content(handle: int, path: str, size: int, largest: int) -> bytes:
    """Return what an open file holds, which had ``size`` bytes: with half of the system calls of a file object."""
    # One byte more than there was shows that this is all; a file that has grown, or comes in pieces, goes on.
    data = os.read(handle, size + 1)
    while len(data) != size:
        # Files of /proc say that they hold nothing, and may hold anything.
        if 0 < largest < len(data):
            raise FileTooLarge(path, len(data), largest)
        part = os.read(handle, len(data) + 1)
        if not part:
            break
        data += part
    return data
