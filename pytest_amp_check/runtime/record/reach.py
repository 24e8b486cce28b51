"""What the latest backward pass has reached, where it left an optimizer without gradients."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .graph import NEAR, nodes

if TYPE_CHECKING:
    import torch

    from ...protocol.events import Event
    from .tracked import TrackedOptimizer

#: Nodes of the graph that are looked at where no optimizer got a gradient, as seldom happens twice.
WIDE = 4096


class Reach:
    """The leaves of a graph that is gone when a step finds no gradient.

    Most passes feed every optimizer and are not looked at. One that feeds some of them, as a discriminator's does, is
    followed a little way: far enough for a loss that no parameter has made.
    """

    def __init__(self) -> None:
        #: The pass that was looked at, None where the latest one was not.
        self.event: Event | None = None
        self._leaves: list[weakref.ref[torch.Tensor]] | None = None

    def note(self, event: Event, roots: Sequence[torch.Tensor], optimizers: Iterable[TrackedOptimizer]) -> None:
        """A backward pass from these tensors has ended."""
        fed = [any(p._grad is not None for p in tracked.sentinels) for tracked in optimizers]
        self.event = self._leaves = None
        if not fed or all(fed):
            return
        self.event = event
        limit = NEAR if any(fed) else WIDE
        found: list[weakref.ref[torch.Tensor]] = []
        for number, node in enumerate(nodes(roots, limit)):
            if number == limit - 1:
                return
            variable = getattr(node, "variable", None)
            if variable is not None:
                found.append(weakref.ref(variable))
        self._leaves = found

    def leaves(self) -> list[torch.Tensor] | None:
        """The leaves that it has reached and that still exist; None where they are not known."""
        if self._leaves is None:
            return None
        return [leaf for reference in self._leaves if (leaf := reference()) is not None]
