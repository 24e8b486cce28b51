"""Where the forward behind a loss ran: in which autocast regions, and at which call of a module.

Nodes of an autograd graph are numbered in the order in which a thread makes them. The numbers at which regions are
entered and left, and modules are called, tell what ran where, at no cost for the ops in between.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType
from typing import Any

import torch
from torch._C._autograd import _get_sequence_nr
from torch.autograd.function import BackwardCFunction

from ...protocol.events import Site
from .graph import FAR, NEAR, nodes

#: Regions that are remembered.
KEPT = 256
#: Calls of modules that are remembered at once.
CALLS = 4096
#: Ops that autocast runs in low precision, by the names of their nodes without the number.
PRODUCTS = frozenset(
    f"{name}Backward"
    for name in "Mm Addmm Bmm Addbmm Baddbmm Mv Addmv Convolution MkldnnConvolution CudnnConvolution Linear".split()
)
LOW = frozenset({torch.float16, torch.bfloat16})
_CALL = torch.nn.Module._call_impl.__code__

#: The number of the next node that this thread makes.
number = _get_sequence_nr


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


def is_product(node: Any) -> bool:
    """Whether autocast would have run the op of a node in low precision."""
    return type(node).__name__.rstrip("0123456789") in PRODUCTS


def dtypes(node: Any) -> Iterator[torch.dtype]:
    """The dtypes of what a node of the graph gave."""
    for made in node._input_metadata:
        yield made.dtype


def float32_products(losses: Iterable[torch.Tensor], began: int) -> list[Any]:
    """The matrix products behind some losses, nearest first, where everything ran in float32.

    There are none where code has part in it that the graph does not show, or what was made before a number.
    """
    found = []
    for node in nodes(losses, FAR):
        if isinstance(node, BackwardCFunction) or "::" in type(node).__name__:
            return []
        made = set(dtypes(node))
        if made & LOW:
            return []
        if is_product(node):
            if made != {torch.float32} or node._sequence_nr() < began:
                return []
            found.append(node)
    return found


class Calls:
    """Calls of modules by code that is no module's, while it watches for them."""

    def __init__(self) -> None:
        self._compiled = _compiled()
        self._hook: Any = None
        self._seen: deque[tuple[int, Site]] = deque(maxlen=CALLS)

    def __bool__(self) -> bool:
        return self._hook is not None

    def watch(self, forward: Any) -> None:
        """Have a function told of the calls from now on, unless code is compiled: it would have to be once more."""
        self._seen.clear()
        if self._hook is None and _compiled() == self._compiled:
            self._hook = torch.nn.modules.module.register_module_forward_pre_hook(forward)

    def unwatch(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        self._seen.clear()

    def saw(self, site: Site) -> None:
        self._seen.append((number(), site))

    def of(self, products: Sequence[Any]) -> Site | None:
        """The place of the call that made the nearest of some nodes."""
        at = products[0]._sequence_nr()
        return next((site for start, site in reversed(self._seen) if start <= at), None)


def _compiled() -> int:
    """How many pieces of code this process has compiled."""
    counters: Any = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return sum(counters.get("frames", {}).values())


def is_outermost() -> bool:
    """Whether a hook that is asked now is told of a module that no other module calls."""
    calls = 0
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and calls < 2:
        calls += frame.f_code is _CALL
        frame = frame.f_back
    return calls < 2
