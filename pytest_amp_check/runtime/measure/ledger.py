"""Bytes by category while code runs: how many there are now, were at the peak, and at the ends of phases."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .block import Block

if TYPE_CHECKING:
    from .trace import Trace

#: A timeline with more points than this is thinned.
MOST_POINTS = 2000

#: A category and what made the bytes.
Place = tuple[str, str]


class Point(NamedTuple):
    """Bytes by category at one moment."""

    label: str
    bytes: dict[str, int]


class Ledger:
    """Takes note of memory that comes and goes, and sums it up phase by phase.

    Until a phase is summed up a block may still turn out to be for something else, which is what counts then.
    """

    def __init__(self, trace: Trace | None = None) -> None:
        #: Told of every block, where the latest steps are kept.
        self._trace = trace
        #: (block, bytes that it has more than before, what they are for where that is not what the block is for).
        self._events: list[tuple[Block, int, Place | None]] = []
        self._bytes: dict[str, int] = {}
        self._places: dict[Place, int] = {}
        self._total = 0
        self._points: list[Point] = []
        self._seen = self._stride = 1
        self._peak_after = 0
        self.peak_total = 0
        self._recent = 0
        self.peak: dict[str, int] = {}
        self.peak_places: dict[Place, int] = {}
        self.highest: dict[str, int] = {}
        self.highest_places: dict[str, dict[str, int]] = {}

    def __len__(self) -> int:
        """How many events are not summed up yet."""
        return len(self._events)

    def born(self, block: Block) -> None:
        self._events.append((block, block.size, None))
        if self._trace is not None:
            self._trace.born(block)

    def born_settled(self, block: Block) -> None:
        """A block is there of which it is known what it is for now; if that changes, it is another event."""
        block.settled = True
        self._events.append((block, block.size, (block.category, block.name)))
        if self._trace is not None:
            self._trace.born(block)

    def died(self, block: Block) -> None:
        self._events.append((block, -block.size, None))
        if self._trace is not None:
            self._trace.died(block)

    def resized(self, block: Block, size: int) -> None:
        self._events.append((block, size - block.size, (block.category, block.name)))
        block.size = size
        if self._trace is not None:
            self._trace.resized()

    def relabel(self, block: Block, category: str, name: str) -> None:
        """A block is for something else than before, or than was thought."""
        if (block.category, block.name) == (category, name):
            return
        if block.settled:
            self._events.append((block, -block.size, (block.category, block.name)))
            self._events.append((block, block.size, (category, name)))
        block.category, block.name = category, name

    def there_from_the_start(self, block: Block) -> None:
        """Add a block that was never seen and has been there since before the start."""
        if self._trace is not None:
            self._trace.there_from_the_start(block)
        category, size = block.category, block.size
        place = (category, block.name)
        self._total += size
        self.peak_total += size
        self._recent += size
        for sums in (self._bytes, self.peak, self.highest, *(point.bytes for point in self._points)):
            sums[category] = sums.get(category, 0) + size
        for places in (self._places, self.peak_places):
            places[place] = places.get(place, 0) + size
        names = self.highest_places.setdefault(category, {})
        names[block.name] = names.get(block.name, 0) + size

    def settle(self, label: str | None) -> None:
        """Sum up, at the end of a phase where that has a label."""
        events, self._events = self._events, []
        before = dict(self._bytes)
        peak_at = -1
        highest_at: dict[str, int] = {}
        for index, (block, change, place) in enumerate(events):
            category = place[0] if place else block.category
            block.settled = True
            value = self._bytes[category] = self._bytes.get(category, 0) + change
            if value > self.highest.get(category, 0):
                self.highest[category] = value
                highest_at[category] = index
            self._total += change
            self._recent = max(self._recent, self._total)
            if self._total > self.peak_total:
                self.peak_total, peak_at = self._total, index
        for index, (block, change, place) in enumerate(events):
            category, _ = place = place or (block.category, block.name)  # noqa: PLW2901 - what None stands for
            self._places[place] = self._places.get(place, 0) + change
            if not self._places[place]:
                del self._places[place]
            if highest_at.get(category) == index:
                self.highest_places[category] = {
                    name: size for (of, name), size in self._places.items() if of == category
                }
            if index <= peak_at:
                before[category] = before.get(category, 0) + change
            if index == peak_at:
                self.peak, self.peak_places = before, dict(self._places)
                self._peak_after = len(self._points)
        if label is not None:
            self._add_point(Point(label, dict(self._bytes)))

    def recent_peak(self) -> int:
        """The most bytes since this was asked last, of what is summed up already."""
        found, self._recent = self._recent, self._total
        return found

    def _add_point(self, point: Point) -> None:
        self._seen += 1
        if self._seen % self._stride == 0:
            self._points.append(point)
        if len(self._points) > MOST_POINTS:
            del self._points[::2]
            self._stride *= 2
            self._peak_after //= 2

    def timeline(self) -> list[Point]:
        """Bytes by category at the ends of phases, oldest first, and at the peak."""
        points = list(self._points)
        points.insert(self._peak_after, Point("peak", self.peak))
        return points
