"""Weights that change while autocast holds casts of them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch

from ....protocol import events as e
from .. import active
from ..recording import Recording
from ..source import SiteText
from .listener import Listener, listener_method
from .low_parameters import LowPrecisionListener

#: Before torch 2.11 the weight cache kept what a forward without gradients had cast, for the next one with them.
KEEPS_DETACHED = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 11)


class WeightListener(Listener):
    """Listens to parameters that are written."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        self._forward_hook: Any = None
        #: Identities of the parameters that were written since the outermost region was entered.
        self._written_ids: set[int] = set()
        #: Identities of modules whose weights were cast in this region while gradients were off.
        self._cast_detached: set[int] = set()
        #: Those of low precision, and who trains them.
        self.low_precision = LowPrecisionListener(recording)

    # Weights that the cache of a region holds casts of.

    @listener_method
    def record_write(self, target: Any) -> None:
        """A parameter, or all of a module's, have been given new values."""
        if self.regions and not self.recording.backward_depth:
            params = list(target.parameters()) if isinstance(target, torch.nn.Module) else [target]
            if any(self.is_weight(p) for p in params):
                self.note_written(params)

    def is_weight(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is a parameter, or an optimizer's."""
        return isinstance(tensor, torch.nn.Parameter) or id(tensor) in self.registry.owner_keys

    def note_written(self, params: Iterable[torch.Tensor]) -> None:
        """The program writes parameters, in a region."""
        self._written_ids.update(id(p) for p in params)
        site = self.sites.current_site()
        self.recording.emit(e.PARAM_WRITE, site, names={"call": SiteText(site)})
        self.watch_forwards()

    def note_step(self, params: Iterable[torch.Tensor]) -> None:
        """An optimizer has stepped parameters."""
        if self.regions:
            self._written_ids.update(id(p) for p in params)
            self.watch_forwards()

    def watch_forwards(self) -> None:
        # The compiler enters regions as it traces them. It would take the hook for a part of what it compiles.
        if self._forward_hook is None and self.regions and torch._guards.TracingContext.try_get() is None:
            self._forward_hook = torch.nn.modules.module.register_module_forward_pre_hook(self._hook_forward)

    def unwatch_forwards(self) -> None:
        if self._forward_hook is not None:
            self._forward_hook.remove()
            self._forward_hook = None

    def clear_region(self) -> None:
        """No region is open any more: the cache is empty."""
        self.unwatch_forwards()
        self._written_ids.clear()
        self._cast_detached.clear()

    def _hook_forward(self, module: torch.nn.Module, args: Any) -> None:
        if active.is_active(self.recording):
            self._record_forward(module)

    @listener_method
    def _record_forward(self, module: torch.nn.Module) -> None:
        if self.recording.backward_depth:
            return
        dynamo = sys.modules.get("torch._dynamo")
        if dynamo is not None and isinstance(module, dynamo.OptimizedModule):
            # A compiled forward casts its weights anew; the module in it would be seen as well.
            self.unwatch_forwards()
            self._written_ids.clear()
            return
        if KEEPS_DETACHED:
            self._find_detached(module)
        if not any(id(p) in self._written_ids for p in module.parameters()):
            return
        self.unwatch_forwards()
        site = self.sites.current_site()
        self.recording.emit(e.FORWARD, site, cached=True, names={"module": SiteText(site)})

    def _find_detached(self, module: torch.nn.Module) -> None:
        """Find a module whose weights were cast in this region while gradients were off, and are used with them now."""
        if not torch.is_grad_enabled():
            self._cast_detached.add(id(module))
        elif id(module) in self._cast_detached and any(p.requires_grad for p in module.parameters()):
            self._cast_detached.clear()
            site = self.sites.current_site()
            self.recording.emit(e.FORWARD, site, cached=False, poisoned=True, names={"module": SiteText(site)})
