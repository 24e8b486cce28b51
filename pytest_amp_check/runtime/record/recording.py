"""The core of a recording: what it has met, and the chain of events that it makes of a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from ...protocol import events as e
from ...protocol import surface
from ...protocol.chain import PENDING, Chain, Identity
from ...protocol.events import Event, Program, Site, Symbol
from . import active
from .collector import Collector
from .loose_ops import LooseOps
from .readings import Readings
from .regions import Regions
from .registry import Registry
from .sites import Sites, framework, own
from .states import States
from .steps import Steps

Read = TypeVar("Read")
_STEPS = (e.STEP, e.SCALER_STEP)


class _Chain(Chain):
    """Events are judged once the numbers are known that they speak of, and what they do to gradients is noted."""

    def __init__(self, program: Program, readings: Readings, steps: Steps) -> None:
        super().__init__(program, own, framework)
        self._readings = readings
        self._steps = steps
        #: The numbers of the steps that are not judged yet.
        self._numbers: deque[int] = deque()
        self.states = States()

    def add(self, event: Event) -> None:
        if event.kind in _STEPS:
            self._numbers.append(self._steps.total)
        super().add(event)

    def settle(self) -> None:
        self._readings.settle()
        super().settle()

    def _go(self, event: Event) -> None:
        steps = event.kind in _STEPS
        if steps:
            self.states.step = self._numbers.popleft()
        before = self.state.opts
        super()._go(event)
        after = self.state.opts
        if after is not before:
            for key, old, new in zip(self.opts, before, after, strict=False):
                if old.grads != new.grads:
                    self.states.moved(key, new.grads)
        if steps and event.object is not None:
            self.states.stepped(event.object, (event.names or {}).get("optimizer"))

    def adopt(self, optimizer: int, event: Event) -> None:
        super().adopt(optimizer, event)
        self.states.moved(optimizer, self.state.opts[self.index[optimizer]].grads)

    def committed(self, fault: tuple[str, Identity], optimizer: int | None) -> None:
        i = None if optimizer is None else self.index.get(optimizer)
        self.states.committed(fault, optimizer, "" if i is None else self.state.opts[i].grads)

    def history(self) -> dict[str, Any]:
        """What :meth:`.States.as_dict` tells, of all that has happened so far."""
        self.settle()
        return self.states.as_dict(lambda key: self.found.get(key) or self.judged.get(key))


class Recording:
    """What the listeners of one recording share."""

    def __init__(self, outermost: Any = None) -> None:
        #: The error that ended the recording early, and whether a listener is at work, which is not recorded itself.
        self.failure: Exception | None = None
        self.busy = False
        #: Whether a collector watches ops by a dispatch mode.
        self.undispatched = False
        #: The mode that sees ops outside of modules, if any does.
        self.loose_ops: LooseOps | None = None
        self.sites = Sites(outermost)
        self.program = Program()
        #: Numbers that lie on a device.
        self.readings = Readings()
        self.steps = Steps(self.readings)
        self.chain = _Chain(self.program, self.readings, self.steps)
        self.collectors: list[Collector] = []
        self.registry = Registry(self.program, self.chain, self.readings)
        self.regions = Regions()
        #: How many backward passes are running, one inside another.
        self.backwards = 0
        #: Whether in-place changes of tensors may concern the protocol now.
        self.watches_tensors = False
        #: Whether they concern what a program does beside a step that was skipped.
        self.follows = False
        #: What was read in the source at a place.
        self._read: dict[tuple[Callable[[Site], object], Site], Any] = {}
        self.program.facts["live_scalers"] = []
        self.program.facts["trained_modules"] = set()
        self.program.facts["scaler_dtypes"] = set()
        self.program.facts["enters_autocast"] = False

    def emit(
        self,
        kind: e.Kind,
        site: Site,
        subject: int | None = None,
        target: int | None = None,
        *,
        names: dict[str, Any] | None = None,
        **facts: Any,
    ) -> Event:
        event = Event(kind, site, subject, target, facts, names)
        chain = self.chain
        chain.add(event)
        if len(chain.pending) >= PENDING and not self.backwards and self.readings.can_settle:
            chain.settle()
        return event

    def read(self, site: Site, reader: Callable[[Site], Read]) -> Read:
        """What the source says at a place. It is read once, so nobody may change what is returned."""
        kept = self._read.get((reader, site))
        if kept is None:
            kept = self._read[reader, site] = reader(site)
        found: Read = kept
        return found

    def choose_watching(self) -> None:
        """In-place changes concern the protocol in a region, and while gradients are scaled or were unscaled."""
        watches = bool(self.regions) or self.follows
        if not watches:
            for tracked in self.registry.optimizers.values():
                if tracked.under_scale or tracked.unscaled:
                    watches = True
                    break
        if watches != self.watches_tensors:
            self.watches_tensors = watches
            active.watch(self, wanted=watches)


def plain(value: Any) -> object:
    """An argument as the protocol's facts hold it."""
    if isinstance(value, torch.dtype):
        return Symbol(surface.canonical(str(value)))
    if isinstance(value, torch.device):
        return Symbol("torch.device()")
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return e.UNKNOWN
