"""Handling of Ctrl-C and termination requests: one line of output, and the conventional exit code."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any, NoReturn

    Handler = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None

#: Signal that Python converts to ``KeyboardInterrupt``.
INTERRUPT = int(signal.SIGINT)
#: Message of each terminating signal that the system has.
SAID = {
    getattr(signal, name): said
    for name, said in (("SIGINT", "interrupted"), ("SIGTERM", "terminated"), ("SIGHUP", "hung up"))
    if hasattr(signal, name)
}
#: Offset that shells add to the number of a terminating signal.
ADDED = 128


class EndRequested(BaseException):
    """A request to end the command; all resources are released on the way out."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal_number = number


class InterruptRequested(EndRequested, KeyboardInterrupt):
    """Ctrl-C, which is also a KeyboardInterrupt in Python."""


def end_at_once() -> None:
    """Let signals end the process immediately from now on, because there is nothing to clean up."""
    _set_handlers((signal.SIG_DFL, signal.default_int_handler), _exit_now)


def raise_on_signals() -> None:
    """Let each signal raise :class:`EndRequested` from now on."""
    _set_handlers((signal.SIG_DFL, signal.default_int_handler, _exit_now), _raise_end)


def stop_raising() -> None:
    """Let signals end the process immediately again, if they raise exceptions, because the process is about to end."""
    _set_handlers((_raise_end,), _exit_now)


def restore_defaults() -> None:
    """Restore Python's default signal handlers, if this process replaced them."""
    for number in SAID:
        default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        if signal.getsignal(number) in (_exit_now, _raise_end):
            signal.signal(number, default)


def describe_signal(number: int) -> str:
    """Return the message for a signal that ended the process."""
    return f"amp-check: {SAID[number]}\n"


def find_exit_code(number: int) -> int:
    """Return the conventional exit code of a signal."""
    return ADDED + number


def _set_handlers(known: tuple[Handler, ...], how: Callable[[int, FrameType | None], NoReturn]) -> None:
    for number in SAID:
        # Signals that the process ignores, as with nohup, stay ignored.
        if signal.getsignal(number) in known:
            signal.signal(number, how)


def _exit_now(number: int, frame: FrameType | None) -> NoReturn:
    # No buffered write: the buffer may be in use at this moment. Without standard error, nobody reads the message.
    with suppress(OSError, ValueError, AttributeError):
        os.write(sys.stderr.fileno(), describe_signal(number).encode())
    os._exit(find_exit_code(number))


def _raise_end(number: int, frame: FrameType | None) -> NoReturn:
    raise (InterruptRequested if number == INTERRUPT else EndRequested)(number)
