"""What torch.jit.trace makes of a module that autocast runs in."""

from __future__ import annotations

from ....protocol import events as e
from ..source import SourceText
from .listener import Listener, listens

#: What torch says of a trace that finds a cast weight in the cache of a region.
CONSTANT = "requires grad as a constant"


class Traces(Listener):
    """Listens to traces that fail."""

    @listens
    def failed(self, error: BaseException) -> None:
        if isinstance(error, RuntimeError) and CONSTANT in str(error):
            site = self.sites.here()
            self.recording.emit(e.CAPTURE, site, how="trace", names={"call": SourceText(site)})
