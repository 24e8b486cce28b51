"""Running statistics and other buffers of modules, which stay non-finite although a scaler skips the step."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .finiteness import any_nonfinite, is_finite, is_on_cpu

if TYPE_CHECKING:
    from torch import nn

#: Largest number of elements of the program's own buffers that are checked, to bound the cost.
SMALL = 1 << 14
#: Prefix of the names of torch's running statistics.
RUNNING = "running_"


class StatisticsWatch:
    """The buffers that the forward passes of a recording may make non-finite."""

    def __init__(self) -> None:
        #: Outermost called module to the statistics buffers of its submodules.
        self.by_module: weakref.WeakKeyDictionary[nn.Module, list[tuple[weakref.ref[nn.Module], str]]] = (
            weakref.WeakKeyDictionary()
        )
        #: Ids of the modules, and names, of the reported buffers.
        self.reported: set[tuple[int, str]] = set()

    def add_module(self, module: nn.Module) -> None:
        """Watch the buffers of a module and its submodules."""
        self.by_module[module] = list(_iter_statistics(module))

    def find_nonfinite(self) -> list[tuple[nn.Module, str]]:
        """Return the unreported non-finite buffers, each as its module and name."""
        buffers = [
            (module, name)
            for statistics in self.by_module.values()
            for reference, name in statistics
            if (module := reference()) is not None and module._buffers.get(name) is not None
        ]
        if not buffers or not any_nonfinite([module._buffers[name] for module, name in buffers]):
            return []
        return [
            (module, name)
            for module, name in buffers
            if (id(module), name) not in self.reported and _holds_nonfinite(module, name)
        ]

    def mark_reported(self, buffers: Sequence[tuple[nn.Module, str]]) -> None:
        """Report these buffers no more."""
        self.reported.update((id(module), name) for module, name in buffers)


def describe_statistics(buffers: Sequence[tuple[nn.Module, str]]) -> str:
    """Return a clause about statistics that a skipped step leaves non-finite, or ""."""
    if not buffers:
        return ""
    module, name = buffers[0]
    return f", and `{name}` of {type(module).__name__} keeps it for evaluation although the step is skipped"


def _iter_statistics(module: nn.Module) -> Iterator[tuple[weakref.ref[nn.Module], str]]:
    """Yield the running statistics of a module and its submodules, and small finite buffers of the program's modules.

    A forward pass may update such a buffer, for example a codebook or an average.
    """
    for each in module.modules():
        for name, buffer in each._buffers.items():
            if buffer is None or not buffer.is_floating_point() or not is_on_cpu(buffer):
                continue
            is_own = not type(each).__module__.startswith("torch.") and buffer.numel() <= SMALL
            if name.startswith(RUNNING) or (is_own and is_finite(buffer)):
                yield weakref.ref(each), name


def _holds_nonfinite(module: nn.Module, name: str) -> bool:
    """Return True if a buffer is not finite, and no mask."""
    buffer = module._buffers[name]
    if buffer is None or is_finite(buffer):
        return False
    return name.startswith(RUNNING) or bool(buffer.isnan().any() or buffer.isposinf().any())
