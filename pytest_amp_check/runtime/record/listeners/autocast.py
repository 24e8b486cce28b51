"""Autocast: how contexts are made, and where regions are entered and left."""

from __future__ import annotations

from typing import Any

from ....protocol import events as e
from ....protocol import surface
from ....protocol.events import Site
from ..recording import Recording, plain
from ..regions import Left, dtype_of
from ..sites import calling_frame
from ..source import ContextText, SourceText, chooses_autocast
from .finite import Finite
from .listener import Listener, listens, listens_to_calls
from .threads import Threads
from .weights import KEEPS_DETACHED, Weights


class Autocast(Listener):
    """Listens to autocast contexts."""

    def __init__(self, recording: Recording, weights: Weights, threads: Threads, finite: Finite) -> None:
        super().__init__(recording)
        self._weights = weights
        self._threads = threads
        self._finite = finite
        #: Places where an autocast was constructed.
        self._constructed: set[int] = set()

    @listens
    def constructed(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        entry = surface.SURFACE[name]
        bound = dict(zip(entry.parameters, args, strict=False))
        bound.update(kwargs)
        site = self.sites.here()
        if id(site) in self._constructed:
            return
        self._constructed.add(id(site))
        excess = max(0, len(args) - len(entry.parameters))
        arguments = {key: plain(value) for key, value in bound.items()}
        names = {"call": SourceText(site)}
        self.recording.emit(e.AUTOCAST_NEW, site, callable=name, arguments=arguments, excess=excess, names=names)

    @listens
    def switched_off(self) -> None:
        """A context is constructed that is switched off."""
        if not self.regions.chosen:
            self.regions.chosen = self.recording.read(self.sites.here(), chooses_autocast)

    @listens
    def entered(self, region: Any) -> None:
        if self.recording.backwards:
            return  # torch restores autocast to compute a checkpoint again
        enabled = bool(region._enabled)
        dtype = dtype_of(region)
        frame = calling_frame()
        decorated = frame.f_code.co_name == "decorate_autocast"
        site = self.sites.definition(frame.f_locals["func"].__code__) if decorated else self.sites.here()
        self.regions.enter(site, region.device, dtype, enabled=enabled)
        self._finite.region_entered()
        if enabled:
            self.recording.program.facts["enters_autocast"] = True
        cache = bool(region._cache_enabled)
        if KEEPS_DETACHED and enabled and cache:
            self._weights.watch_forwards()
        self.recording.choose_watching()
        self.recording.emit(
            e.AUTOCAST_ENTER,
            site,
            None,
            instance=id(region),
            enabled=enabled,
            device=region.device,
            dtype=dtype,
            cache=cache,
            names=self.recording.read(site, _decorating if decorated else _entering),
        )

    @listens_to_calls
    def exited(self, region: Any, error: object) -> None:
        if self.recording.backwards or not self.regions:
            return
        if error is not None and (self.regions.left is None or self.regions.left.error != id(error)):
            site = self.regions.open[-1].site
            enabled = bool(region._enabled)
            self.regions.left = Left(id(error), site, region.device, dtype_of(region), enabled)
        self._threads.report()
        self.recording.emit(e.AUTOCAST_EXIT, self.regions.leave(dtype_of(region) if region._enabled else ""))
        if not self.regions:
            self._threads.forget()
            self._weights.forget()
            self.recording.choose_watching()

    @listens
    def cache_cleared(self) -> None:
        self._weights.unwatch_forwards()
        self.recording.emit(e.AUTOCAST_CACHE_CLEAR, self.sites.here())


def _entering(site: Site) -> dict[str, object]:
    return {"context": ContextText(site, decorated=False)}


def _decorating(site: Site) -> dict[str, object]:
    return {"context": ContextText(site, decorated=True)}
