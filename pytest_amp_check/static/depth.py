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
FRAMES = 9_000
#: Bytes of stack that so many frames take at most, twice over: of Python 3.10 to 3.13, the first needs most, 3 to 4 MB.
ENOUGH = 8 * 1024 * 1024
#: Bytes of the stack of a thread that is started: only what is used of it takes memory.
OWN = 64 * 1024 * 1024

#: Guards what the threads of a process have in common: the limit of recursion, and the size of the stacks of new ones.
_common = _thread.allocate_lock()
#: The limits that the readings which are under way have found.
_limits: list[int] = []


def with_room(act: Callable[[], Result]) -> Result:
    """Do something that may recurse through :data:`FRAMES` frames, here or in a thread that has the stack for it."""
    if _has_room():
        return _deeper(act)
    return _apart(act)


def _has_room() -> bool:
    """Whether this is the main thread, and the system gives it enough."""
    threads = sys.modules.get("threading")
    if threads is not None and _thread.get_ident() != threads.main_thread().ident:
        return False
    try:
        import resource
    except ImportError:
        # Windows, where the main thread has 2 MB or 4 MB.
        return False
    given, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return given == resource.RLIM_INFINITY or given >= ENOUGH


def _deeper(act: Callable[[], Result]) -> Result:
    """Do something under a higher limit of recursion, which all threads of a process have in common.

    The last of those that are under way brings the limit back that there was before the first.
    """
    with _common:
        _limits.append(sys.getrecursionlimit())
        sys.setrecursionlimit(max(_limits[-1], FRAMES))
    try:
        return act()
    finally:
        with _common:
            # Whichever of them ends, what the first has found stays until the last one does.
            first = _limits[0]
            _limits.pop()
            if not _limits:
                sys.setrecursionlimit(first)


def _apart(act: Callable[[], Result]) -> Result:
    """Do something in a thread of its own, and wait for it; an interrupt ends it there, too."""
    outcome: list[Result] = []
    raised: list[BaseException] = []
    # Not Thread.join, which takes a thread for ended when it is interrupted (Python 3.11).
    under_way = _thread.allocate_lock()
    under_way.acquire()

    def run() -> None:
        try:
            outcome.append(_deeper(act))
        except BaseException as error:  # noqa: BLE001 - it is raised where this is waited for
            raised.append(error)
        finally:
            under_way.release()

    try:
        with _common:
            before = _thread.stack_size(OWN)
            try:
                number = _thread.start_new_thread(run, ())
            finally:
                _thread.stack_size(before)
    except RuntimeError:
        # There can be no more threads: as deep as Python goes by itself.
        return act()
    try:
        under_way.acquire()
    except BaseException:
        _end(number)
        under_way.acquire()
        raise
    if raised:
        raise raised[0]
    return outcome[0]


def _end(number: int) -> None:
    """Have a thread leave what it does at its next step."""
    import ctypes

    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(number), ctypes.py_object(SystemExit))
