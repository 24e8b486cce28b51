"""Requests to end, as a launcher makes to all ranks where one has failed."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

#: The exit code of a process that was told to end.
TERMINATED = 143


class TerminationRequest:
    """Takes note of a request to end. As a region it raises SystemExit then, in what runs there.

    A program that takes such requests itself goes on doing so.
    """

    def __init__(self) -> None:
        self.is_requested = False
        self._should_raise = False

    def __call__(self, number: int, frame: object) -> None:
        self.is_requested = True
        if self._should_raise:
            raise SystemExit(TERMINATED)

    @contextlib.contextmanager
    def handle_signal(self) -> Iterator[None]:
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

    def exit_cause(self, leave: SystemExit) -> BaseException:
        """What a program that leaves was ended by: an interrupt, wherever it was, or what it does itself."""
        return KeyboardInterrupt().with_traceback(leave.__traceback__) if self.is_requested else leave

    def end_process(self) -> None:
        """End this process as the request would have, if there was one."""
        if self.is_requested:
            os.kill(os.getpid(), signal.SIGTERM)

    # A generator would stand in the traceback of what the program raises.
    def __enter__(self) -> None:
        self._should_raise = True

    def __exit__(self, *raised: object) -> None:
        self._should_raise = False
