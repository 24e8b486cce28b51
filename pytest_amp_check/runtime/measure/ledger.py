"""Bytes by category while code runs: current bytes, bytes at the peak, and bytes at the ends of phases."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .block import Block

if TYPE_CHECKING:
    from .step_recording import StepRecording

#: Largest number of points of a timeline; a longer timeline is thinned.
MOST_POINTS = 2000

#: A category, and the name of the module, parameter or op that created the bytes.
Place = tuple[str, str]


class Point(NamedTuple):
    """Bytes by category at one moment."""

    label: str
    bytes: dict[str, int]


class Ledger:
    """The list of allocations and frees, summed up phase by phase.

    The category of a block may change until its phase is summed up; the last category counts.
    """

    def __init__(self, step_recording: StepRecording | None = None) -> None:
        #: Receives every block, for the recording of the latest steps; or None.
        self._step_recording = step_recording
        #: (block, change of its bytes, source of the bytes). The source is None if the current source of the block
        #: applies.
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
        """Return the number of events that are not summed up yet."""
        return len(self._events)

    def record_allocation(self, block: Block) -> None:
        self._events.append((block, block.size, None))
        if self._step_recording is not None:
            self._step_recording.record_allocation(block)

    def record_final_allocation(self, block: Block) -> None:
        """Add a block whose category is known now. A later change of category is an event of its own."""
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
        """Change the category and name of a block. For a block that is summed up already, add events."""
        if (block.category, block.name) == (category, name):
            return
        if block.is_summed_up:
            self._events.append((block, -block.size, (block.category, block.name)))
            self._events.append((block, block.size, (category, name)))
        block.category, block.name = category, name

    def add_preexisting(self, block: Block) -> None:
        """Add an unseen block that was allocated before the start. All earlier figures increase by its size."""
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
        """Sum up the events so far. A label marks the end of a phase, which becomes a point of the timeline."""
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
        """Return the peak in bytes since the last call, as far as events are summed up."""
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
        """Return the bytes by category at the ends of phases, oldest first, and at the peak."""
        points = list(self._points)
        points.insert(self._peak_after, Point("peak", self.peak))
        return points
