"""Threads that receive work in an autocast region."""

from __future__ import annotations

from ....protocol import events as e
from ..recording import Recording
from ..source.call_texts import SiteText
from ..threads import ThreadWatch
from .listener import Listener, listener_method


class ThreadListener(Listener):
    """A listener for threads that receive work."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        self._watches: list[ThreadWatch] = []

    @listener_method
    def record_work(self) -> ThreadWatch | None:
        """Record work for another thread, submitted inside a region. Return the watch for the thread."""
        watch = ThreadWatch(
            self.sites.current_site(), len(self.regions.open_regions), self.regions.open_regions[-1].device
        )
        self._watches.append(watch)
        return watch

    def report_threads(self) -> None:
        """Report threads that ran modules without autocast on work from the innermost region, which is about to end."""
        depth = len(self.regions.open_regions)
        for watch in [w for w in self._watches if w.depth == depth]:
            self._watches.remove(watch)
            watch.stop()
            if watch.ran_without_autocast and not watch.ran_with_autocast:
                self.recording.emit(e.Thread(watch.site, how="thread", names={"call": SiteText(watch.site)}))

    def clear_watches(self) -> None:
        """End all watches, when the recording ends."""
        for watch in self._watches:
            watch.stop()
        self._watches.clear()
