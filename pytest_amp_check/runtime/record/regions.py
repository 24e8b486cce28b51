"""Autocast regions, and the parameters that change while one is open."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ...protocol import events as e
from ...protocol import surface
from ...protocol.events import Event, Site
from . import patches
from .elsewhere import Watch
from .graph import FAR, nodes
from .recording import Recording, plain, told
from .source import Entered, Spoken
from .sums import can_follow
from .tracked import Known

#: Low-precision dtypes that autocast and master weights can have.
LOW = {torch.float16: "float16", torch.bfloat16: "bfloat16"}


#: Before torch 2.11 the weight cache kept what a forward without gradients had cast, for the next one with them.
KEEPS_DETACHED = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 11)


class Regions(Recording):
    """Told of autocast and of parameters."""

    @told
    def autocast_new(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        entry = surface.SURFACE[name]
        bound = dict(zip(entry.parameters, args, strict=False))
        bound.update(kwargs)
        site = self.sites.here()
        if id(site) in self._constructed:
            return
        self._constructed.add(id(site))
        excess = max(0, len(args) - len(entry.parameters))
        arguments = {key: plain(value) for key, value in bound.items()}
        names = {"context": Spoken(site), "call": Spoken(site)}
        self._emit(e.AUTOCAST_NEW, site, callable=name, arguments=arguments, excess=excess, names=names)

    @told
    def autocast_enter(self, region: Any) -> None:
        if self._passes:
            return  # torch restores autocast to compute a checkpoint again
        enabled = bool(region._enabled)
        dtype = LOW.get(region.fast_dtype) or str(region.fast_dtype).removeprefix("torch.")
        if enabled:
            self._dtypes.add(dtype)
        frame = sys._getframe(3)
        decorated = frame.f_code.co_name == "decorate_autocast"
        site = self.sites.definition(frame.f_locals["func"].__code__) if decorated else self.sites.here()
        self._regions.append(site)
        self._spans.enter(enabled=enabled)
        self.program.facts["enters_autocast"] = True
        self._devices.append(region.device)
        cache = bool(region._cache_enabled)
        if KEEPS_DETACHED and enabled and cache:
            self._hook_forwards()
        self._watch()
        self._emit(
            e.AUTOCAST_ENTER,
            site,
            None,
            instance=id(region),
            enabled=enabled,
            device=region.device,
            dtype=dtype,
            cache=cache,
            names=self._at(site, _decorating if decorated else _entering),
        )

    @told
    def autocast_exit(self, region: Any) -> None:
        if self._passes or not self._regions:
            return
        if self._threads:
            self._tell_threads()
        self._devices.pop()
        self._spans.leave(_dtype_of(region))
        self._emit(e.AUTOCAST_EXIT, self._regions.pop())
        if not self._regions:
            self._threads.clear()
            self._unhook()
            self._written.clear()
            self._poison.clear()
            self._watch()

    def _dtypes_below(self, site: Site, roots: Sequence[torch.Tensor]) -> frozenset[str]:
        """The dtypes of the regions in which what runs backward at a place was computed."""
        since = frozenset(self._dtypes)
        known = self._computed_in.get((id(site), since))
        if known is None:
            known = self._computed_in[id(site), since] = frozenset(self._low_below(roots))
        return known

    def _low_below(self, roots: Sequence[torch.Tensor]) -> Iterator[str]:
        for node in nodes(roots, FAR) if self._spans else ():
            dtype = self._spans.dtype_at(node)
            if dtype:
                yield from self._dtypes if dtype == "?" else [dtype]

    @told
    def cache_cleared(self) -> None:
        self._unhook()
        self._emit(e.AUTOCAST_CACHE_CLEAR, self.sites.here())

    @told
    def loss(self, function: str) -> None:
        if not self._passes:
            site = self.sites.here()
            self._emit(e.LOSS, site, function=function, names={"call": Spoken(site), "loss": Spoken(site, "argument")})

    @told
    def low_loss(self, output: torch.Tensor) -> None:
        """A loss of low precision was computed, from an output that must be as well."""
        if self._passes or not output.requires_grad or not torch.is_grad_enabled() or output.dtype not in LOW:
            return
        site = self.sites.here()
        if id(site) in self._low_losses or not self._spans.left_behind(output):
            return
        self._low_losses.add(id(site))
        names = {"call": Spoken(site), "loss": Spoken(site, "argument", "input")}
        self._emit(e.LOSS, site, low_precision=LOW[output.dtype], names=names)

    @told
    def low_added(self, tensor: torch.Tensor, term: Any, factor: float) -> None:
        """Something was added in place to a tensor of low precision with one element."""
        if not self._passes and can_follow(tensor) and self._sums.added(tensor, term, factor):
            site = self.sites.here()
            names = {"sum": Spoken(site, "receiver")}
            self._emit(e.LOW_SUM, site, dtype=LOW[tensor.dtype], guessed=False, names=names)

    @property
    def in_region(self) -> bool:
        """Whether an autocast region is open."""
        return bool(self._regions)

    @told
    def traced(self) -> None:
        site = self.sites.here()
        self._emit(e.CAPTURE, site, how="trace", names={"call": Spoken(site)})

    @told
    def thread_asked(self) -> Watch | None:
        """Another thread is given work."""
        watch = Watch(self.sites.here(), len(self._regions), self._devices[-1])
        self._threads.append(watch)
        return watch

    def _tell_threads(self) -> None:
        """Tell of the threads that were given work in the innermost region and ran modules without it."""
        depth = len(self._regions)
        for watch in [w for w in self._threads if w.depth == depth]:
            self._threads.remove(watch)
            if watch.off and not watch.on:
                self._emit(e.THREAD, watch.site, how="thread", names={"call": Spoken(watch.site)})

    def _hook_forwards(self) -> None:
        if self._hook is None and self._regions:
            self._hook = torch.nn.modules.module.register_module_forward_pre_hook(self._forward)

    def _unhook(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _forward(self, module: torch.nn.Module, args: Any) -> None:
        if self not in patches.active():
            return
        self._forward_seen(module)

    @told
    def _forward_seen(self, module: torch.nn.Module) -> None:
        if self._passes:
            return
        dynamo = sys.modules.get("torch._dynamo")
        if dynamo is not None and isinstance(module, dynamo.OptimizedModule):
            # A compiled forward casts its weights anew; the module in it would be seen as well.
            self._unhook()
            self._written.clear()
            return
        if KEEPS_DETACHED:
            self._cast(module)
        if not any(id(p) in self._written for p in module.parameters()):
            return
        self._unhook()
        site = self.sites.here()
        self._emit(e.FORWARD, site, cached=True, names={"module": Spoken(site)})

    def _cast(self, module: torch.nn.Module) -> None:
        """Find a module whose weights were cast in this region while gradients were off, and are used with them now."""
        if not torch.is_grad_enabled():
            self._poison.add(id(module))
        elif id(module) in self._poison and any(p.requires_grad for p in module.parameters()):
            self._poison.clear()
            site = self.sites.here()
            self._emit(e.FORWARD, site, cached=False, poisoned=True, names={"module": Spoken(site)})

    @told
    def params_written(self, target: Any) -> None:
        if not self._regions or self._passes:
            return
        params = list(target.parameters()) if isinstance(target, torch.nn.Module) else [target]
        if not any(isinstance(p, torch.nn.Parameter) or id(p) in self.owners for p in params):
            return
        self._written.update(id(p) for p in params)
        site = self.sites.here()
        self._emit(e.PARAM_WRITE, site, names={"call": Spoken(site)})
        self._hook_forwards()

    @told
    def module_cast(self, module: torch.nn.Module, dtype: str) -> None:
        site = self.sites.here()
        thing = self.program.thing("module", "the model")
        names: dict[str, object] = {"module": Spoken(site, "receiver"), "call": Spoken(site)}
        event = Event(e.MODULE_CAST, site, thing.key, None, {"dtype": dtype}, names)
        for p in module.parameters():
            self._casts[id(p)] = event

    def _trains(self, known: Known) -> None:
        """Blame a cast of parameters to a low precision once they are stepped."""
        if not self._casts:
            return
        for p in known.params:
            event = self._casts.get(id(p))
            if event is not None and p.dtype in LOW:
                trained: set[int] = self.program.facts["trained_modules"]
                if event.subject not in trained:
                    assert event.subject is not None
                    trained.add(event.subject)
                    self.chain.add(event)


def _dtype_of(region: Any) -> str:
    """The dtype in which a region computes; nothing where autocast is off in it."""
    return LOW.get(region.fast_dtype) or str(region.fast_dtype).removeprefix("torch.") if region._enabled else ""


def _entering(site: Site) -> dict[str, object]:
    return {"context": Entered(site, decorated=False)}


def _decorating(site: Site) -> dict[str, object]:
    return {"context": Entered(site, decorated=True)}
