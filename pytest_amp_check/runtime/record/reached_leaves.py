"""What the latest backward pass has reached, where it left an optimizer without gradients."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .graph import NEAR, iter_nodes

if TYPE_CHECKING:
    import torch

    from ...protocol.events import Event
    from .tracked import TrackedOptimizer

#: Nodes of the graph that are looked at where no optimizer got a gradient, as seldom happens twice.
WIDE = 4096


class ReachedLeaves:
    """The leaves of a graph that is gone when a step finds no gradient.

    Most passes feed every optimizer and are not looked at. One that feeds some of them, as a discriminator's does, is
    followed a little way: far enough for a loss that no parameter has made.
    """

    def __init__(self) -> None:
        #: The pass that was looked at, None where the latest one was not.
        self.event: Event | None = None
        self._leaf_refs: list[weakref.ref[torch.Tensor]] | None = None

    def note_backward(
        self, event: Event, roots: Sequence[torch.Tensor], optimizers: Iterable[TrackedOptimizer]
    ) -> None:
        """A backward pass from these tensors has ended."""
        has_gradients = [any(p._grad is not None for p in tracked.sentinels) for tracked in optimizers]
        self.event = self._leaf_refs = None
        if not has_gradients or all(has_gradients):
            return
        self.event = event
        limit = NEAR if any(has_gradients) else WIDE
        leaf_refs: list[weakref.ref[torch.Tensor]] = []
        for number, node in enumerate(iter_nodes(roots, limit)):
            if number == limit - 1:
                return
            variable = getattr(node, "variable", None)
            if variable is not None:
                leaf_refs.append(weakref.ref(variable))
        self._leaf_refs = leaf_refs

    def alive_leaves(self) -> list[torch.Tensor] | None:
        """The leaves that it has reached and that still exist; None where they are not known."""
        if self._leaf_refs is None:
            return None
        return [leaf for reference in self._leaf_refs if (leaf := reference()) is not None]
