"""What Ctrl-C and a request to end do to the command: one line, and the exit code that shells know them by."""

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

#: What Python makes a ``KeyboardInterrupt`` of.
INTERRUPT = int(signal.SIGINT)
#: What is said of each signal that ends the command, as far as this system has it.
SAID = {
    getattr(signal, name): said
    for name, said in (("SIGINT", "interrupted"), ("SIGTERM", "terminated"), ("SIGHUP", "hung up"))
    if hasattr(signal, name)
}
#: What shells add to the number of a signal that has ended a program.
ADDED = 128


class EndRequested(BaseException):
    """The command is asked to end; whatever it holds is put in order on the way out."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal_number = number


class InterruptRequested(EndRequested, KeyboardInterrupt):
    """Ctrl-C, which Python has a name of its own for."""


def end_at_once() -> None:
    """From now on they end this process where it stands: there is nothing that would have to be put in order."""
    _set_handlers((signal.SIG_DFL, signal.default_int_handler), _exit_now)


def raise_on_signals() -> None:
    """From now on each is the exception :class:`Ended`."""
    _set_handlers((signal.SIG_DFL, signal.default_int_handler, _exit_now), _raise_end)


def stop_raising() -> None:
    """From now on they end this process where it stands, if they were exceptions: it is about to end anyway."""
    _set_handlers((_raise_end,), _exit_now)


def restore_defaults() -> None:
    """From now on they do what they do in every Python program, if this process has been told something else."""
    for number in SAID:
        default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        if signal.getsignal(number) in (_exit_now, _raise_end):
            signal.signal(number, default)


def describe_signal(number: int) -> str:
    """What is said of a signal that has ended this."""
    return f"amp-check: {SAID[number]}\n"


def find_exit_code(number: int) -> int:
    """The exit code that shells know it by."""
    return ADDED + number


def _set_handlers(known: tuple[Handler, ...], how: Callable[[int, FrameType | None], NoReturn]) -> None:
    for number in SAID:
        # What somebody has this process ignore, as nohup does, stays ignored.
        if signal.getsignal(number) in known:
            signal.signal(number, how)


def _exit_now(number: int, frame: FrameType | None) -> NoReturn:
    # Not by its buffer, in which somebody may be writing at this moment; where there is none, nobody listens.
    with suppress(OSError, ValueError, AttributeError):
        os.write(sys.stderr.fileno(), describe_signal(number).encode())
    os._exit(find_exit_code(number))


def _raise_end(number: int, frame: FrameType | None) -> NoReturn:
    raise (InterruptRequested if number == INTERRUPT else EndRequested)(number)
