"""Failures of torch.jit.trace for modules under autocast."""

from __future__ import annotations

from ....protocol import events as e
from ..source.call_texts import SiteText
from .listener import Listener, listener_method

#: Part of torch's message for a trace that finds a cast weight in the cache of a region.
CONSTANT = "requires grad as a constant"


class TraceListener(Listener):
    """A listener for failed traces."""

    @listener_method
    def record_failure(self, error: BaseException) -> None:
        if isinstance(error, RuntimeError) and CONSTANT in str(error):
            site = self.sites.current_site()
            self.recording.emit(e.Capture(site, how="trace", names={"call": SiteText(site)}))
