"""Requests to end, as a launcher makes to all ranks where one has failed."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

#: The exit code of a process that was told to end.
TERMINATED = 143


class Ending:
    """Takes note of a request to end. As a region it raises SystemExit then, in what runs there.

    A program that takes such requests itself goes on doing so.
    """

    def __init__(self) -> None:
        self.asked = False
        self._raises = False

    def __call__(self, number: int, frame: object) -> None:
        self.asked = True
        if self._raises:
            raise SystemExit(TERMINATED)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """A region in which it is this that hears of them."""
        main = threading.current_thread() is threading.main_thread()
        if not main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
            yield
            return
        signal.signal(signal.SIGTERM, self)
        try:
            yield
        finally:
            if signal.getsignal(signal.SIGTERM) is self:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def reason(self, leave: SystemExit) -> BaseException:
        """What a program that leaves was ended by: an interrupt, wherever it was, or what it does itself."""
        return KeyboardInterrupt().with_traceback(leave.__traceback__) if self.asked else leave

    def end(self) -> None:
        """End this process as the request would have, if there was one."""
        if self.asked:
            os.kill(os.getpid(), signal.SIGTERM)

    # A generator would stand in the traceback of what the program raises.
    def __enter__(self) -> None:
        self._raises = True

    def __exit__(self, *raised: object) -> None:
        self._raises = False
