"""The core of a recording: the things it knows, and the chain of events it makes."""

from __future__ import annotations

import functools
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ..protocol import events as e
from ..protocol import surface
from ..protocol.chain import PENDING, Chain
from ..protocol.events import Event, Program, Site, Symbol, Thing
from ..protocol.finding import Finding
from . import patches
from .collector import Collector
from .elsewhere import Watch
from .known import Known, Penalty, Scaler
from .origins import Calls, Spans
from .sites import Sites, own
from .spoken import Spoken
from .steps import Steps
from .sums import Sums

#: Tensors that came out of ``scaler.scale`` and are remembered.
SCALED_KEPT = 64
#: Different sets of parameters that were clipped and are remembered.
CLIPPED_KEPT = 64

Method = TypeVar("Method", bound=Callable[..., Any])
Read = TypeVar("Read")


def told(method: Method) -> Method:
    """A method that is told of an event. Its own errors must not reach the program that is recorded."""

    @functools.wraps(method)
    def told(self: Recording, *args: Any, **kwargs: Any) -> Any:
        if self.failure is not None or self._busy:
            return None
        self._busy = True
        try:
            if self._dead and not self._passes:
                self.bury()
            if self.undispatched:
                # What the recorder computes is no part of what dispatch modes watch.
                with _disable_current_modes():
                    return method(self, *args, **kwargs)
            return method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - whatever it is, the training goes on; it is reported at the end
            self.failure = error
            return None
        finally:
            self._busy = False

    return told  # type: ignore[return-value]


