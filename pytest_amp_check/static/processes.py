"""Spreads work over processes, where there is enough of it to pay for their start."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess
    from typing import Any, TypeVar

    Item = TypeVar("Item")
    Result = TypeVar("Result")

#: Set before the processes start, so that what every item needs is sent to each process once.
_shared: object = None


class EndedEarly(Exception):
    """A process was ended from outside while there was work for it."""


class _Elsewhere(Exception):
    """Where an error came up, in another process."""


def processors() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _begin(shared: object) -> None:
    global _shared  # noqa: PLW0603 - the one place where a process keeps what it was started with
    _shared = shared


def shared() -> Any:
    """What :func:`spread` was given for every item."""
    return _shared


def spread(act: Callable[[Item], Result], items: Sequence[Item], jobs: int, given: object = None) -> Iterator[Result]:
    """The results of ``act`` on each item, as they come: in this process if ``jobs`` is 1, else in as many.

    ``act`` is a function of a module, and finds ``given`` in :func:`shared`. Raises what ``act`` raises, and
    :class:`EndedEarly` where a process is killed, as happens for want of memory.
    """
    if jobs > 1 and len(items) > 1:
        yield from _spread(act, items, min(jobs, len(items)), given)
        return
    _begin(given)
    for item in items:
        yield act(item)
    _begin(None)


# Of the pools of the standard library, one waits for ever for what a killed process had in hand, and the other leaves
# processes behind that wait for ever where this one is killed. With a pipe to each, either side sees the other's end.
def _spread(act: Callable[[Item], Result], items: Sequence[Item], jobs: int, given: object) -> Iterator[Result]:
    import multiprocessing
    from multiprocessing import connection

    # A forked process starts with everything imported; where there are threads about, forking is not safe.
    forks = sys.platform.startswith("linux") and not _has_threads()
    context: Any = multiprocessing.get_context("fork" if forks else "spawn")
    left = iter(items)
    processes: dict[Connection[Any, Any], BaseProcess] = {}
    try:
        for _ in range(jobs):
            ours, theirs = context.Pipe()
            # What is open here would stay open in a forked process, which would then not see that this one has ended.
            inherited = [*processes, ours] if forks else []
            process = context.Process(target=_serve, args=(theirs, inherited, act, given), daemon=True)
            process.start()
            theirs.close()
            processes[ours] = process
            _tell(ours, next(left))
        busy = list(processes)
        while busy:
            ready: Any = connection.wait(busy)
            for ours in ready:
                result, error, where = _hear(ours)
                if error is not None:
                    raise error from _Elsewhere(where)
                for item in left:
                    _tell(ours, item)
                    break
                else:
                    busy.remove(ours)
                yield result
    finally:
        for ours, process in processes.items():
            process.terminate()
            process.join()
            ours.close()


def _tell(pipe: Connection[Any, Any], item: object) -> None:
    try:
        pipe.send(item)
    except OSError as error:
        raise EndedEarly from error


def _hear(pipe: Connection[Any, Any]) -> Any:
    try:
        return pipe.recv()
    except (EOFError, OSError) as error:
        raise EndedEarly from error


def _serve(
    pipe: Connection[Any, Any], inherited: list[Connection[Any, Any]], act: Callable[[Any], object], given: object
) -> None:
    """Work in a process of its own, until the other side of the pipe is closed."""
    import gc
    import signal

    for each in inherited:
        each.close()
    # An interrupt from the keyboard reaches all processes, and the one that started them speaks of it.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # What it was started with lives as long as it does.
    gc.disable()
    gc.freeze()
    _begin(given)
    try:
        while True:
            pipe.send(_answer(act, pipe.recv()))
    except (EOFError, OSError):
        pass


def _answer(act: Callable[[Any], object], item: object) -> tuple[object, Exception | None, str]:
    try:
        return act(item), None, ""
    except Exception as error:  # noqa: BLE001 - it is raised where the results are waited for
        import traceback

        return None, error, traceback.format_exc()


def _has_threads() -> bool:
    import threading

    return threading.active_count() > 1
