"""The leaves that the latest backward pass reached, if the pass left an optimizer without gradients."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .graph import NEAR, iter_nodes

if TYPE_CHECKING:
    import torch

    from ...protocol.events import Event
    from .tracked import TrackedOptimizer

#: Largest number of visited nodes if no optimizer got a gradient, which is rare.
WIDE = 4096


class ReachedLeaves:
    """The leaves of a graph that no longer exists when a step finds no gradient.

    Most passes reach every optimizer and are not searched. A pass that reaches only some optimizers, such as the pass
    of a discriminator, is searched to a small depth: far enough for a loss that depends on no parameter.
    """

    def __init__(self) -> None:
        #: The searched pass, or None if the latest pass was not searched.
        self.event: Event | None = None
        self._leaf_refs: list[weakref.ref[torch.Tensor]] | None = None

    def note_backward(
        self, event: Event, roots: Sequence[torch.Tensor], optimizers: Iterable[TrackedOptimizer]
    ) -> None:
        """Search the graph of a finished backward pass if the pass left an optimizer without gradients."""
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
        """Return the reached leaves that still exist, or None if unknown."""
        if self._leaf_refs is None:
            return None
        return [leaf for reference in self._leaf_refs if (leaf := reference()) is not None]
