"""A torch exception that ended a run, and its explanation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ...protocol.finding import TraceStep
from ...protocol.messages import Message
from ...protocol.sites import Site
from ..record.sites import is_library
from .frames import Frame


class RaisedError(NamedTuple):
    """An exception that the catalog of messages knows, and its frames. ``site`` is the user's source location."""

    error: BaseException
    message: Message
    frames: list[Frame]
    site: Site

    @property
    def user_frame(self) -> Frame:
        """The innermost frame of the user's own code, or of a library if there is no user code."""
        user_frames = [frame for frame in self.frames if frame.is_user]
        return next((frame for frame in reversed(user_frames) if not is_library(frame.path)), user_frames[-1])


class Explanation(NamedTuple):
    """The reason for an exception: the label of a violation, the location to fix, values of the message, the trace."""

    label: str
    site: Site
    message_values: Mapping[str, object]
    trace: tuple[TraceStep, ...] = ()
