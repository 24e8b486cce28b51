"""The user's line for warnings that torch attributes to a frame of this package.

A patched or emulated function of torch has a caller in this package. Warnings of compiled code, and those with a stack
level of 2, are attributed to it.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from types import FrameType
from typing import Any

import torch

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_OURS_AND_TORCHS = (_OURS, os.path.dirname(os.path.abspath(torch.__file__)) + os.sep)
_LOCK = threading.Lock()
_original: Any = warnings.WarningMessage
_users = 0


class _LocatedWarning(warnings.WarningMessage):
    """A warning whose location is the nearest caller outside of this package and of torch, which calls this package."""

    def __init__(self, message: Any, category: Any, filename: str, lineno: int, *args: Any, **kwargs: Any) -> None:
        if filename.startswith(_OURS):
            frame: FrameType | None = sys._getframe(1)
            while frame is not None and frame.f_code.co_filename.startswith(_OURS_AND_TORCHS):
                frame = frame.f_back
            if frame is not None:
                filename, lineno = frame.f_code.co_filename, frame.f_lineno
        super().__init__(message, category, filename, lineno, *args, **kwargs)


def acquire_locations() -> None:
    """Correct the locations of warnings until :func:`release_locations` is called as often as this function."""
    global _users, _original  # noqa: PLW0603 - the process has one class of warnings
    with _LOCK:
        if _users == 0:
            _original = warnings.WarningMessage
            warnings.WarningMessage = _LocatedWarning  # type: ignore[misc]
        _users += 1


def release_locations() -> None:
    global _users  # noqa: PLW0603
    with _LOCK:
        _users -= 1
        if _users == 0:
            warnings.WarningMessage = _original  # type: ignore[misc]
