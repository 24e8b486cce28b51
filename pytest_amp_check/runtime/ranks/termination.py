"""Termination requests, which a launcher sends to all ranks after the failure of one rank."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

#: The exit code of a process that ended after SIGTERM (128 + 15).
TERMINATED = 143


class TerminationRequest:
    """A handler of SIGTERM that stores the request. The object is also a region that raises SystemExit inside.

    The handler is only installed if the program has no other handler.
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
        """Open a region with this object as the handler of SIGTERM."""
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
        """Return the cause of a SystemExit: KeyboardInterrupt after a request, else the SystemExit of the program."""
        return KeyboardInterrupt().with_traceback(leave.__traceback__) if self.is_requested else leave

    def end_process(self) -> None:
        """End this process with SIGTERM if a request arrived."""
        if self.is_requested:
            os.kill(os.getpid(), signal.SIGTERM)

    # Plain methods, because a generator would appear in the traceback of the program's exceptions.
    def __enter__(self) -> None:
        self._should_raise = True

    def __exit__(self, *raised: object) -> None:
        self._should_raise = False
