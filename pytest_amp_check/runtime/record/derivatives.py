"""The results of ``torch.autograd.grad`` since gradients were last used."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from torch.multiprocessing.reductions import StorageWeakRef

if TYPE_CHECKING:
    import torch

    from ...protocol.sites import Site

#: Largest number of remembered results.
KEPT = 256


class Derivative(NamedTuple):
    """A gradient from ``torch.autograd.grad``: its memory, the call, and True if the loss was scaled.

    The memory outlives the tensor if a tape of calls holds the tensor without its graph.
    """

    storage_ref: StorageWeakRef
    site: Site
    is_scaled: bool


class Derivatives:
    """The latest gradients from ``torch.autograd.grad``, which a tape of calls does not contain."""

    def __init__(self) -> None:
        self._recent: deque[Derivative] = deque(maxlen=KEPT)

    def record(self, tensors: list[torch.Tensor], site: Site, *, is_scaled: bool) -> None:
        """Remember the results of a call."""
        for tensor in tensors:
            self._recent.append(Derivative(_refer_to(tensor), site, is_scaled))

    def by_storage(self) -> dict[int, Derivative]:
        """Return the gradients whose memory still exists, by the address of the storage object."""
        return {each.storage_ref.cdata: each for each in self._recent if not _is_expired(each)}

    def clear(self) -> None:
        self._recent.clear()


def _refer_to(tensor: torch.Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


def _is_expired(derivative: Derivative) -> bool:
    return bool(derivative.storage_ref.expired())  # type: ignore[no-untyped-call]
