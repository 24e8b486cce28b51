"""The tensors that carry a loss scale: results of ``scaler.scale``, and tensors computed from them."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .deferred_values import DeferredNumber
from .graph import (
    FAR,
    NEAR,
    divides_by_scale,
    find_tensors,
    iter_nodes,
    iter_nodes_below,
    multiplies_by_scale,
    multiplies_by_zero,
)
from .registry import Registry
from .tracked import TrackedScaler

if TYPE_CHECKING:
    import torch

#: Largest number of remembered results of ``scaler.scale``.
KEPT = 64
#: Metadata key on the graph node of a scaled loss.
MARK = "pytest_amp_check"


class ScaledLoss(NamedTuple):
    """A scaled loss: the scaler, its scale at that time, and the dtype of the loss before scaling.

    The scaled loss may have another dtype.
    """

    scaler: TrackedScaler
    scale: DeferredNumber
    dtype: torch.dtype


class ScaledLosses:
    """The marks on scaled losses, and the search for marks below a backward root."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._recent_losses: deque[tuple[weakref.ref[torch.Tensor], ScaledLoss]] = deque(maxlen=KEPT)

    def mark_losses(self, losses: Sequence[torch.Tensor], scaled: object, scaler: TrackedScaler) -> None:
        """Mark losses that a scaler has scaled."""
        for loss, tensor in zip(losses, find_tensors(scaled), strict=True):
            scaled_loss = ScaledLoss(scaler, scaler.scale, loss.dtype)
            self._recent_losses.append((weakref.ref(tensor), scaled_loss))
            if tensor.grad_fn is not None:
                metadata: Any = tensor.grad_fn.metadata
                metadata[MARK] = (weakref.ref(self), scaled_loss)

    def find_below(self, roots: Sequence[torch.Tensor]) -> ScaledLoss | None:
        """Return the scaled loss that runs backward, or from which the backward roots were computed, or None."""
        if not self._recent_losses:
            return None
        for tensor, scaled_loss in reversed(self._recent_losses):
            scaled = tensor()
            for root in roots:
                if scaled is root:
                    return scaled_loss
        return next(filter(None, map(self._mark_of, iter_nodes(roots, NEAR))), None)

    def has_several_scalers(self, roots: Sequence[torch.Tensor]) -> bool:
        """Return True if the backward roots were computed from losses of several scalers."""
        if len(self._registry.scalers) < 2:
            return False
        marks = map(self._mark_of, iter_nodes(roots, NEAR))
        return len({mark.scaler.tracked_object.key for mark in marks if mark is not None}) > 1

    def _mark_of(self, node: Any) -> ScaledLoss | None:
        """Return the scaled loss of a graph node, or None if no ``scale`` call created the node."""
        entry = node.metadata.get(MARK)
        return entry[1] if entry is not None and entry[0]() is self else None

    def is_scaled_already(self, roots: Sequence[torch.Tensor], scale: DeferredNumber) -> bool:
        """Return True if a loss that is about to be scaled already contains a scale without a later division."""

        def should_stop(node: Any) -> bool:
            return divides_by_scale(node, scale)

        found = iter_nodes(roots, NEAR, should_stop)
        return any(self._mark_of(node) is not None or multiplies_by_scale(node, scale) for node in found)

    def is_uneven(self, roots: Sequence[torch.Tensor], scale: DeferredNumber) -> bool:
        """Return True if a sum runs backward whose terms are partly unscaled, or scaled by different scalers.

        Terms without a common optimizer may have different scales.
        """
        unscaled_owners: set[int] = set()
        nodes_by_scaler: dict[int, list[Any]] = {}

        def should_stop(node: Any) -> bool:
            # A term times zero keeps parameters in the graph for DistributedDataParallel, and has no gradient to scale.
            return self._mark_of(node) is not None or multiplies_by_scale(node, scale) or multiplies_by_zero(node)

        for node in iter_nodes(roots, FAR, should_stop):
            mark = self._mark_of(node)
            if mark is not None:
                nodes_by_scaler.setdefault(mark.scaler.tracked_object.key, []).append(node)
            else:
                unscaled_owners.update(self._owners_at(node))
        if not nodes_by_scaler or (len(nodes_by_scaler) == 1 and not unscaled_owners):
            return False
        reached_owners = unscaled_owners
        for scaled_nodes in nodes_by_scaler.values():
            owners = {key for node in iter_nodes_below(scaled_nodes, FAR) for key in self._owners_at(node)}
            if not reached_owners.isdisjoint(owners):
                return True
            reached_owners |= owners
        return False

    def _owners_at(self, node: Any) -> tuple[int, ...]:
        """Return the optimizers that own the parameter of an accumulating graph node, or ()."""
        variable = getattr(node, "variable", None)
        return () if variable is None else self._registry.owner_keys.get(id(variable), ())
