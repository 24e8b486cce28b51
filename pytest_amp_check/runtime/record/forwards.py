"""Where the forward behind a loss ran: which matrix products it is made of, and which call of a module made them."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from ...protocol.events import Site
from .graph import FAR, iter_nodes
from .regions import LOW, number

#: Calls of modules that are remembered at once.
CALLS = 4096
#: Ops that autocast runs in low precision, by the names of their nodes without the number.
PRODUCTS = frozenset(
    f"{name}Backward"
    for name in "Mm Addmm Bmm Addbmm Baddbmm Mv Addmv Convolution MkldnnConvolution CudnnConvolution Linear".split()
)
_CALL = torch.nn.Module._call_impl.__code__


def is_product(node: Any) -> bool:
    """Whether autocast would have run the op of a node in low precision."""
    return type(node).__name__.rstrip("0123456789") in PRODUCTS


def output_dtypes(node: Any) -> Iterator[torch.dtype]:
    """The dtypes of what a node of the graph gave; none where torch does not tell, as before 2.5."""
    for metadata in getattr(node, "_input_metadata", ()):
        yield metadata.dtype


def float32_products(losses: Iterable[torch.Tensor], start_number: int) -> list[Any]:
    """The matrix products behind some losses, nearest first, where everything ran in float32.

    There are none where code has part in it that the graph does not show, or what was made before a number.
    """
    products = []
    for node in iter_nodes(losses, FAR):
        if isinstance(node, BackwardCFunction) or "::" in type(node).__name__:
            return []
        node_dtypes = set(output_dtypes(node))
        if not node_dtypes.isdisjoint(LOW):
            return []
        if is_product(node):
            if node_dtypes != {torch.float32} or node._sequence_nr() < start_number:
                return []
            products.append(node)
    return products


class ModuleCalls:
    """Calls of modules by code that is no module's, while it watches for them."""

    def __init__(self) -> None:
        self._compiled_count = compiled_code_count()
        self._hook: Any = None
        self._recent_calls: deque[tuple[int, Site]] = deque(maxlen=CALLS)

    def __bool__(self) -> bool:
        return self._hook is not None

    def start_watching(self, forward: Any) -> None:
        """Have a function told of the calls from now on, unless code is compiled: it would have to be once more."""
        self._recent_calls.clear()
        if self._hook is None and compiled_code_count() == self._compiled_count:
            self._hook = torch.nn.modules.module.register_module_forward_pre_hook(forward)

    def stop_watching(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        self._recent_calls.clear()

    def record_call(self, site: Site) -> None:
        self._recent_calls.append((number(), site))

    def site_of_product(self, products: Sequence[Any]) -> Site | None:
        """The place of the call that made the nearest of some nodes."""
        sequence_number = products[0]._sequence_nr()
        return next((site for start, site in reversed(self._recent_calls) if start <= sequence_number), None)


def compiled_code_count() -> int:
    """How many pieces of code this process has compiled."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    # Of what no code was compiled in there is nothing to count: this is asked twice a step.
    frames = None if dynamo is None else getattr(dynamo, "counters", {}).get("frames")
    return sum(frames.values()) if frames else 0


def is_outermost() -> bool:
    """Whether a hook that is asked now is told of a module that no other module calls."""
    calls = 0
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and calls < 2:
        calls += frame.f_code is _CALL
        frame = frame.f_back
    return calls < 2
