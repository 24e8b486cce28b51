"""The results of ``torch.autograd.grad`` since gradients were last used."""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

    from ...protocol.events import Site

#: Largest number of remembered results.
KEPT = 256


class Derivative(NamedTuple):
    """A gradient from ``torch.autograd.grad``: the tensor, the call, and True if the loss was scaled."""

    tensor_ref: weakref.ref[torch.Tensor]
    site: Site
    is_scaled: bool


class Derivatives:
    """The latest gradients from ``torch.autograd.grad``, which a tape of calls does not contain."""

    def __init__(self) -> None:
        self._recent: deque[Derivative] = deque(maxlen=KEPT)

    def record(self, tensors: list[torch.Tensor], site: Site, *, is_scaled: bool) -> None:
        """Remember the results of a call."""
        self._recent.extend(Derivative(weakref.ref(tensor), site, is_scaled) for tensor in tensors)

    def alive(self) -> list[tuple[torch.Tensor, Derivative]]:
        """Return the gradients that still exist."""
        return [(tensor, each) for each in self._recent if (tensor := each.tensor_ref()) is not None]

    def clear(self) -> None:
        self._recent.clear()
