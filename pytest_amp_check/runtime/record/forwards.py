"""The forward pass behind a loss: the matrix products, and the module call that computed them."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from ...protocol.sites import Site
from .graph import FAR, iter_nodes
from .regions import LOW, number

#: Largest number of remembered module calls.
CALLS = 4096
#: Ops that autocast runs in low precision, by their node names without the trailing number.
PRODUCTS = frozenset(
    f"{name}Backward"
    for name in "Mm Addmm Bmm Addbmm Baddbmm Mv Addmv Convolution MkldnnConvolution CudnnConvolution Linear".split()
)
_CALL = torch.nn.Module._call_impl.__code__


def is_product(node: Any) -> bool:
    """Return True if autocast would run the op of a node in low precision."""
    return type(node).__name__.rstrip("0123456789") in PRODUCTS


def output_dtypes(node: Any) -> Iterator[torch.dtype]:
    """Yield the dtypes of a graph node's results. torch before 2.5 does not provide them."""
    for metadata in getattr(node, "_input_metadata", ()):
        yield metadata.dtype


def float32_products(losses: Iterable[torch.Tensor], start_number: int) -> list[Any]:
    """Return the matrix products behind some losses, nearest first, if everything ran in float32.

    Return [] if hidden code takes part in the graph, or if a product is older than ``start_number``.
    """
    products = []
    for node in iter_nodes(losses, FAR):
        # A CppFunction is a node of TorchScript, or of a Function of an extension.
        if isinstance(node, BackwardCFunction) or type(node).__name__ == "CppFunction":
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
    """The module calls from code outside of modules, recorded while the watch is on."""

    def __init__(self) -> None:
        self._compiled_count = compiled_code_count()
        self._hook: Any = None
        self._recent_calls: deque[tuple[int, Site]] = deque(maxlen=CALLS)

    def __bool__(self) -> bool:
        return self._hook is not None

    def start_watching(self, forward: Any) -> None:
        """Call ``forward`` for each module call from now on.

        Do nothing after code was compiled, to avoid a recompilation.
        """
        self._recent_calls.clear()
        if self._hook is None and compiled_code_count() == self._compiled_count:
            self._hook = torch.nn.modules.module.register_module_forward_pre_hook(forward)

    def stop_watching(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def record_call(self, site: Site) -> None:
        self._recent_calls.append((number(), site))

    def site_of_product(self, products: Sequence[Any]) -> Site | None:
        """Return the location of the call that created the nearest of some nodes, or None."""
        sequence_number = products[0]._sequence_nr()
        return next((site for start, site in reversed(self._recent_calls) if start <= sequence_number), None)


def compiled_code_count() -> int:
    """Return the number of code objects that this process has compiled."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    # Without the "frames" counter nothing was compiled. The function runs twice per step, so it must be fast.
    frames = None if dynamo is None else getattr(dynamo, "counters", {}).get("frames")
    return sum(frames.values()) if frames else 0


def is_outermost() -> bool:
    """Return True if the calling hook runs for a module that no other module calls."""
    calls = 0
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and calls < 2:
        calls += frame.f_code is _CALL
        frame = frame.f_back
    return calls < 2
