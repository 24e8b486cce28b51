"""The reported non-finite input of a step, and the calls that compute such inputs before a forward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CodeType

from ....protocol import events as e
from ....protocol.sites import Site
from ..tape import Tape


class InputWatch:
    """A watch over the ops between a step and the next forward pass."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        #: The reported non-finite input of a step, until a later step shows the op that computes it.
        self.event: e.NotFinite | None = None
        #: True after the first non-finite input: steps are then watched from their beginning.
        self.is_on = False
        #: Numbers of the first call after the last step, and of the first call of the forward pass, None before it.
        self._preparation_start = 0
        self._forward_start: int | None = None

    def note_step(self) -> None:
        """Begin a preparation with the next call."""
        self._preparation_start, self._forward_start = self._tape.next_serial, None

    def note_forward(self) -> None:
        """End the preparation, if the forward pass has not begun yet."""
        if self._forward_start is None:
            self._forward_start = self._tape.next_serial

    def record_event(self, event: e.NotFinite) -> None:
        """Remember a reported input, and watch the preparations from now on."""
        self.event, self.is_on = event, True

    def take_event(
        self, site: Site | None, locate: Callable[[Sequence[tuple[CodeType, int]]], Site]
    ) -> e.NotFinite | None:
        """Return and forget the reported input if a call of the preparation at ``site`` computes it, else None."""
        event = self.event
        forward_start = self._tape.next_serial if self._forward_start is None else self._forward_start
        prepared = (self._tape.calls.get(serial) for serial in range(self._preparation_start, forward_start))
        if event is None or not any(
            call is not None and call.positions and locate(call.positions) is site for call in prepared
        ):
            return None
        self.event = None
        return event
