"""The autocast regions of a run, and the autograd nodes created in each region.

A thread numbers the nodes of an autograd graph in the order of creation. The numbers at the start and end of a region
show which nodes belong to the region, at no cost for the ops in between.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch._C._autograd import _get_sequence_nr

from ...protocol import frameworks
from ...protocol.sites import Site
from .graph import FAR, NEAR, iter_nodes

#: Largest number of remembered regions.
KEPT = 256
#: Low-precision dtypes of autocast and of parameters, with their names.
LOW = {torch.float16: "float16", torch.bfloat16: "bfloat16"}

#: Function that returns the number of the next node of this thread.
number = _get_sequence_nr


class Region(NamedTuple):
    """An open autocast region: the location of the entry, and the device."""

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
    """The regions of a run as ranges of node numbers, from the first node inside to the first node after."""

    def __init__(self) -> None:
        self.start_number = number()
        self._open_spans: list[tuple[int, bool]] = []
        self._closed_spans: deque[tuple[int, int, bool, str]] = deque(maxlen=KEPT)

    def __bool__(self) -> bool:
        return bool(self._open_spans or self._closed_spans)

    @property
    def is_casting(self) -> bool:
        """True if the innermost open region is enabled."""
        return bool(self._open_spans) and self._open_spans[-1][1]

    def enter(self, *, enabled: bool) -> None:
        self._open_spans.append((number(), enabled))

    def leave(self, dtype: str) -> None:
        """Leave the innermost region. ``dtype`` is its dtype, or "" for a disabled region."""
        start, enabled = self._open_spans.pop()
        end = number()
        if end > start:
            self._closed_spans.append((start, end, enabled, dtype))

    def is_enabled_at(self, node: Any) -> bool:
        """Return True if all regions around a node were enabled, and there was at least one region."""
        enabled = [] if node is None else self.enabled_around(node)
        return bool(enabled) and all(enabled)

    def is_from_closed_region(self, tensor: torch.Tensor) -> bool:
        """Return True if a nearby node of a tensor is from an enabled region, and no enabled region is open now."""
        if any(enabled for _, enabled in self._open_spans) or torch.is_autocast_enabled(tensor.device.type):
            return False
        return any(any(self.enabled_around(node)) for node in iter_nodes([tensor], NEAR))

    def enabled_around(self, node: Any) -> list[bool]:
        """Return for each region around a node True if the region was enabled."""
        sequence_number = node._sequence_nr()
        open_enabled = [enabled for start, enabled in self._open_spans if start <= sequence_number]
        return open_enabled + [
            enabled for start, end, enabled, _ in self._closed_spans if start <= sequence_number < end
        ]

    def dtype_at(self, node: Any) -> str | None:
        """Return the dtype of the innermost region around a node: "?" for an open region, None outside of regions."""
        sequence_number = node._sequence_nr()
        # An inner region closes before its outer region, so the first match is the innermost.
        for start, end, _, dtype in self._closed_spans:
            if start <= sequence_number < end:
                return dtype
        return "?" if any(start <= sequence_number for start, _ in self._open_spans) else None


class Regions:
    """The open autocast regions, the spans of closed regions, and the region dtypes since the last backward pass."""

    def __init__(self) -> None:
        self.open_regions: list[Region] = []
        self.spans = RegionSpans()
        #: True if a context was disabled by code that may also enable it.
        self.is_autocast_chosen = False
        #: Location at which the program first constructed a disabled context, or None.
        self.disabled_site: Site | None = None
        #: The innermost region that the latest exception left. Its error_id identifies the exception.
        self.left_region: LeftRegion | None = None
        #: The dtypes of the enabled regions entered since the last backward pass.
        self.entered_dtypes: set[str] = set()
        #: The dtypes of the enabled regions of the forward pass that runs backward now.
        self.forward_dtypes: set[str] = set()
        #: The devices of these regions, with the location of the first.
        self.entered_devices: dict[str, Site] = {}
        #: Cache: (id of a location, entered dtypes) to the dtypes of the regions in which the graph was created.
        self._computed_in: dict[tuple[int, frozenset[str]], frozenset[str]] = {}

    def __bool__(self) -> bool:
        return bool(self.open_regions)

    def enter(self, site: Site, device: str, dtype: str, *, enabled: bool) -> None:
        if enabled:
            self.entered_dtypes.add(dtype)
            self.entered_devices.setdefault(device, site)
        self.open_regions.append(Region(site, device))
        self.spans.enter(enabled=enabled)

    def forget_entered(self) -> None:
        """Forget the regions entered so far, when a backward pass begins."""
        self.forward_dtypes, self.entered_dtypes = self.entered_dtypes, set()
        self.entered_devices = {}

    def site_of_other_device(self, device: str) -> Site | None:
        """Return the location of an entered region if all entered regions are for other devices, else None."""
        return None if device in self.entered_devices else next(iter(self.entered_devices.values()), None)

    def leave(self, dtype: str) -> Site:
        """Leave the innermost region and return the location of its entry."""
        self.spans.leave(dtype)
        return self.open_regions.pop().site

    def dtypes_below(self, site: Site, roots: Sequence[torch.Tensor]) -> frozenset[str]:
        """Return the dtypes of the regions behind the tensors that run backward or are scaled at a location."""
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
    """Return the name of a region's low-precision dtype, also for a disabled region."""
    return str(region.fast_dtype).removeprefix("torch.")


def in_float8() -> bool:
    """Return True if code runs in a float8 region, according to TransformerEngine itself."""
    for name in frameworks.FLOAT8_STATES:
        state = getattr(sys.modules.get(name), "FP8GlobalStateManager", None)
        if state is not None:
            return bool(state.is_fp8_enabled())
    return False
