"""Overflows of the forward pass that the loss does not show, searched in few steps."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

from ....protocol import events as e
from ....protocol.events import Event
from ....protocol.sites import Call
from ..overflows import OverflowMode
from ..recording import Recording
from ..source.call_texts import SiteText
from .listener import Listener

#: Factor between the searched steps: 0, 10, 100, and so on. A searched forward pass takes several times as long.
EVERY = 10


class OverflowListener(Listener):
    """A listener that watches the ops of a float16 region in few steps.

    Its methods change the stack of dispatch modes, so no guard may restore the stack around them.
    """

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        self._mode: OverflowMode | None = None
        #: Location of a region, whoever calls its function, to the next step in which the region is searched.
        self._next_steps: dict[Call, int] = {}
        #: Events of the last searched forward pass.
        self._found: list[Event] = []

    def start(self, region: Any) -> None:
        """Start the search in a region that was entered, if one is due."""
        open_regions = self.regions.open_regions
        if self._mode is not None or not open_regions:
            return
        total, key = self.recording.steps.total, open_regions[-1].site.call_key
        if total < self._next_steps.get(key, 0) or not self._may_search(region):
            return
        self._next_steps[key] = max(EVERY, EVERY * total)
        self._mode = OverflowMode()
        self._mode.__enter__()  # type: ignore[no-untyped-call]

    def _may_search(self, region: Any) -> bool:
        recording = self.recording
        if recording.failure is not None or recording.is_busy or recording.backward_depth:
            return False
        return (
            bool(region._enabled)
            and region.fast_dtype is torch.float16
            and torch.is_grad_enabled()
            and not torch._C._len_torch_dispatch_stack()
            and not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())
            and not _compiles()
        )

    def stop(self) -> None:
        """End the search, when the region is left or a backward pass begins."""
        mode = self._mode
        if mode is None or _get_current_dispatch_mode() is not mode:
            return
        self._mode = None
        mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        try:
            hidden = mode.find_hidden(self.sites.site_of_calls)
        except Exception as error:  # noqa: BLE001 - the training goes on, and it is reported at the end
            mode.failure, hidden = error, []
        self.recording.failure = self.recording.failure or mode.failure
        for each in hidden:
            names = {"op": each.op, "step": str(self.recording.steps.total), "call": SiteText(each.site)}
            names["line"] = str(each.division_site.line)
            trace = ((each.site, "a result is infinite"), (each.division_site, "it divides, and gives zero"))
            self._found.append(e.NotFinite(each.site, how="hidden", trace=trace, names=dict(names)))

    def take_found(self) -> list[Event]:
        """Return the overflows of the latest forward pass, which are findings if the loss is finite.

        A loss that is not finite has its own finding.
        """
        found, self._found = self._found, []
        return found


def _compiles() -> bool:
    """Return True if this process compiles code, which is compiled differently under a mode."""
    backends = getattr(sys.modules.get("torch._dynamo.eval_frame"), "cached_backends", {})
    # A function that is excluded from compilation has the backend None.
    return any(backend is not None for backend in backends.values())