class Recording:
    """One recording, in the thread that began it."""

    def __init__(self, *, automatic: bool = False, outermost: Any = None) -> None:
        self.automatic = automatic
        self.failure: Exception | None = None
        self._busy = False
        #: Whether a collector watches ops by a dispatch mode.
        self.undispatched = False
        self.sites = Sites(outermost)
        self.program = Program()
        self.chain = Chain(self.program, own)
        self.steps = Steps()
        self.collectors: list[Collector] = []
        self.optimizers: dict[int, Known] = {}
        self.scalers: dict[int, Scaler] = {}
        #: What is gone and not forgotten yet, and the things of what is.
        self._dead: deque[tuple[int, Thing]] = deque()
        self._spare: dict[str, list[Thing]] = {"optimizer": [], "scaler": []}
        #: id of a parameter -> keys of the optimizers that hold it.
        self.owners: dict[int, tuple[int, ...]] = {}
        #: ids of parameters that belong to optimizers, all of them -> keys of those optimizers.
        self._clipped: dict[frozenset[int], frozenset[int]] = {}
        #: What was read in the source at a place.
        self._read: dict[tuple[Callable[[Site], object], Site], Any] = {}
        self._scaled: deque[tuple[weakref.ref[torch.Tensor], Scaler, float]] = deque(maxlen=SCALED_KEPT)
        self._penalties: list[Penalty] = []
        self._suspects: list[Penalty] = []
        self._passes = 0
        self.in_scaler_step = 0
        self._dtypes: set[str] = set()
        #: id of a backward's site -> the parameters that it reached at first.
        self._leaves: dict[int, frozenset[int]] = {}
        self._casts: dict[int, Event] = {}
        #: Where the regions that are open were entered, on which devices, and who was given work in them.
        self._regions: list[Site] = []
        #: What was found at a place after regions of some dtypes: those of the regions in which its graph was made.
        self._computed_in: dict[tuple[int, frozenset[str]], frozenset[str]] = {}
        self._devices: list[str] = []
        self._threads: list[Watch] = []
        #: What ran in those that were entered so far, and which modules are called for losses whose forward is sought.
        self._spans = Spans()
        self._calls = Calls()
        self._sought: list[Event] = []
        #: Places that scaled, with the dtypes of the regions before.
        self._scales: set[tuple[int, frozenset[str]]] = set()
        #: Places where an autocast was constructed.
        self._constructed: set[int] = set()
        #: Places that computed a loss of low precision outside of any region.
        self._low_losses: set[int] = set()
        self._sums = Sums()
        self._grad_storages: dict[int, tuple[int, ...]] | None = None
        self._hook: Any = None
        self._written: set[int] = set()
        self._told_disabled = False
        #: Identities of the states of optimizers in checkpoints that hold a scaler's, too.
        self._resumable: set[int] = set()
        #: Scalers whose construction was seen.
        self._made: weakref.WeakSet[Any] = weakref.WeakSet()
        #: The optimizer that a scaler steps which is switched off, in the user's words.
        self._through: Spoken | None = None
        #: Whether a scaler that is switched off has scaled: what trains unscaled beside it does so on purpose.
        self._scaled_off = False
        self._live: set[int] = set()
        self._poison: set[int] = set()
        #: Whether in-place changes of tensors may concern the protocol now.
        self.watches_tensors = False
        self.program.facts["live_scalers"] = []
        self.program.facts["trained_modules"] = set()
        self.program.facts["scaler_dtypes"] = set()
        self.program.facts["enters_autocast"] = False

    def findings(self, select: frozenset[str] | None = None) -> list[Finding]:
        """What has been found so far."""
        return self.chain.findings(select)

    def _known(self, optimizer: Any) -> Known:
        known = self.optimizers.get(id(optimizer))
        if known is not None and known.optimizer() is optimizer:
            return known
        thing = self._thing("optimizer", constructed=True)
        known = self.optimizers[id(optimizer)] = Known(optimizer, thing)
        known.optimizer = weakref.ref(optimizer, self._noting(id(optimizer), thing))
        self._own(known)
        ids = {id(p) for p in known.params}
        pending = self.chain.pending
        for event in (*self.chain.recent, *pending):
            leaves = event.facts.get("leaves")
            touches = event.facts.get("touches")
            if touches and not ids.isdisjoint(touches):
                event.facts["owners"].add(thing.key)
            if leaves and not ids.isdisjoint(leaves):
                event.facts["feeds"].add(thing.key)
                known.backward = event
                known.under_scale = bool(event.facts.get("scaled"))
        if known.backward is not None and known.backward not in pending:
            self.chain.adopt(thing.key, known.backward)
        return known

    def _own(self, known: Known) -> None:
        key = known.thing.key
        shares: set[int] = known.thing.facts.setdefault("shares", set())
        for p in known.params:
            others = self.owners.get(id(p), ())
            for other in others:
                if other != key:
                    shares.add(other)
                    self.program.things[other].facts.setdefault("shares", set()).add(key)
            if key not in others:
                self.owners[id(p)] = (*others, key)
        self._clipped.clear()

    def _thing(self, role: str, **facts: Any) -> Thing:
        """A thing for a new object; those of objects that are gone are used again, so that they do not pile up."""
        spare = self._spare[role]
        if not spare:
            return self.program.thing(role, f"the {role}", None, **facts)
        thing = spare.pop()
        thing.name, thing.facts = f"the {role}", facts
        return thing

    def _noting(self, identity: int, thing: Thing) -> Callable[[object], None]:
        """What takes note that an object is gone. It may be called at any time, so it does no more."""
        gone = self._dead.append
        return lambda _: gone((identity, thing))

    def bury(self) -> None:
        """Forget what is gone, once all that it has done is judged."""
        self.chain.settle()
        while self._dead:
            identity, thing = self._dead.popleft()
            if thing.role == "optimizer":
                self._forget(self.optimizers.pop(identity))
            else:
                del self.scalers[identity]
            self._spare[thing.role].append(thing)

    def _forget(self, known: Known) -> None:
        key = known.thing.key
        for p in known.params:
            left = tuple(k for k in self.owners.get(id(p), ()) if k != key)
            if left:
                self.owners[id(p)] = left
            else:
                self.owners.pop(id(p), None)
        self._clipped.clear()
        for other in known.thing.facts.get("shares", ()):
            self.program.things[other].facts["shares"].discard(key)
        self.chain.forget(key)

    def _scaler(self, scaler: Any) -> Scaler:
        known = self.scalers.get(id(scaler))
        if known is not None and known.scaler() is scaler:
            return known
        arguments = {"init_scale": scaler._init_scale}
        thing = self._thing("scaler", constructed=True, enabled=True, arguments=arguments)
        known = self.scalers[id(scaler)] = Scaler(scaler, thing)
        known.scaler = weakref.ref(scaler, self._noting(id(scaler), thing))
        known.scale = scale_of(scaler)
        return known

    def _emit(
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
        if len(chain.pending) >= PENDING and not self._passes:
            chain.settle()
        return event

    def _at(self, site: Site, read: Callable[[Site], Read]) -> Read:
        """What the source says at a place. It is read once, so nobody may change what is returned."""
        known = self._read.get((read, site))
        if known is None:
            known = self._read[read, site] = read(site)
        found: Read = known
        return found

    def _by_key(self, key: int) -> Known | None:
        for known in self.optimizers.values():
            if known.thing.key == key:
                return known
        return None

    def _watch(self) -> None:
        watches = bool(self._regions)
        if not watches:
            for known in self.optimizers.values():
                if known.under_scale or known.unscaled:
                    watches = True
                    break
        if watches != self.watches_tensors:
            self.watches_tensors = watches
            patches.watch(self)


def plain(value: Any) -> object:
    """An argument as the protocol's facts hold it."""
    if isinstance(value, torch.dtype):
        return Symbol(surface.canonical(str(value)))
    if isinstance(value, torch.device):
        return Symbol("torch.device()")
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return e.UNKNOWN


def scale_of(scaler: Any) -> float:
    value = scaler._scale
    return float(scaler._init_scale) if value is None else float(value.item())
