"""Weights that change while autocast caches casts of them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ....protocol import events as e
from .. import active
from ..recording import Recording
from ..source.call_texts import SiteText
from ..sums import can_observe
from .listener import Listener, listener_method
from .low_parameters import LowPrecisionListener

#: Before torch 2.11 the weight cache kept casts from a forward without gradients for the next forward with gradients.
KEEPS_DETACHED = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 11)


class WeightListener(Listener):
    """A listener for writes to parameters."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        self._forward_hook: Any = None
        #: Ids of the parameters that were written since the outermost region was entered.
        self._written_ids: set[int] = set()
        #: Ids of modules whose weights were cast in this region while gradients were disabled.
        self._cast_detached: set[int] = set()
        #: The modules called in enabled regions since the outermost region was entered. Next: the running one.
        self._called_modules: dict[int, torch.nn.Module] = {}
        self._running_module: torch.nn.Module | None = None
        #: Storage of a weight of these modules to the weight. None: must be computed again.
        self._weights_by_storage: dict[int, torch.Tensor] | None = None
        #: The listener for low-precision parameters and their training.
        self.low_precision = LowPrecisionListener(recording)

    # Weights with cached casts in a region.

    @listener_method
    def record_write(self, target: Any) -> None:
        """Record new values of a parameter, or of all parameters of a module."""
        if self.regions and not self.recording.backward_depth:
            params = list(target.parameters()) if isinstance(target, torch.nn.Module) else [target]
            cached_ids = {id(p) for p in _iter_castable(self._called_modules.values())}
            self.note_written([p for p in params if id(p) in cached_ids])

    def note_call(self, module: torch.nn.Module) -> None:
        """Note that a module is called from outside of modules."""
        self._running_module = module

    def note_call_end(self, module: torch.nn.Module) -> None:
        """Note that the call has ended. In an enabled region the weights were cast and cached in the call."""
        self._running_module = None
        if self.regions.spans.is_casting:
            self._note_cast(module)

    def note_region(self) -> None:
        """Note that an enabled region is entered, possibly by the running module."""
        if self._running_module is not None:
            self._note_cast(self._running_module)
            if self._forward_hook is not None:
                self._emit_outdated(self._running_module)

    def _note_cast(self, module: torch.nn.Module) -> None:
        if id(module) not in self._called_modules:
            self._called_modules[id(module)] = module
            self._weights_by_storage = None

    def find_weight(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the weight of a called module that a tensor is, or with which it shares memory as ``p.data`` does.

        Return None for other tensors. The cache has no copies of weights that were not used in the region.
        """
        if tensor.grad_fn is not None or not self._called_modules or not can_observe(tensor):
            return None
        if self._weights_by_storage is None:
            self._weights_by_storage = {
                int(p.untyped_storage()._cdata): p
                for p in _iter_castable(self._called_modules.values())
                if can_observe(p)
            }
        return self._weights_by_storage.get(int(tensor.untyped_storage()._cdata))

    @listener_method
    def record_overwritten(self, tensors: Iterable[torch.Tensor]) -> None:
        """Record tensors that a call has filled, for example as its ``out`` argument."""
        if self.regions and not self.recording.backward_depth:
            weights = [self.find_weight(tensor) for tensor in tensors]
            self.note_written([weight for weight in weights if weight is not None])

    def note_written(self, params: Iterable[torch.Tensor]) -> None:
        """Note that the program writes parameters inside a region."""
        written_ids = [id(p) for p in params]
        if not written_ids:
            return
        self._written_ids.update(written_ids)
        site = self.sites.current_site()
        self.recording.emit(e.ParamWrite(site, names={"call": SiteText(site)}))
        self.watch_forwards()

    def note_step(self, params: Iterable[torch.Tensor]) -> None:
        """Note that an optimizer has stepped parameters."""
        if self.regions:
            running = () if self._running_module is None else (self._running_module,)
            cached_ids = {id(p) for p in _iter_castable((*self._called_modules.values(), *running))}
            self._written_ids.update(id(p) for p in params if id(p) in cached_ids)
            self.watch_forwards()

    def watch_forwards(self) -> None:
        # The compiler enters regions while it traces, and would treat the hook as part of the compiled code.
        if self._forward_hook is None and self.regions and torch._guards.TracingContext.try_get() is None:
            self._forward_hook = torch.nn.modules.module.register_module_forward_pre_hook(self._hook_forward)

    def unwatch_forwards(self) -> None:
        if self._forward_hook is not None:
            self._forward_hook.remove()
            self._forward_hook = None

    def clear_region(self) -> None:
        """Reset when no region is open any more, because the cache is then empty."""
        self.unwatch_forwards()
        self._written_ids.clear()
        self._cast_detached.clear()
        self._called_modules.clear()

    def _hook_forward(self, module: torch.nn.Module, args: Any) -> None:
        if active.is_active(self.recording):
            self._record_forward(module)

    @listener_method
    def _record_forward(self, module: torch.nn.Module) -> None:
        if self.recording.backward_depth:
            return
        dynamo = sys.modules.get("torch._dynamo")
        if dynamo is not None and isinstance(module, dynamo.OptimizedModule):
            # A compiled forward casts its weights again in each call, but the hook would also see the module inside.
            self.unwatch_forwards()
            self._written_ids.clear()
            return
        if KEEPS_DETACHED:
            self._find_detached(module)
        # A forward may enter the region that casts its weights.
        if self.regions.spans.is_casting:
            self._emit_outdated(module)

    def _emit_outdated(self, module: torch.nn.Module) -> None:
        """Record a forward with outdated copies of weights, if the program has written the weights of the module."""
        if not any(id(p) in self._written_ids for p in module.parameters()):
            return
        self.unwatch_forwards()
        site = self.sites.current_site()
        self.recording.emit(e.Forward(site, cached=True, names={"module": SiteText(site)}))

    def _find_detached(self, module: torch.nn.Module) -> None:
        """Find a module whose weights were cast without gradients in this region and are now used with gradients."""
        if not torch.is_grad_enabled():
            self._cast_detached.add(id(module))
        elif id(module) in self._cast_detached and any(p.requires_grad for p in module.parameters()):
            self._cast_detached.clear()
            site = self.sites.current_site()
            self.recording.emit(e.Forward(site, cached=False, poisoned=True, names={"module": SiteText(site)}))


def _iter_castable(modules: Iterable[torch.nn.Module]) -> Iterator[torch.Tensor]:
    """Yield the parameters of modules whose casts autocast caches: trained ones in float32."""
    for module in modules:
        for p in module.parameters():
            if p.requires_grad and p.is_leaf and p.dtype is torch.float32:
                yield p
