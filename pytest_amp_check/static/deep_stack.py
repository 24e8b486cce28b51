"""Room for deep code: reading follows it as deep as it is nested, which takes more of the stack than some threads have.

Python ends with a segmentation fault where the stack of a thread does, and cannot say before how far that is. So code
is read where the stack is known to be large enough: in the main thread, where the system gives it what most do, else in
a thread that is started for it. Where there can be none, Python's own limit holds, and what is deeper is said to be so.
"""

from __future__ import annotations

import _thread
import sys
from collections.abc import Callable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    Result = TypeVar("Result")

#: Python frames that reading deeply nested code may take.
MAX_FRAMES = 9_000
#: Bytes of stack that so many frames take at most, twice over: of Python 3.10 to 3.13, the first needs most, 3 to 4 MB.
ENOUGH_STACK = 8 * 1024 * 1024
#: Bytes of the stack of a thread that is started: only what is used of it takes memory.
THREAD_STACK = 64 * 1024 * 1024

#: Guards what the threads of a process have in common: the limit of recursion, and the size of the stacks of new ones.
_stack_lock = _thread.allocate_lock()
#: The limits that the readings which are under way have found.
_saved_limits: list[int] = []


def with_deep_stack(act: Callable[[], Result]) -> Result:
    """Do something that may recurse through :data:`FRAMES` frames, here or in a thread that has the stack for it."""
    if _has_deep_stack():
        return _with_recursion_limit(act)
    return _run_in_thread(act)


def _has_deep_stack() -> bool:
    """Whether this is the main thread, and the system gives it enough."""
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
    """Do something under a higher limit of recursion, which all threads of a process have in common.

    The last of those that are under way brings the limit back that there was before the first.
    """
    with _stack_lock:
        _saved_limits.append(sys.getrecursionlimit())
        sys.setrecursionlimit(max(_saved_limits[-1], MAX_FRAMES))
    try:
        return act()
    finally:
        with _stack_lock:
            # Whichever of them ends, what the first has found stays until the last one does.
            first = _saved_limits[0]
            _saved_limits.pop()
            if not _saved_limits:
                sys.setrecursionlimit(first)


def _run_in_thread(act: Callable[[], Result]) -> Result:
    """Do something in a thread of its own, and wait for it; an interrupt ends it there, too."""
    outcome: list[Result] = []
    raised: list[BaseException] = []
    # Not Thread.join, which takes a thread for ended when it is interrupted (Python 3.11).
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
        # There can be no more threads: as deep as Python goes by itself.
        return act()
    try:
        under_way.acquire()
    except BaseException:
        _interrupt_thread(number)
        under_way.acquire()
        raise
    if raised:
        raise raised[0]
    return outcome[0]


def _interrupt_thread(number: int) -> None:
    """Have a thread leave what it does at its next step."""
    import ctypes

    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(number), ctypes.py_object(SystemExit))
