"""Deep stack: the analysis recurses as deeply as code is nested, which takes more stack than some threads have.

Python ends with a segmentation fault at the end of a thread's stack, and cannot tell the end in advance. So the
analysis runs where the stack is known to be large enough. That is the main thread on most systems, else a thread
started for the purpose. If no thread can be started, Python's own limit applies, and deeper code is reported.
"""

from __future__ import annotations

import _thread
import sys
from collections.abc import Callable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    Result = TypeVar("Result")

#: Maximum number of Python frames for the analysis of deeply nested code.
MAX_FRAMES = 9_000
#: Twice the maximum stack size of that many frames, in bytes. Of Python 3.10 to 3.13, the first needs most, 3 to 4 MB.
ENOUGH_STACK = 8 * 1024 * 1024
#: Stack size of a started thread, in bytes. Only the used part takes memory.
THREAD_STACK = 64 * 1024 * 1024

#: Seconds between two looks for an interrupt while a thread works: Python does not see an interrupt that arrives
#: between its last look and the system call that waits.
WAKING_INTERVAL = 0.2

#: Lock for values shared by the threads of a process: the recursion limit, and the stack size of new threads.
_stack_lock = _thread.allocate_lock()
#: Recursion limits that the running calls found at their start.
_saved_limits: list[int] = []


def with_deep_stack(act: Callable[[], Result]) -> Result:
    """Call ``act``, which may recurse through :data:`MAX_FRAMES` frames, here or in a thread with enough stack."""
    if _has_deep_stack():
        return _with_recursion_limit(act)
    return _run_in_thread(act)


def _has_deep_stack() -> bool:
    """Return True if this is the main thread and the system gives the thread enough stack."""
    threads = sys.modules.get("threading")
    if threads is not None and _thread.get_ident() != threads.main_thread().ident:
        return False
    try:
        import resource
    except ImportError:
        # Windows, where the main thread has 2 MB or 4 MB.
        return False
    stack_size, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return stack_size == resource.RLIM_INFINITY or stack_size >= ENOUGH_STACK


def _with_recursion_limit(act: Callable[[], Result]) -> Result:
    """Call ``act`` under a higher recursion limit, which all threads of a process share.

    The last running call restores the limit from before the first call.
    """
    with _stack_lock:
        _saved_limits.append(sys.getrecursionlimit())
        sys.setrecursionlimit(max(_saved_limits[-1], MAX_FRAMES))
    try:
        return act()
    finally:
        with _stack_lock:
            # Calls may end in any order: the limit from before the first call is kept until the last call ends.
            first = _saved_limits[0]
            _saved_limits.pop()
            if not _saved_limits:
                sys.setrecursionlimit(first)


def _run_in_thread(act: Callable[[], Result]) -> Result:
    """Run a function in a new thread and wait for the result. An interrupt also stops the thread."""
    outcome: list[Result] = []
    raised: list[BaseException] = []
    # Thread.join takes an interrupted thread for ended (Python 3.11), so a lock is used.
    under_way = _thread.allocate_lock()
    under_way.acquire()

    def run_deeper() -> None:
        try:
            outcome.append(_with_recursion_limit(act))
        except BaseException as error:  # noqa: BLE001 - it is raised where this is waited for
            raised.append(error)
        finally:
            under_way.release()

    try:
        with _stack_lock:
            before = _thread.stack_size(THREAD_STACK)
            try:
                number = _thread.start_new_thread(run_deeper, ())
            finally:
                _thread.stack_size(before)
    except RuntimeError:
        # No more threads are available: run within Python's own limit.
        return act()
    try:
        while not under_way.acquire(timeout=WAKING_INTERVAL):
            pass
    except BaseException:
        _interrupt_thread(number)
        under_way.acquire()
        raise
    if raised:
        raise raised[0]
    return outcome[0]


def _interrupt_thread(number: int) -> None:
    """Raise SystemExit in a thread at its next bytecode instruction."""
    import ctypes

    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(number), ctypes.py_object(SystemExit))
