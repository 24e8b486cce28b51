"""The optimizers and scalers that a recording has met, and which parameters are whose."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ...protocol.chain import Chain
from ...protocol.events import Event, Program, Thing
from .readings import ONE, Number, Readings, ScaledValue
from .tracked import TrackedOptimizer, TrackedScaler

if TYPE_CHECKING:
    import torch

#: Different sets of parameters that were clipped and are remembered.
CLIPPED_KEPT = 64


class Registry:
    """Finds what is remembered of an optimizer or a scaler; the first time that it is asked for one, it meets it."""

    def __init__(self, program: Program, chain: Chain, readings: Readings) -> None:
        self._program = program
        self._readings = readings
        self._chain = chain
        self.optimizers: dict[int, TrackedOptimizer] = {}
        self.scalers: dict[int, TrackedScaler] = {}
        #: id of a parameter -> keys of the optimizers that hold it.
        self.owners: dict[int, tuple[int, ...]] = {}
        #: The last backward pass and the loss that it ran from, for optimizers that are met only when they step.
        self.ran: tuple[Event, ScaledValue] | None = None
        #: What is gone and not forgotten yet, and the things of what is.
        self.dead: deque[tuple[int, Thing]] = deque()
        self._spare: dict[str, list[Thing]] = {"optimizer": [], "scaler": []}
        #: ids of parameters that belong to optimizers, all of them -> keys of those optimizers.
        self._clipped: dict[frozenset[int], frozenset[int]] = {}

    def optimizer(self, optimizer: Any) -> TrackedOptimizer:
        tracked = self.optimizers.get(id(optimizer))
        if tracked is not None and tracked.optimizer() is optimizer:
            return tracked
        thing = self._thing("optimizer", constructed=True)
        tracked = self.optimizers[id(optimizer)] = TrackedOptimizer(optimizer, thing)
        tracked.optimizer = weakref.ref(optimizer, self._on_death(id(optimizer), thing))
        self._own(tracked)
        self._catch_up(tracked)
        return tracked

    def _catch_up(self, tracked: TrackedOptimizer) -> None:
        """Attribute what has happened to the parameters of an optimizer before it was met."""
        key = tracked.thing.key
        ids = {id(p) for p in tracked.params}
        pending = self._chain.pending
        for event in (*self._chain.recent, *pending):
            leaves = event.facts.get("leaves")
            touches = event.facts.get("touches")
            if touches and not ids.isdisjoint(touches):
                event.facts["owners"].add(key)
            if leaves and not ids.isdisjoint(leaves):
                event.facts["feeds"].add(key)
                tracked.backward = event
                tracked.under_scale = bool(event.facts.get("scaled"))
                if self.ran is not None and self.ran[0] is event:
                    tracked.loss = self.ran[1]
        if tracked.backward is not None and tracked.backward not in pending:
            self._chain.adopt(key, tracked.backward)

    def refresh(self, optimizer: Any) -> None:
        """The parameters of an optimizer have changed."""
        tracked = self.optimizers.get(id(optimizer))
        held = None if tracked is None else tracked.optimizer()
        if tracked is not None and held is not None and held is optimizer:
            tracked.refresh(held)
            self._own(tracked)

    def _own(self, tracked: TrackedOptimizer) -> None:
        key = tracked.thing.key
        shares: set[int] = tracked.thing.facts.setdefault("shares", set())
        for p in tracked.params:
            others = self.owners.get(id(p), ())
            for other in others:
                if other != key:
                    shares.add(other)
                    self._program.things[other].facts.setdefault("shares", set()).add(key)
            if key not in others:
                self.owners[id(p)] = (*others, key)
        self._clipped.clear()

    def scaler(self, scaler: Any) -> TrackedScaler:
        tracked = self.scalers.get(id(scaler))
        if tracked is not None and tracked.scaler() is scaler:
            return tracked
        arguments = {"init_scale": scaler._init_scale}
        thing = self._thing("scaler", constructed=True, enabled=True, arguments=arguments)
        tracked = self.scalers[id(scaler)] = TrackedScaler(scaler, thing)
        tracked.scaler = weakref.ref(scaler, self._on_death(id(scaler), thing))
        tracked.scale = self.scale_now(scaler)
        return tracked

    @contextmanager
    def replaying(self) -> Iterator[None]:
        """What happens meanwhile writes to gradients and puts back what they were, which only their marks show."""
        seen = [each for each in self.optimizers.values() if each.marks and each.marks == each.sentinel_marks()]
        yield
        for tracked in seen:
            tracked.marks = tracked.sentinel_marks()

    def by_key(self, key: int) -> TrackedOptimizer | None:
        for tracked in self.optimizers.values():
            if tracked.thing.key == key:
                return tracked
        return None

    def scaler_of(self, tracked: TrackedOptimizer) -> TrackedScaler | None:
        """The scaler of the latest backward that fed an optimizer, else the one that stepped it."""
        subject = tracked.backward.subject if tracked.backward is not None else None
        for scaler in self.scalers.values():
            if scaler.thing.key == subject:
                return scaler
        return tracked.scaler

    def scale_for(self, tracked: TrackedOptimizer) -> Number:
        scaler = self.scaler_of(tracked)
        return ONE if scaler is None else scaler.scale

    def scale_now(self, scaler: Any) -> Number:
        """The scale of a GradScaler as it is now."""
        return Number(float(scaler._init_scale)) if scaler._scale is None else self._readings.number(scaler._scale)

    def owners_of(self, params: Sequence[torch.Tensor]) -> tuple[set[int], frozenset[int]]:
        """Keys of the optimizers that hold parameters, and those with a gradient that none holds."""
        ids = frozenset(map(id, params))
        kept = self._clipped.get(ids)
        if kept is not None:
            return set(kept), frozenset()
        holders = self.owners
        owners = {key for identity in ids for key in holders.get(identity, ())}
        if ids <= holders.keys():
            if len(self._clipped) >= CLIPPED_KEPT:
                self._clipped.clear()
            self._clipped[ids] = frozenset(owners)
        return owners, frozenset([id(p) for p in params if id(p) not in holders and p.grad is not None])

    def is_within(self, key: int, tracked: TrackedOptimizer) -> bool:
        """Whether an optimizer, by its key, holds no parameter that another one does not."""
        other = self.by_key(key)
        ids = {id(p) for p in tracked.params}
        return other is not None and all(id(p) in ids for p in other.params)

    def _thing(self, role: str, **facts: Any) -> Thing:
        """A thing for a new object; those of objects that are gone are used again, so that they do not pile up."""
        spare = self._spare[role]
        if not spare:
            return self._program.thing(role, f"the {role}", None, **facts)
        thing = spare.pop()
        thing.name, thing.facts = f"the {role}", facts
        return thing

    def _on_death(self, identity: int, thing: Thing) -> Callable[[object], None]:
        """What takes note that an object is gone. It may be called at any time, so it does no more."""
        gone = self.dead.append
        return lambda _: gone((identity, thing))

    def bury(self) -> None:
        """Forget what is gone, once all that it has done is judged."""
        self._chain.settle()
        while self.dead:
            identity, thing = self.dead.popleft()
            if thing.role == "optimizer":
                self._forget(self.optimizers.pop(identity))
            else:
                del self.scalers[identity]
            self._spare[thing.role].append(thing)

    def _forget(self, tracked: TrackedOptimizer) -> None:
        key = tracked.thing.key
        for p in tracked.params:
            left = tuple(k for k in self.owners.get(id(p), ()) if k != key)
            if left:
                self.owners[id(p)] = left
            else:
                self.owners.pop(id(p), None)
        self._clipped.clear()
        for other in tracked.thing.facts.get("shares", ()):
            self._program.things[other].facts["shares"].discard(key)
        self._chain.forget(key)
