"""Threads that are given work in an autocast region."""

from __future__ import annotations

from ....protocol import events as e
from ..recording import Recording
from ..source import SourceText
from ..threads import Watch
from .listener import Listener, listens


class Threads(Listener):
    """Listens to threads that are given work."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        self._watches: list[Watch] = []

    @listens
    def asked(self) -> Watch | None:
        """Another thread is given work, in a region."""
        watch = Watch(self.sites.here(), len(self.regions.open), self.regions.open[-1].device)
        self._watches.append(watch)
        return watch

    def report(self) -> None:
        """The innermost region is left: report the threads that were given work in it and ran modules without it."""
        depth = len(self.regions.open)
        for watch in [w for w in self._watches if w.depth == depth]:
            self._watches.remove(watch)
            if watch.off and not watch.on:
                self.recording.emit(e.THREAD, watch.site, how="thread", names={"call": SourceText(watch.site)})

    def forget(self) -> None:
        """No region is open any more."""
        self._watches.clear()
