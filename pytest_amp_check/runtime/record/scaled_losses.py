"""Which tensors carry a loss scale: those that came out of ``scaler.scale``, and what was made of them."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .graph import FAR, NEAR, below, divides, multiplies, nodes, tensors
from .readings import Number
from .registry import Registry
from .tracked import TrackedScaler

if TYPE_CHECKING:
    import torch

#: Tensors that came out of ``scaler.scale`` and are remembered.
KEPT = 64
#: The mark on the graph node of a scaled loss.
MARK = "pytest_amp_check"


class ScaledLoss(NamedTuple):
    """What a scaler has scaled: its scale then, and the dtype of the loss, which the scaled one need not have."""

    scaler: TrackedScaler
    scale: Number
    dtype: torch.dtype


class ScaledLosses:
    """Marks what scalers scale, and finds it again below what runs backward."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._latest: deque[tuple[weakref.ref[torch.Tensor], ScaledLoss]] = deque(maxlen=KEPT)

    def mark(self, losses: Sequence[torch.Tensor], scaled: object, scaler: TrackedScaler) -> None:
        """A scaler has scaled losses."""
        for loss, tensor in zip(losses, tensors(scaled), strict=True):
            made = ScaledLoss(scaler, scaler.scale, loss.dtype)
            self._latest.append((weakref.ref(tensor), made))
            if tensor.grad_fn is not None:
                metadata: Any = tensor.grad_fn.metadata
                metadata[MARK] = (weakref.ref(self), made)

    def below(self, roots: Sequence[torch.Tensor]) -> ScaledLoss | None:
        """The scaled loss that runs backward, or that what runs backward was made of."""
        if not self._latest:
            return None
        for tensor, made in reversed(self._latest):
            scaled = tensor()
            for root in roots:
                if scaled is root:
                    return made
        return next(filter(None, map(self._mark_of, nodes(roots, NEAR))), None)

    def several(self, roots: Sequence[torch.Tensor]) -> bool:
        """Whether what runs backward was made of what more than one scaler has scaled."""
        if len(self._registry.scalers) < 2:
            return False
        marks = map(self._mark_of, nodes(roots, NEAR))
        return len({mark.scaler.thing.key for mark in marks if mark is not None}) > 1

    def _mark_of(self, node: Any) -> ScaledLoss | None:
        """What a node of the graph is, where a scaler's ``scale`` made it."""
        found = node.metadata.get(MARK)
        return found[1] if found is not None and found[0]() is self else None

    def scaled_already(self, roots: Sequence[torch.Tensor], scale: Number) -> bool:
        """Whether a loss that is about to be scaled holds a scale that nothing has divided it by again."""

        def ends(node: Any) -> bool:
            return divides(node, scale)

        found = nodes(roots, NEAR, ends)
        return any(self._mark_of(node) is not None or multiplies(node, scale) for node in found)

    def uneven(self, roots: Sequence[torch.Tensor], scale: Number) -> bool:
        """Whether a sum runs backward of which some terms are scaled and others not, or by another scaler.

        Terms that feed no optimizer in common may be scaled as they like.
        """
        if len(roots) == 1 and roots[0].grad_fn is not None and self._mark_of(roots[0].grad_fn) is not None:
            return False
        plain: set[int] = set()
        scaled: dict[int, list[Any]] = {}

        def ends(node: Any) -> bool:
            return self._mark_of(node) is not None or multiplies(node, scale)

        for node in nodes(roots, FAR, ends):
            mark = self._mark_of(node)
            if mark is not None:
                scaled.setdefault(mark.scaler.thing.key, []).append(node)
            else:
                plain.update(self._owners_at(node))
        if not scaled or (len(scaled) == 1 and not plain):
            return False
        fed = plain
        for made in scaled.values():
            reached = {key for node in below(made, FAR) for key in self._owners_at(node)}
            if not fed.isdisjoint(reached):
                return True
            fed |= reached
        return False

    def _owners_at(self, node: Any) -> tuple[int, ...]:
        """The optimizers of the parameter whose gradient a node of the graph accumulates."""
        variable = getattr(node, "variable", None)
        return () if variable is None else self._registry.owners.get(id(variable), ())
