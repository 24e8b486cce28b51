"""Bounded reads of regular files. Pipes, devices and oversized files are rejected before reading."""

from __future__ import annotations

import errno
import os
import stat

#: Maximum size in bytes of a configuration file or a requirements list. tomllib needs half a second of CPU time for
#: this many bytes of keys.
LARGEST_CONFIG = 1_000_000
#: Maximum size in bytes of a notebook, a Markdown page, a cache, a baseline or a recorded run: 100 MiB, the file size
#: limit of GitHub.
LARGEST_DOCUMENT = 100 * 2**20
#: Flags for opening files. Without O_NONBLOCK, opening a pipe waits for a writer. Without O_NOCTTY, a terminal becomes
#: the controlling terminal of the process.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)


class NotRegularFile(OSError):
    """Error for the path of a pipe, a socket or a device. A read may block or never end."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EINVAL, "it is no regular file, and pipes, sockets and devices are not read", path)


class FileTooLarge(OSError):
    """Error for a file above the size limit. ``size`` is a lower bound of the file size."""

    def __init__(self, path: str, size: int, largest: int) -> None:
        super().__init__(errno.EFBIG, f"it has {size:,} bytes, and at most {largest:,} are read", path)
        self.size = size


def read_regular(path: str, largest: int) -> bytes:
    """Return the content of a regular file of at most ``largest`` bytes; 0 means no limit.

    Raise :class:`NotRegularFile`, :class:`FileTooLarge`, IsADirectoryError, or another OSError with a ``strerror``.
    """
    try:
        # Check before opening: opening alone may rewind a tape, or release the writer of a pipe.
        _refuse_irregular(os.stat(path), path, largest)
        handle = os.open(path, _FLAGS)
    except ValueError:
        raise OSError(errno.EINVAL, "its name holds a null byte", path) from None
    try:
        # Check again: another file may have replaced the first file.
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
    """Return the content of an open file of ``size`` bytes, with half the system calls of a file object."""
    # The extra byte detects the end of the file. A file that grew, or that returns partial data, needs further reads.
    data = os.read(handle, size + 1)
    while len(data) != size:
        # Files in /proc report size 0, but may have any content.
        if 0 < largest < len(data):
            raise FileTooLarge(path, len(data), largest)
        part = os.read(handle, len(data) + 1)
        if not part:
            break
        data += part
    return data
