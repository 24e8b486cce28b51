"""Autocast: construction of contexts, and entry and exit of regions."""

from __future__ import annotations

from types import FrameType
from typing import Any

from ....protocol import events as e
from ....protocol import torch_api
from ....protocol.sites import Site
from ..recording import Recording, plain_argument
from ..regions import LeftRegion, dtype_of
from ..sites import calling_frame, is_inner
from ..source.call_texts import ContextText, SiteText
from ..source.mentions import chooses_autocast
from .listener import Listener, call_listener_method, listener_method
from .taped_calls import TapeListener
from .threads import ThreadListener
from .weights import KEEPS_DETACHED, WeightListener


class AutocastListener(Listener):
    """A listener for autocast contexts."""

    def __init__(
        self, recording: Recording, weights: WeightListener, threads: ThreadListener, taped_calls: TapeListener
    ) -> None:
        super().__init__(recording)
        self._weights = weights
        self._threads = threads
        self._taped_calls = taped_calls
        #: Id of a location at which an autocast was constructed, and the arguments.
        self._constructions: set[tuple[object, ...]] = set()
        #: Ids of the locations at which a backward pass entered autocast with a dtype of its own.
        self._recomputation_site_ids: set[int] = set()

    @listener_method
    def record_construction(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        site = self.sites.current_site()
        entry = torch_api.SURFACE[name]
        arguments = {
            key: plain_argument(value) for key, value in (*zip(entry.parameters, args, strict=False), *kwargs.items())
        }
        if (construction := (id(site), *arguments.items())) in self._constructions:
            return
        self._constructions.add(construction)
        excess = max(0, len(args) - len(entry.parameters))
        names = {"call": SiteText(site)}
        self.recording.emit(e.AutocastNew(site, callable=name, arguments=arguments, excess=excess, names=names))

    @listener_method
    def record_disabled(self) -> None:
        """Record the construction of a disabled context."""
        regions = self.regions
        if regions.disabled_site is None:
            regions.disabled_site = self.sites.current_site()
        if not regions.is_autocast_chosen:
            regions.is_autocast_chosen = self.recording.query_source(self.sites.current_site(), chooses_autocast)

    @listener_method
    def record_enter(self, region: Any) -> None:
        enabled = bool(region._enabled)
        dtype = dtype_of(region)
        if self.recording.backward_depth:
            if enabled:
                self._check_recomputation(dtype)
            return
        frame = calling_frame()
        is_decorator = frame.f_code.co_name == "decorate_autocast"
        site = (
            self.sites.site_of_definition(frame.f_locals["func"].__code__)
            if is_decorator
            else self.sites.current_site()
        )
        self.regions.enter(site, region.device, dtype, enabled=enabled)
        self._taped_calls.note_region()
        if enabled:
            self.recording.program.attributes.enters_autocast = True
        cache = bool(region._cache_enabled)
        if KEEPS_DETACHED and enabled and cache:
            self._weights.watch_forwards()
        self.recording.update_watching()
        self.recording.emit(
            e.AutocastEnter(
                site,
                None,
                instance=id(region),
                enabled=enabled,
                device=region.device,
                dtype=dtype,
                cache=cache,
                names=self.recording.query_source(site, _decorator_names if is_decorator else _enter_names),
            )
        )
        if enabled:
            self._weights.note_region()

    def _check_recomputation(self, dtype: str) -> None:
        """Report code that enters autocast in a backward pass with a dtype that the forward pass did not use.

        torch itself restores the autocast of the forward pass to recompute a checkpoint.
        """
        forward_dtypes = self.regions.forward_dtypes
        if not forward_dtypes or dtype in forward_dtypes:
            return
        frame: FrameType | None = calling_frame()
        while frame is not None and frame.f_code.co_name == "__enter__":
            frame = frame.f_back  # of `torch.cuda.amp.autocast`
        if frame is None or is_inner(frame.f_code.co_filename):
            return
        site = self.sites.current_site()
        if id(site) not in self._recomputation_site_ids:
            self._recomputation_site_ids.add(id(site))
            names = {
                "function": site.function.removesuffix(".backward"),
                "call": SiteText(site),
                "dtype": dtype,
                "forward": " and ".join(sorted(forward_dtypes)),
            }
            self.recording.emit(e.CustomFunction(site, how="recomputed", applied=False, names=names))

    @call_listener_method
    def record_exit(self, region: Any, error: object) -> None:
        if self.recording.backward_depth or not self.regions:
            return
        if error is not None and (self.regions.left_region is None or self.regions.left_region.error_id != id(error)):
            site = self.regions.open_regions[-1].site
            enabled = bool(region._enabled)
            self.regions.left_region = LeftRegion(id(error), site, region.device, dtype_of(region), enabled)
        self._threads.report_threads()
        self.recording.emit(e.AutocastExit(self.regions.leave(dtype_of(region) if region._enabled else "")))
        if not self.regions:
            self._weights.clear_region()
            self.recording.update_watching()

    @listener_method
    def record_cache_clear(self) -> None:
        self._weights.unwatch_forwards()
        self.recording.emit(e.AutocastCacheClear(self.sites.current_site()))


def _enter_names(site: Site) -> dict[str, object]:
    return {"context": ContextText(site, is_decorator=False)}


def _decorator_names(site: Site) -> dict[str, object]:
    return {"context": ContextText(site, is_decorator=True)}
