"""Safe start of processes that multiprocessing spawns: no code of the checked folder runs.

Each process starts as ``python -c``, which searches the working folder first, and would run a file
``multiprocessing.py`` there. Each process then runs the main module of this process again, which may be any script that
calls the check.
"""

from __future__ import annotations

import _thread
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

#: Variable that excludes the working folder from Python's search path, from 3.11 on.
_VARIABLE = "PYTHONSAFEPATH"
#: Lock for the environment variables of this process, and for the replaced function.
_environment_lock = _thread.allocate_lock()


def can_be_safe() -> bool:
    """Return True if the processes started under :func:`safe_path` do not search the working folder."""
    # Children of ``python -E`` ignore variables, too.
    return sys.version_info < (3, 11) or bool(sys.flags.safe_path) or not sys.flags.ignore_environment


@contextmanager
def safe_path() -> Iterator[None]:
    """Start spawned processes without the working folder on the path and without the main script.

    The environment is restored afterwards.
    """
    with _environment_lock, _without_main_module():
        if sys.version_info >= (3, 11):
            yield from _set_safe_variable()
        else:
            yield from _isolate_by_flags()


@contextmanager
def _without_main_module() -> Iterator[None]:
    """Hide the main module. No argument of the processes refers to the main module."""
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
    """Isolate the processes that Python 3.10 spawns, and the process that cleans up after them.

    Python 3.10 has no such variable. Python 3.10 gets no further release, so the private function for the flags stays
    the same. The processes receive the search path of this process.
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
