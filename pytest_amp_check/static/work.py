"""Spreads work over processes, where there is enough of it to pay for their start."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    Item = TypeVar("Item")
    Result = TypeVar("Result")

#: Set before the processes start, so that what every item needs is sent to each process once.
_shared: object = None


def processors() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _begin(shared: object) -> None:
    global _shared  # noqa: PLW0603 - the one place where a process keeps what it was started with
    _shared = shared


def _start(shared: object) -> None:
    """Begin a process of its own: what it was started with lives as long as it does."""
    import gc

    gc.disable()
    gc.freeze()
    _begin(shared)


def shared() -> Any:
    """What :func:`spread` was given for every item."""
    return _shared


def spread(act: Callable[[Item], Result], items: Sequence[Item], jobs: int, given: object = None) -> Iterator[Result]:
    """The results of ``act`` on each item, as they come: in this process if ``jobs`` is 1, else in as many.

    ``act`` is a function of a module, and finds ``given`` in :func:`shared`.
    """
    if jobs <= 1 or len(items) <= 1:
        _begin(given)
        for item in items:
            yield act(item)
        _begin(None)
        return
    import multiprocessing

    # A forked process starts with everything imported; where there are threads about, forking is not safe.
    forks = sys.platform.startswith("linux") and not _has_threads()
    context = multiprocessing.get_context("fork" if forks else "spawn")
    with context.Pool(min(jobs, len(items)), _start, (given,)) as pool:
        yield from pool.imap_unordered(act, items)


def _has_threads() -> bool:
    import threading

    return threading.active_count() > 1
