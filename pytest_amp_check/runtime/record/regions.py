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
from .graph import FAR, NEAR, nodes

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


class Left(NamedTuple):
    """An autocast region that an exception has left."""

    error: int
    site: Site
    device: str
    dtype: str
    enabled: bool


class Spans:
    """The regions of a run, each from the node that was made first in it to the one that was made first after it."""

    def __init__(self) -> None:
        self.began = number()
        self._open: list[tuple[int, bool]] = []
        self._left: deque[tuple[int, int, bool, str]] = deque(maxlen=KEPT)

    def __bool__(self) -> bool:
        return bool(self._open or self._left)

    def enter(self, *, enabled: bool) -> None:
        self._open.append((number(), enabled))

    def leave(self, dtype: str) -> None:
        """A region is left whose dtype that is; none where autocast is off in it."""
        start, enabled = self._open.pop()
        end = number()
        if end > start:
            self._left.append((start, end, enabled, dtype))

    def enabled_at(self, node: Any) -> bool:
        """Whether a node was made in regions that were all enabled."""
        around = [] if node is None else self.around(node)
        return bool(around) and all(around)

    def left_behind(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor was made in an enabled region, as far as that is near, and none is open now."""
        if any(enabled for _, enabled in self._open) or torch.is_autocast_enabled(tensor.device.type):
            return False
        return any(any(self.around(node)) for node in nodes([tensor], NEAR))

    def around(self, node: Any) -> list[bool]:
        """Of each region in which a node was made: whether it was enabled."""
        at = node._sequence_nr()
        inside = [enabled for start, enabled in self._open if start <= at]
        return inside + [enabled for start, end, enabled, _ in self._left if start <= at < end]

    def dtype_at(self, node: Any) -> str | None:
        """The dtype of the innermost region in which a node was made: "?" for an open one, None outside of all."""
        at = node._sequence_nr()
        # A region that lies in another one was closed before it.
        for start, end, _, dtype in self._left:
            if start <= at < end:
                return dtype
        return "?" if any(start <= at for start, _ in self._open) else None


class Regions:
    """The autocast regions that are open, the spans of those that were, and the dtypes since the last backward."""

    def __init__(self) -> None:
        self.open: list[Region] = []
        self.spans = Spans()
        #: Whether a context was switched off by something that may have switched it on.
        self.chosen = False
        #: The innermost region that the latest exception has left; its own identity says which one that was.
        self.left: Left | None = None
        #: The dtypes of the enabled regions that were entered since the last backward pass.
        self.dtypes: set[str] = set()
        #: What was found at a place after regions of some dtypes: those of the regions in which its graph was made.
        self._computed_in: dict[tuple[int, frozenset[str]], frozenset[str]] = {}

    def __bool__(self) -> bool:
        return bool(self.open)

    def enter(self, site: Site, device: str, dtype: str, *, enabled: bool) -> None:
        if enabled:
            self.dtypes.add(dtype)
        self.open.append(Region(site, device))
        self.spans.enter(enabled=enabled)

    def leave(self, dtype: str) -> Site:
        """The innermost region is left; gives where it was entered."""
        self.spans.leave(dtype)
        return self.open.pop().site

    def dtypes_below(self, site: Site, roots: Sequence[torch.Tensor]) -> frozenset[str]:
        """The dtypes of the regions in which what runs backward, or is scaled, at a place was computed."""
        since = frozenset(self.dtypes)
        found = self._computed_in.get((id(site), since))
        if found is None:
            found = self._computed_in[id(site), since] = frozenset(self._low_below(roots))
        return found

    def _low_below(self, roots: Sequence[torch.Tensor]) -> Iterator[str]:
        for node in nodes(roots, FAR) if self.spans else ():
            dtype = self.spans.dtype_at(node)
            if dtype:
                yield from self.dtypes if dtype == "?" else [dtype]


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
