"""The recordings that are active in each thread.

This module is below the recorders, so it only assumes that each recorder has ``is_automatic`` and ``recording``.

Tasks of asyncio share a thread. A recording that a task begins sees this task and the tasks started from it, but not
their siblings. Each task has a copy of the context of the task that started it, and the context holds the recordings
begun so far. If all recordings belong to one task, or to none, the context is not read.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple


class _OpenRecorder(NamedTuple):
    """An open recorder, its number, and the task that began the recording, or None without a task."""

    recorder: Any
    number: int
    task: Any


_numbers = itertools.count()
#: The numbers of the recorders that this task, or an ancestor, has begun.
_BEGUN: ContextVar[frozenset[int]] = ContextVar("recorders that were begun", default=frozenset())


class _ThreadState(threading.local):
    """The recorders of a thread, and the state of torch in the thread."""

    #: All recorders begun in the thread, and the eligible recorders, outermost first.
    open_recorders: tuple[_OpenRecorder, ...] = ()
    eligible_recorders: tuple[_OpenRecorder, ...] = ()
    recorders: tuple[Any, ...] = ()
    #: True if several tasks have begun recordings.
    has_several_tasks: bool = False
    #: True while a module runs.
    in_module: bool = False

    @property
    def active_recorders(self) -> tuple[Any, ...]:
        """The recorders that see the current activity of the thread, outermost first."""
        if not self.has_several_tasks:
            return self.recorders
        begun = _BEGUN.get()
        return tuple(each.recorder for each in self.eligible_recorders if each.task is None or each.number in begun)


THREAD = _ThreadState()
#: The recordings for which in-place changes of tensors may be relevant now.
watching: set[object] = set()


def enter_recorder(recorder: Any) -> None:
    """Activate a recorder in this thread."""
    opened = _OpenRecorder(recorder, next(_numbers), _current_task())
    _BEGUN.set(_BEGUN.get() | {opened.number})
    THREAD.open_recorders = (*THREAD.open_recorders, opened)
    _update_eligible()


def leave_recorder(recorder: Any) -> None:
    """Deactivate a recorder. Recordings may end in any order."""
    closed_numbers = {each.number for each in THREAD.open_recorders if each.recorder is recorder}
    THREAD.open_recorders = tuple(each for each in THREAD.open_recorders if each.number not in closed_numbers)
    _BEGUN.set(_BEGUN.get() - closed_numbers)
    _update_eligible()
    watching.discard(recorder.recording)


def _update_eligible() -> None:
    """Compute the eligible recorders.

    An automatic recording sees nothing while an explicit recording is open inside it.
    """
    opened = THREAD.open_recorders
    THREAD.eligible_recorders = tuple(
        each
        for number, each in enumerate(opened)
        if not each.recorder.is_automatic or all(later.recorder.is_automatic for later in opened[number + 1 :])
    )
    THREAD.recorders = tuple(each.recorder for each in THREAD.eligible_recorders)
    THREAD.has_several_tasks = len({id(each.task) for each in THREAD.eligible_recorders if each.task is not None}) > 1


def _current_task() -> Any:
    """Return the running asyncio task, or None."""
    asyncio: Any = sys.modules.get("asyncio")
    return None if asyncio is None or asyncio._get_running_loop() is None else asyncio.current_task()


@contextlib.contextmanager
def hide_recorders() -> Iterator[None]:
    """Open a region in which no open recording sees this thread."""
    opened, THREAD.open_recorders = THREAD.open_recorders, ()
    _update_eligible()
    try:
        yield
    finally:
        THREAD.open_recorders = opened
        _update_eligible()


def is_active(recording: object) -> bool:
    """Return True if a recording sees the activity of this thread."""
    return any(recorder.recording is recording for recorder in THREAD.active_recorders)


def is_watching() -> bool:
    """Return True if an active recording of this thread watches in-place changes of tensors."""
    return any(recorder.recording in watching for recorder in THREAD.active_recorders)


def set_watching(recording: object, *, should_watch: bool) -> None:
    """Enable or disable a recording's watch for in-place changes of tensors."""
    if should_watch:
        watching.add(recording)
    else:
        watching.discard(recording)
