"""Which recordings see what a thread does.

This module stands below the recorders, so it knows of them only that each has an ``automatic`` and a ``recording``.

Tasks of asyncio take turns in a thread. A recording that one of them has begun sees that task and those that it has
started, not its siblings: each task has a copy of the context of the one that started it, where the recordings stand
that were begun. As long as all were begun by the same task, or outside of any, nobody asks for that.
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
    """A recorder that was begun, its number, and the task that has begun it, if one was running."""

    recorder: Any
    number: int
    task: Any


_numbers = itertools.count()
#: The numbers of the recorders that this task has begun, or one that it descends from.
_BEGUN: ContextVar[frozenset[int]] = ContextVar("recorders that were begun", default=frozenset())


class _ThreadState(threading.local):
    """The recorders of a thread, and what torch does in it."""

    #: All that were begun in it, and those of them that may see what it does now, outermost first.
    open_recorders: tuple[_OpenRecorder, ...] = ()
    eligible_recorders: tuple[_OpenRecorder, ...] = ()
    recorders: tuple[Any, ...] = ()
    #: Whether more than one task has begun them.
    has_several_tasks: bool = False
    #: Whether torch is clearing gradients.
    is_clearing: bool = False
    #: Whether a module runs.
    in_module: bool = False

    @property
    def active_recorders(self) -> tuple[Any, ...]:
        """The recorders that see what it does now, outermost first."""
        if not self.has_several_tasks:
            return self.recorders
        begun = _BEGUN.get()
        return tuple(each.recorder for each in self.eligible_recorders if each.task is None or each.number in begun)


THREAD = _ThreadState()
#: The recordings that changes of tensors in place may concern now.
watching: set[object] = set()


def enter_recorder(recorder: Any) -> None:
    """Let a recorder see what this thread does."""
    opened = _OpenRecorder(recorder, next(_numbers), _current_task())
    _BEGUN.set(_BEGUN.get() | {opened.number})
    THREAD.open_recorders = (*THREAD.open_recorders, opened)
    _update_eligible()


def leave_recorder(recorder: Any) -> None:
    """Let it see no more. Recordings need not end in the order in which they began."""
    closed_numbers = {each.number for each in THREAD.open_recorders if each.recorder is recorder}
    THREAD.open_recorders = tuple(each for each in THREAD.open_recorders if each.number not in closed_numbers)
    _BEGUN.set(_BEGUN.get() - closed_numbers)
    _update_eligible()
    watching.discard(recorder.recording)


def _update_eligible() -> None:
    """An automatic recording sees nothing while somebody records for themselves."""
    opened = THREAD.open_recorders
    THREAD.eligible_recorders = tuple(
        each
        for number, each in enumerate(opened)
        if not each.recorder.is_automatic or all(later.recorder.is_automatic for later in opened[number + 1 :])
    )
    THREAD.recorders = tuple(each.recorder for each in THREAD.eligible_recorders)
    THREAD.has_several_tasks = len({id(each.task) for each in THREAD.eligible_recorders if each.task is not None}) > 1


def _current_task() -> Any:
    """The task of asyncio that is running."""
    asyncio: Any = sys.modules.get("asyncio")
    return None if asyncio is None or asyncio._get_running_loop() is None else asyncio.current_task()


@contextlib.contextmanager
def hide_recorders() -> Iterator[None]:
    """What this thread does in the ``with`` block is seen by no recording that is open."""
    opened, THREAD.open_recorders = THREAD.open_recorders, ()
    _update_eligible()
    try:
        yield
    finally:
        THREAD.open_recorders = opened
        _update_eligible()


def is_active(recording: object) -> bool:
    """Whether a recording sees what this thread does."""
    return any(recorder.recording is recording for recorder in THREAD.active_recorders)


def is_watching() -> bool:
    """Whether a recording that sees what this thread does watches the changes of tensors in place."""
    return any(recorder.recording in watching for recorder in THREAD.active_recorders)


def set_watching(recording: object, *, should_watch: bool) -> None:
    """Take note of whether a recording watches them."""
    if should_watch:
        watching.add(recording)
    else:
        watching.discard(recording)
