"""The optimizers and scalers of a recording, and the owners of parameters."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ...protocol.event_graph import Program
from ...protocol.events import Backward, Clip
from ...protocol.run_checker import RunChecker
from ...protocol.tracked_objects import ObjectAttributes, TrackedObject
from .deferred_values import ONE, DeferredNumber, DeferredValues, ScaledValue
from .tracked import TrackedOptimizer, TrackedScaler, feed_optimizer

if TYPE_CHECKING:
    import torch


class Registry:
    """The tracked optimizers and scalers. An unseen object is tracked from the first request on."""

    def __init__(self, program: Program, run_checker: RunChecker, deferred_values: DeferredValues) -> None:
        self._program = program
        self._deferred_values = deferred_values
        self._run_checker = run_checker
        self.optimizers: dict[int, TrackedOptimizer] = {}
        self.scalers: dict[int, TrackedScaler] = {}
        #: ``id`` of a parameter to the keys of the optimizers that own it.
        self.owner_keys: dict[int, tuple[int, ...]] = {}
        #: The last backward pass and its loss, for optimizers that are first seen when they step.
        self.last_backward: tuple[Backward, ScaledValue] | None = None
        #: (id, tracked object) of freed objects that are not forgotten yet; and tracked objects for reuse by role.
        self.dead_objects: deque[tuple[int, TrackedObject]] = deque()
        self._spare_objects: dict[str, list[TrackedObject]] = {"optimizer": [], "scaler": []}

    def track_optimizer(self, optimizer: Any) -> TrackedOptimizer:
        tracked = self.optimizers.get(id(optimizer))
        if tracked is not None and tracked.optimizer() is optimizer:
            return tracked
        tracked_object = self._new_tracked_object("optimizer", constructed=True, callable=type(optimizer).__name__)
        tracked = self.optimizers[id(optimizer)] = TrackedOptimizer(optimizer, tracked_object)
        tracked.optimizer = weakref.ref(optimizer, self._on_death(id(optimizer), tracked_object))
        self._register_params(tracked)
        self._catch_up(tracked)
        return tracked

    def _catch_up(self, tracked: TrackedOptimizer) -> None:
        """Attribute earlier events on its parameters to an optimizer that was just seen for the first time."""
        key = tracked.tracked_object.key
        ids = {id(p) for p in tracked.params}
        pending = self._run_checker.pending_events
        for event in (*self._run_checker.recent_events, *pending):
            if isinstance(event, Clip) and not ids.isdisjoint(event.touches):
                event.owners = {*(event.owners or ()), key}
            elif isinstance(event, Backward) and not ids.isdisjoint(event.leaves):
                feed_optimizer(event, key)
                tracked.backward = event
                tracked.is_scaled = event.scaling.is_scaled
                if self.last_backward is not None and self.last_backward[0] is event:
                    tracked.losses.append(self.last_backward[1])
        if tracked.backward is not None and tracked.backward not in pending:
            self._run_checker.adopt_optimizer(key, tracked.backward)

    def refresh_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Read the parameters of an optimizer again after a change."""
        tracked = self.optimizers.get(id(optimizer))
        if tracked is not None and tracked.optimizer() is optimizer:
            tracked.refresh_params(optimizer)
            self._register_params(tracked)

    def _register_params(self, tracked: TrackedOptimizer) -> None:
        key = tracked.tracked_object.key
        shares = _shares_of(tracked.tracked_object)
        for p in tracked.params:
            others = self.owner_keys.get(id(p), ())
            for other in others:
                if other != key:
                    shares.add(other)
                    _shares_of(self._program.objects[other]).add(key)
            if key not in others:
                self.owner_keys[id(p)] = (*others, key)

    def track_scaler(self, scaler: Any) -> TrackedScaler:
        tracked = self.scalers.get(id(scaler))
        if tracked is not None and tracked.scaler() is scaler:
            return tracked
        arguments = {"init_scale": scaler._init_scale}
        tracked_object = self._new_tracked_object("scaler", constructed=True, enabled=True, arguments=arguments)
        tracked = self.scalers[id(scaler)] = TrackedScaler(scaler, tracked_object)
        tracked.scaler = weakref.ref(scaler, self._on_death(id(scaler), tracked_object))
        tracked.scale = self.current_scale(scaler)
        return tracked

    @contextmanager
    def preserve_marks(self) -> Iterator[None]:
        """Open a region whose code writes to gradients and restores them.

        Only the gradient marks are updated afterwards.
        """
        unchanged = [each for each in self.optimizers.values() if each.gradient_marks == each.sentinel_marks()]
        yield
        for tracked in unchanged:
            tracked.gradient_marks = tracked.sentinel_marks()

    def find_by_key(self, key: int) -> TrackedOptimizer | None:
        for tracked in self.optimizers.values():
            if tracked.tracked_object.key == key:
                return tracked
        return None

    def scaler_of(self, tracked: TrackedOptimizer) -> TrackedScaler | None:
        """Return the scaler of the latest backward pass into an optimizer, else the scaler that stepped it, or None."""
        subject = tracked.backward.subject if tracked.backward is not None else None
        for scaler in self.scalers.values():
            if scaler.tracked_object.key == subject:
                return scaler
        return tracked.scaler

    def scale_for(self, tracked: TrackedOptimizer) -> DeferredNumber:
        scaler = self.scaler_of(tracked)
        return ONE if scaler is None else scaler.scale

    def current_scale(self, scaler: Any) -> DeferredNumber:
        """Return the current scale of a GradScaler."""
        return (
            DeferredNumber(float(scaler._init_scale))
            if scaler._scale is None
            else self._deferred_values.defer_number(scaler._scale)
        )

    def owners_of(self, params: Sequence[torch.Tensor]) -> tuple[set[int], frozenset[int]]:
        """Return the keys of the optimizers that own parameters, and ids of unowned parameters with a gradient."""
        holders = self.owner_keys
        owners = {key for p in params for key in holders.get(id(p), ())}
        return owners, frozenset([id(p) for p in params if id(p) not in holders and p.grad is not None])

    def find_sharing(self, tracked: TrackedOptimizer) -> list[TrackedOptimizer]:
        """Return the optimizers that share parameters with an optimizer."""
        shares = _shares_of(tracked.tracked_object)
        return [other for other in self.optimizers.values() if other.tracked_object.key in shares]

    def _new_tracked_object(self, role: str, **facts: Any) -> TrackedObject:
        """Return a tracked object for a new optimizer or scaler.

        Tracked objects of freed objects are reused, so that their number stays bounded.
        """
        spare_objects = self._spare_objects[role]
        if not spare_objects:
            return self._program.add_object(role, f"the {role}", None, **facts)
        tracked_object = spare_objects.pop()
        tracked_object.name, tracked_object.attributes = f"the {role}", ObjectAttributes(**facts)
        return tracked_object

    def _on_death(self, identity: int, tracked_object: TrackedObject) -> Callable[[object], None]:
        """Return a callback that notes a freed object. The callback may run at any time, so it does nothing else."""
        append_dead = self.dead_objects.append
        return lambda _: append_dead((identity, tracked_object))

    def forget_dead(self) -> None:
        """Forget freed objects after all of their events are checked."""
        self._run_checker.flush()
        while self.dead_objects:
            identity, tracked_object = self.dead_objects.popleft()
            if tracked_object.role == "optimizer":
                self._forget_optimizer(self.optimizers.pop(identity))
            else:
                del self.scalers[identity]
                self._run_checker.frameworks.pop(tracked_object.key, None)
            self._spare_objects[tracked_object.role].append(tracked_object)

    def _forget_optimizer(self, tracked: TrackedOptimizer) -> None:
        key = tracked.tracked_object.key
        for p in tracked.params:
            other_keys = tuple(k for k in self.owner_keys.get(id(p), ()) if k != key)
            if other_keys:
                self.owner_keys[id(p)] = other_keys
            else:
                self.owner_keys.pop(id(p), None)
        for other in _shares_of(tracked.tracked_object):
            _shares_of(self._program.objects[other]).discard(key)
        self._run_checker.forget_optimizer(key)


def _shares_of(tracked_object: TrackedObject) -> set[int]:
    """Return the optimizers that share parameters with an optimizer, as a set that may be changed."""
    attributes = tracked_object.attributes
    if attributes.shares is None:
        attributes.shares = set()
    return attributes.shares
