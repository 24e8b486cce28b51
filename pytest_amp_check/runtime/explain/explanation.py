"""An exception of torch's that has ended a run, and why it was raised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ...protocol.events import Site
from ...protocol.finding import TraceStep
from ...protocol.messages import Message
from ..record.sites import is_library
from .frames import Frame


class RaisedError(NamedTuple):
    """An exception that the catalogue knows, and the calls that it has ended; ``site`` is the user's place."""

    error: BaseException
    message: Message
    frames: list[Frame]
    site: Site

    @property
    def user_frame(self) -> Frame:
        """The innermost call of the user's own code, or of a library where there is none."""
        user_frames = [frame for frame in self.frames if frame.is_user]
        return next((frame for frame in reversed(user_frames) if not is_library(frame.path)), user_frames[-1])


class Explanation(NamedTuple):
    """Why it was raised: the label of a fault, the place to put right, values of its message, and how it came about."""

    label: str
    site: Site
    message_values: Mapping[str, object]
    trace: tuple[TraceStep, ...] = ()
