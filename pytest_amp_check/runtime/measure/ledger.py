"""Bytes by category while code runs: how many there are now, were at the peak, and at the ends of phases."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .block import Block

if TYPE_CHECKING:
    from .step_recording import StepRecording

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

    def __init__(self, step_recording: StepRecording | None = None) -> None:
        #: Told of every block, where the latest steps are kept.
        self._step_recording = step_recording
        #: (block, bytes that it has more than before, what they are for where that is not what the block is for).
        self._events: list[tuple[Block, int, Place | None]] = []
        self._bytes: dict[str, int] = {}
        self._bytes_by_source: dict[Place, int] = {}
        self._total = 0
        self._points: list[Point] = []
        self._point_count = self._stride = 1
        self._peak_after = 0
        self.peak_total = 0
        self._recent_peak = 0
        self.peak: dict[str, int] = {}
        self.peak_sources: dict[Place, int] = {}
        self.highest: dict[str, int] = {}
        self.highest_sources: dict[str, dict[str, int]] = {}

    def __len__(self) -> int:
        """How many events are not summed up yet."""
        return len(self._events)

    def record_allocation(self, block: Block) -> None:
        self._events.append((block, block.size, None))
        if self._step_recording is not None:
            self._step_recording.record_allocation(block)

    def record_final_allocation(self, block: Block) -> None:
        """A block is there of which it is known what it is for now; if that changes, it is another event."""
        block.is_summed_up = True
        self._events.append((block, block.size, (block.category, block.name)))
        if self._step_recording is not None:
            self._step_recording.record_allocation(block)

    def record_free(self, block: Block) -> None:
        self._events.append((block, -block.size, None))
        if self._step_recording is not None:
            self._step_recording.record_free(block)

    def record_resize(self, block: Block, size: int) -> None:
        self._events.append((block, size - block.size, (block.category, block.name)))
        block.size = size
        if self._step_recording is not None:
            self._step_recording.record_resize()

    def relabel(self, block: Block, category: str, name: str) -> None:
        """A block is for something else than before, or than was thought."""
        if (block.category, block.name) == (category, name):
            return
        if block.is_summed_up:
            self._events.append((block, -block.size, (block.category, block.name)))
            self._events.append((block, block.size, (category, name)))
        block.category, block.name = category, name

    def add_preexisting(self, block: Block) -> None:
        """Add a block that was never seen and has been there since before the start."""
        if self._step_recording is not None:
            self._step_recording.add_preexisting(block)
        category, size = block.category, block.size
        source = (category, block.name)
        self._total += size
        self.peak_total += size
        self._recent_peak += size
        for sums in (self._bytes, self.peak, self.highest, *(point.bytes for point in self._points)):
            sums[category] = sums.get(category, 0) + size
        for source_sums in (self._bytes_by_source, self.peak_sources):
            source_sums[source] = source_sums.get(source, 0) + size
        names = self.highest_sources.setdefault(category, {})
        names[block.name] = names.get(block.name, 0) + size

    def sum_up_phase(self, label: str | None) -> None:
        """Sum up, at the end of a phase where that has a label."""
        events, self._events = self._events, []
        peak_sums = dict(self._bytes)
        peak_at = -1
        highest_at: dict[str, int] = {}
        for index, (block, change, source) in enumerate(events):
            category = source[0] if source else block.category
            block.is_summed_up = True
            value = self._bytes[category] = self._bytes.get(category, 0) + change
            if value > self.highest.get(category, 0):
                self.highest[category] = value
                highest_at[category] = index
            self._total += change
            self._recent_peak = max(self._recent_peak, self._total)
            if self._total > self.peak_total:
                self.peak_total, peak_at = self._total, index
        for index, (block, change, source) in enumerate(events):
            category, _ = source = source or (block.category, block.name)  # noqa: PLW2901 - what None stands for
            self._bytes_by_source[source] = self._bytes_by_source.get(source, 0) + change
            if not self._bytes_by_source[source]:
                del self._bytes_by_source[source]
            if highest_at.get(category) == index:
                self.highest_sources[category] = {
                    name: size
                    for (source_category, name), size in self._bytes_by_source.items()
                    if source_category == category
                }
            if index <= peak_at:
                peak_sums[category] = peak_sums.get(category, 0) + change
            if index == peak_at:
                self.peak, self.peak_sources = peak_sums, dict(self._bytes_by_source)
                self._peak_after = len(self._points)
        if label is not None:
            self._add_point(Point(label, dict(self._bytes)))

    def take_recent_peak(self) -> int:
        """The most bytes since this was asked last, of what is summed up already."""
        recent_peak, self._recent_peak = self._recent_peak, self._total
        return recent_peak

    def _add_point(self, point: Point) -> None:
        self._point_count += 1
        if self._point_count % self._stride == 0:
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
