"""The autocast regions of a run, and what was computed in which of them.

Nodes of an autograd graph are numbered in the order in which a thread makes them. The numbers at which regions are
entered and left tell what was computed where, at no cost for the ops in between.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch._C._autograd import _get_sequence_nr

from ...protocol import frameworks
from ...protocol.events import Site
from .graph import FAR, NEAR, iter_nodes

#: Regions that are remembered.
KEPT = 256
#: Low-precision dtypes that autocast and master weights can have.
LOW = {torch.float16: "float16", torch.bfloat16: "bfloat16"}

#: The number of the next node that this thread makes.
number = _get_sequence_nr


class Region(NamedTuple):
    """An autocast region that is open: where it was entered, and for which device."""

    site: Site
    device: str


class LeftRegion(NamedTuple):
    """An autocast region that an exception has left."""

    error_id: int
    site: Site
    device: str
    dtype: str
    is_enabled: bool


class RegionSpans:
    """The regions of a run, each from the node that was made first in it to the one that was made first after it."""

    def __init__(self) -> None:
        self.start_number = number()
        self._open_spans: list[tuple[int, bool]] = []
        self._closed_spans: deque[tuple[int, int, bool, str]] = deque(maxlen=KEPT)

    def __bool__(self) -> bool:
        return bool(self._open_spans or self._closed_spans)

    def enter(self, *, enabled: bool) -> None:
        self._open_spans.append((number(), enabled))

    def leave(self, dtype: str) -> None:
        """A region is left whose dtype that is; none where autocast is off in it."""
        start, enabled = self._open_spans.pop()
        end = number()
        if end > start:
            self._closed_spans.append((start, end, enabled, dtype))

    def is_enabled_at(self, node: Any) -> bool:
        """Whether a node was made in regions that were all enabled."""
        enabled = [] if node is None else self.enabled_around(node)
        return bool(enabled) and all(enabled)

    def is_from_closed_region(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor was made in an enabled region, as far as that is near, and none is open now."""
        if any(enabled for _, enabled in self._open_spans) or torch.is_autocast_enabled(tensor.device.type):
            return False
        return any(any(self.enabled_around(node)) for node in iter_nodes([tensor], NEAR))

    def enabled_around(self, node: Any) -> list[bool]:
        """Of each region in which a node was made: whether it was enabled."""
        sequence_number = node._sequence_nr()
        open_enabled = [enabled for start, enabled in self._open_spans if start <= sequence_number]
        return open_enabled + [
            enabled for start, end, enabled, _ in self._closed_spans if start <= sequence_number < end
        ]

    def dtype_at(self, node: Any) -> str | None:
        """The dtype of the innermost region in which a node was made: "?" for an open one, None outside of all."""
        sequence_number = node._sequence_nr()
        # A region that lies in another one was closed before it.
        for start, end, _, dtype in self._closed_spans:
            if start <= sequence_number < end:
                return dtype
        return "?" if any(start <= sequence_number for start, _ in self._open_spans) else None


class Regions:
    """The autocast regions that are open, the spans of those that were, and the dtypes since the last backward."""

    def __init__(self) -> None:
        self.open_regions: list[Region] = []
        self.spans = RegionSpans()
        #: Whether a context was switched off by something that may have switched it on.
        self.is_autocast_chosen = False
        #: The innermost region that the latest exception has left; its own identity says which one that was.
        self.left_region: LeftRegion | None = None
        #: The dtypes of the enabled regions that were entered since the last backward pass.
        self.entered_dtypes: set[str] = set()
        #: What was found at a place after regions of some dtypes: those of the regions in which its graph was made.
        self._computed_in: dict[tuple[int, frozenset[str]], frozenset[str]] = {}

    def __bool__(self) -> bool:
        return bool(self.open_regions)

    def enter(self, site: Site, device: str, dtype: str, *, enabled: bool) -> None:
        if enabled:
            self.entered_dtypes.add(dtype)
        self.open_regions.append(Region(site, device))
        self.spans.enter(enabled=enabled)

    def leave(self, dtype: str) -> Site:
        """The innermost region is left; gives where it was entered."""
        self.spans.leave(dtype)
        return self.open_regions.pop().site

    def dtypes_below(self, site: Site, roots: Sequence[torch.Tensor]) -> frozenset[str]:
        """The dtypes of the regions in which what runs backward, or is scaled, at a place was computed."""
        entered = frozenset(self.entered_dtypes)
        dtypes = self._computed_in.get((id(site), entered))
        if dtypes is None:
            dtypes = self._computed_in[id(site), entered] = frozenset(self._iter_dtypes_below(roots))
        return dtypes

    def _iter_dtypes_below(self, roots: Sequence[torch.Tensor]) -> Iterator[str]:
        for node in iter_nodes(roots, FAR) if self.spans else ():
            dtype = self.spans.dtype_at(node)
            if dtype:
                yield from self.entered_dtypes if dtype == "?" else [dtype]


def dtype_of(region: Any) -> str:
    """The low precision that a region of torch is for, also where it is disabled."""
    return LOW.get(region.fast_dtype) or str(region.fast_dtype).removeprefix("torch.")


def in_float8() -> bool:
    """Whether code runs in a region of TransformerEngine, as that itself knows."""
    for name in frameworks.FLOAT8_STATES:
        state = getattr(sys.modules.get(name), "FP8GlobalStateManager", None)
        if state is not None:
            return bool(state.is_fp8_enabled())
    return False
