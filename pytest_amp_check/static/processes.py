"""Distribution of work over processes, if the amount of work pays for their start."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from .safe_path import can_be_safe, safe_path
from .sources.atomic_replace import blocked_signals, termination_signals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess
    from typing import Any, TypeVar

    Item = TypeVar("Item")
    Result = TypeVar("Result")

#: Arguments for every item. They are set before the processes start, so each process receives them once.
_shared: object = None


class EndedEarly(Exception):
    """Error for a process that was killed from outside during its work."""


class _RemoteTraceback(Exception):
    """Traceback of an error in another process."""


def count_processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _set_shared(shared: object) -> None:
    global _shared  # noqa: PLW0603 - the one place where a process keeps what it was started with
    _shared = shared


def shared_arguments() -> Any:
    """Return the shared arguments of :func:`run_in_processes`."""
    return _shared


def run_in_processes(
    task: Callable[[Item], Result], items: Sequence[Item], jobs: int, shared_arguments: object = None
) -> Iterator[Result]:
    """Yield the result of ``task`` for each item as each task ends: in this process if ``jobs`` is 1.

    Otherwise ``jobs`` processes run the tasks. ``task`` is a module-level function and gets ``shared_arguments`` from
    :func:`shared_arguments`. Raise every error of ``task``, and :class:`EndedEarly` if a process is killed, as happens
    without enough memory.
    """
    if jobs > 1 and len(items) > 1:
        yield from _run_in_workers(task, items, min(jobs, len(items)), shared_arguments)
        return
    _set_shared(shared_arguments)
    for item in items:
        yield task(item)
    _set_shared(None)


# Of the pools of the standard library, one waits forever for the task of a killed process. The other leaves processes
# that wait forever if this process is killed. With one pipe to each process, both sides notice the end of the other
# side.
def _run_in_workers(
    task: Callable[[Item], Result], items: Sequence[Item], jobs: int, shared_arguments: object
) -> Iterator[Result]:
    from multiprocessing import connection

    left = iter(items)
    workers = _WorkerPool(task, shared_arguments)
    try:
        for ours in workers.start(jobs):
            _send_item(ours, next(left))
        busy = list(workers.pipes)
        while busy:
            ready: Any = connection.wait(busy)
            for ours in ready:
                result, error, where = _receive_result(ours)
                if error is not None:
                    raise error from _RemoteTraceback(where)
                for item in left:
                    _send_item(ours, item)
                    break
                else:
                    busy.remove(ours)
                yield result
    finally:
        workers.stop()
    # No process could be started.
    yield from run_in_processes(task, list(left), 1, shared_arguments)


class _WorkerPool:
    """Pool of worker processes: as many as requested and available."""

    def __init__(self, task: Callable[[Any], object], shared_arguments: object) -> None:
        import multiprocessing

        self._task = task
        self._shared_arguments = shared_arguments
        # A forked process starts with all modules imported. Forking is not safe in a process with threads.
        self._uses_fork = sys.platform.startswith("linux") and not _has_threads()
        self._context: Any = multiprocessing.get_context("fork" if self._uses_fork else "spawn")
        #: This side of the pipe to each process.
        self.pipes: dict[Connection[Any, Any], BaseProcess] = {}
        #: Pipe without data. The pipe closes when this process ends, for any reason.
        self._lifeline: list[Connection[Any, Any]] = []

    def start(self, jobs: int) -> Iterator[Connection[Any, Any]]:
        """Start worker processes until the system has no more processes or open files."""
        if not (self._uses_fork or can_be_safe()):
            return
        with suppress(OSError):
            self._lifeline += self._context.Pipe(duplex=False)
            while len(self.pipes) < jobs:
                ours, theirs = self._context.Pipe()
                try:
                    self.pipes[ours] = self._start_worker(ours, theirs)
                except OSError:
                    ours.close()
                    raise
                finally:
                    theirs.close()
        yield from list(self.pipes)

    def _start_worker(self, ours: Connection[Any, Any], theirs: Connection[Any, Any]) -> BaseProcess:
        watched, life = self._lifeline
        # A forked process would keep these pipes open, and would not notice the end of this process.
        inherited = [*self.pipes, ours, life] if self._uses_fork else []
        process: BaseProcess = self._context.Process(
            target=_run_worker, args=(theirs, watched, inherited, self._task, self._shared_arguments), daemon=True
        )
        # A forked process must not handle a signal for this process.
        with blocked_signals() if self._uses_fork else safe_path(), warnings.catch_warnings():
            # From Python 3.15 on, fork warns of threads that `threading` does not know: the thread of an xdist worker
            # that waits for messages, and the thread that waits for a deep stack. Neither holds a lock of the analysis.
            warnings.filterwarnings("ignore", ".* multi-threaded, use of fork", DeprecationWarning)
            process.start()
        return process

    def stop(self) -> None:
        for ours, process in self.pipes.items():
            process.terminate()
            process.join()
            ours.close()
        for each in self._lifeline:
            each.close()


def _send_item(pipe: Connection[Any, Any], item: object) -> None:
    try:
        pipe.send(item)
    except OSError as error:
        raise EndedEarly from error


def _receive_result(pipe: Connection[Any, Any]) -> Any:
    try:
        return pipe.recv()
    except (EOFError, OSError) as error:
        raise EndedEarly from error


def _run_worker(
    pipe: Connection[Any, Any],
    watched: Connection[Any, Any],
    inherited: list[Connection[Any, Any]],
    task: Callable[[Any], object],
    shared_arguments: object,
) -> None:
    """Run tasks in a worker process until the other side of the pipe is closed or its process ends."""
    import gc
    import signal
    import threading

    for each in inherited:
        each.close()
    # An interrupt from the keyboard reaches all processes; the parent process reports it.
    for number in termination_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, termination_signals())
    threading.Thread(target=_exit_with_parent, args=(watched,), daemon=True).start()
    # The objects from the start live as long as the process.
    gc.disable()
    gc.freeze()
    _set_shared(shared_arguments)
    try:
        while True:
            pipe.send(_run_task(task, pipe.recv()))
    except (EOFError, OSError):
        pass


def _exit_with_parent(watched: Connection[Any, Any]) -> None:
    """End this process as soon as the parent process is gone, even during a task."""
    with suppress(EOFError, OSError):
        watched.recv_bytes()
    os._exit(1)


def _run_task(task: Callable[[Any], object], item: object) -> tuple[object, Exception | None, str]:
    try:
        return task(item), None, ""
    except Exception as error:  # noqa: BLE001 - it is raised where the results are waited for
        import traceback

        return None, error, traceback.format_exc()


def _has_threads() -> bool:
    import threading

    return threading.active_count() > 1
