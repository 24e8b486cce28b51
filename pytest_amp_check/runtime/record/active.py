"""Which recordings see what a thread does.

This module stands below the recorders, so it knows of them only that each has an ``automatic`` and a ``recording``.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any


class _Thread(threading.local):
    """The recorders of a thread, and what torch does in it."""

    #: All that were begun in it, and those of them that see what it does now, outermost first.
    open: tuple[Any, ...] = ()
    active: tuple[Any, ...] = ()
    #: Whether torch is clearing gradients.
    clearing: bool = False
    #: Whether a module runs.
    in_module: bool = False


THREAD = _Thread()
#: The recordings that changes of tensors in place may concern now.
watching: set[object] = set()


def enter(recorder: Any) -> None:
    """Let a recorder see what this thread does."""
    THREAD.open = (*THREAD.open, recorder)
    _choose()


def leave(recorder: Any) -> None:
    """Let it see no more. Recordings need not end in the order in which they began."""
    THREAD.open = tuple(other for other in THREAD.open if other is not recorder)
    _choose()
    watching.discard(recorder.recording)


def _choose() -> None:
    """An automatic recording sees nothing while somebody records for themselves."""
    recorders = THREAD.open
    THREAD.active = tuple(
        recorder
        for number, recorder in enumerate(recorders)
        if not recorder.automatic or all(later.automatic for later in recorders[number + 1 :])
    )


@contextlib.contextmanager
def hidden() -> Iterator[None]:
    """What this thread does in the ``with`` block is seen by no recording that is open."""
    recorders, THREAD.open = THREAD.open, ()
    _choose()
    try:
        yield
    finally:
        THREAD.open = recorders
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
