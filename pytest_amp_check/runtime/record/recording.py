"""The core of a recording: what it has met, and the chain of events that it makes of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from ...protocol import events as e
from ...protocol import surface
from ...protocol.chain import PENDING, Chain
from ...protocol.events import Event, Program, Site, Symbol
from . import active
from .collector import Collector
from .loose_ops import LooseOps
from .readings import Readings
from .regions import Regions
from .registry import Registry
from .sites import Sites, framework, own
from .steps import Steps

Read = TypeVar("Read")


class _Chain(Chain):
    """Events are judged once the numbers are known that they speak of."""

    def __init__(self, program: Program, readings: Readings) -> None:
        super().__init__(program, own, framework)
        self._readings = readings

    def settle(self) -> None:
        self._readings.settle()
        super().settle()


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
        self.chain = _Chain(self.program, self.readings)
        self.steps = Steps(self.readings)
        self.collectors: list[Collector] = []
        self.registry = Registry(self.program, self.chain, self.readings)
        self.regions = Regions()
        #: How many backward passes are running, one inside another.
        self.backwards = 0
        #: Whether in-place changes of tensors may concern the protocol now.
        self.watches_tensors = False
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
        watches = bool(self.regions)
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
