"""Processes that multiprocessing spawns, without code of the folder that is checked.

Each is started as ``python -c``, which searches the working folder first: a file ``multiprocessing.py`` in it would be
executed. Then each runs the main module of this process anew, which may be any script that calls the check.
"""

from __future__ import annotations

import _thread
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

#: Has Python leave the working folder out, from 3.11 on.
_VARIABLE = "PYTHONSAFEPATH"
#: Guards the variables of this process, and the function that is replaced.
_environment_lock = _thread.allocate_lock()


def can_be_safe() -> bool:
    """Return True if the processes that :func:`safe_path` covers leave the working folder out."""
    # ``python -E`` has its children ignore variables, too.
    return sys.version_info < (3, 11) or bool(sys.flags.safe_path) or not sys.flags.ignore_environment


@contextmanager
def safe_path() -> Iterator[None]:
    """Have processes that are spawned meanwhile search no working folder and run no script; all is restored after."""
    with _environment_lock, _without_main_module():
        if sys.version_info >= (3, 11):
            yield from _set_safe_variable()
        else:
            yield from _isolate_by_flags()


@contextmanager
def _without_main_module() -> Iterator[None]:
    """Hide the main module, of which nothing that the processes are given is a part."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _set_safe_variable() -> Iterator[None]:
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = before


def _isolate_by_flags() -> Iterator[None]:
    """Have Python 3.10 isolate what it spawns, and the process that cleans up after that.

    It has no such variable, and as it gets no further release, the function that gives the flags stays what it is. The
    search path of this process is sent to the others.
    """
    from multiprocessing import util

    name = "_args_from_interpreter_flags"
    flags = getattr(util, name)
    utf8 = ["-X", "utf8"] if sys.flags.utf8_mode else []
    setattr(util, name, lambda: [*flags(), "-I", *utf8])
    try:
        yield
    finally:
        setattr(util, name, flags)
