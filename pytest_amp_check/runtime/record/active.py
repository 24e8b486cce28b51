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


class _Open(NamedTuple):
    """A recorder that was begun, its number, and the task that has begun it, if one was running."""

    recorder: Any
    number: int
    task: Any


_numbers = itertools.count()
#: The numbers of the recorders that this task has begun, or one that it descends from.
_BEGUN: ContextVar[frozenset[int]] = ContextVar("recorders that were begun", default=frozenset())


class _Thread(threading.local):
    """The recorders of a thread, and what torch does in it."""

    #: All that were begun in it, and those of them that may see what it does now, outermost first.
    open: tuple[_Open, ...] = ()
    chosen: tuple[_Open, ...] = ()
    recorders: tuple[Any, ...] = ()
    #: Whether more than one task has begun them.
    tasks: bool = False
    #: Whether torch is clearing gradients.
    clearing: bool = False
    #: Whether a module runs.
    in_module: bool = False

    @property
    def active(self) -> tuple[Any, ...]:
        """The recorders that see what it does now, outermost first."""
        if not self.tasks:
            return self.recorders
        begun = _BEGUN.get()
        return tuple(each.recorder for each in self.chosen if each.task is None or each.number in begun)


THREAD = _Thread()
#: The recordings that changes of tensors in place may concern now.
watching: set[object] = set()


def enter(recorder: Any) -> None:
    """Let a recorder see what this thread does."""
    begun = _Open(recorder, next(_numbers), _task())
    _BEGUN.set(_BEGUN.get() | {begun.number})
    THREAD.open = (*THREAD.open, begun)
    _choose()


def leave(recorder: Any) -> None:
    """Let it see no more. Recordings need not end in the order in which they began."""
    ended = {each.number for each in THREAD.open if each.recorder is recorder}
    THREAD.open = tuple(each for each in THREAD.open if each.number not in ended)
    _BEGUN.set(_BEGUN.get() - ended)
    _choose()
    watching.discard(recorder.recording)


def _choose() -> None:
    """An automatic recording sees nothing while somebody records for themselves."""
    opened = THREAD.open
    THREAD.chosen = tuple(
        each
        for number, each in enumerate(opened)
        if not each.recorder.automatic or all(later.recorder.automatic for later in opened[number + 1 :])
    )
    THREAD.recorders = tuple(each.recorder for each in THREAD.chosen)
    THREAD.tasks = len({id(each.task) for each in THREAD.chosen if each.task is not None}) > 1


def _task() -> Any:
    """The task of asyncio that is running."""
    asyncio: Any = sys.modules.get("asyncio")
    return None if asyncio is None or asyncio._get_running_loop() is None else asyncio.current_task()


@contextlib.contextmanager
def hidden() -> Iterator[None]:
    """What this thread does in the ``with`` block is seen by no recording that is open."""
    opened, THREAD.open = THREAD.open, ()
    _choose()
    try:
        yield
    finally:
        THREAD.open = opened
        _choose()


def is_active(recording: object) -> bool:
    """Whether a recording sees what this thread does."""
    return any(recorder.recording is recording for recorder in THREAD.active)


def is_watching() -> bool:
    """Whether a recording that sees what this thread does watches the changes of tensors in place."""
    return any(recorder.recording in watching for recorder in THREAD.active)


def watch(recording: object, *, wanted: bool) -> None:
    """Take note of whether a recording watches them."""
    if wanted:
        watching.add(recording)
    else:
        watching.discard(recording)
