"""Weights that change while autocast caches casts of them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch

from ....protocol import events as e
from .. import active
from ..recording import Recording
from ..source import SiteText
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
        #: The modules called since the outermost region was entered; and storage -> weight of these modules. None: must
        #: be computed again.
        self._called_modules: dict[int, torch.nn.Module] = {}
        self._weights_by_storage: dict[int, torch.Tensor] | None = None
        #: The listener for low-precision parameters and their training.
        self.low_precision = LowPrecisionListener(recording)

    # Weights with cached casts in a region.

    @listener_method
    def record_write(self, target: Any) -> None:
        """Record new values of a parameter, or of all parameters of a module."""
        if self.regions and not self.recording.backward_depth:
            params = list(target.parameters()) if isinstance(target, torch.nn.Module) else [target]
            if any(self.is_weight(p) for p in params):
                self.note_written(params)

    def is_weight(self, tensor: torch.Tensor) -> bool:
        """Return True if a tensor is a parameter of a module or of an optimizer."""
        return isinstance(tensor, torch.nn.Parameter) or id(tensor) in self.registry.owner_keys

    def note_call(self, module: torch.nn.Module) -> None:
        """Note that a module is called from outside of modules."""
        if self.regions and id(module) not in self._called_modules:
            self._called_modules[id(module)] = module
            self._weights_by_storage = None

    def find_weight(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the parameter that a tensor is, or with which it shares memory, as ``p.data`` does. Else None."""
        return tensor if self.is_weight(tensor) else self._find_called_weight(tensor)

    @listener_method
    def record_fill(self, tensor: torch.Tensor) -> None:
        """Record a tensor that ``torch.nn.init`` fills. A module that is constructed has no cached casts yet."""
        weight = self._find_called_weight(tensor) if self.regions and not self.recording.backward_depth else None
        if weight is not None:
            self.note_written([weight])

    def _find_called_weight(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the parameter of a called module with which a tensor shares memory, or None."""
        if tensor.grad_fn is not None or not self._called_modules or not can_observe(tensor):
            return None
        if self._weights_by_storage is None:
            self._weights_by_storage = {
                int(p.untyped_storage()._cdata): p
                for module in self._called_modules.values()
                for p in module.parameters()
                if can_observe(p)
            }
        return self._weights_by_storage.get(int(tensor.untyped_storage()._cdata))

    def note_written(self, params: Iterable[torch.Tensor]) -> None:
        """Note that the program writes parameters inside a region."""
        self._written_ids.update(id(p) for p in params)
        site = self.sites.current_site()
        self.recording.emit(e.ParamWrite(site, names={"call": SiteText(site)}))
        self.watch_forwards()

    def note_step(self, params: Iterable[torch.Tensor]) -> None:
        """Note that an optimizer has stepped parameters."""
        if self.regions:
            self._written_ids.update(id(p) for p in params)
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
        self._weights_by_storage = None

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
