"""Weights that change while autocast holds casts of them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch

from ....protocol import events as e
from .. import active
from ..recording import Recording
from ..source import SourceText
from .births import Births
from .listener import Listener, listens

#: Before torch 2.11 the weight cache kept what a forward without gradients had cast, for the next one with them.
KEEPS_DETACHED = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 11)


class Weights(Listener):
    """Listens to parameters that are written."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        self._hook: Any = None
        #: Identities of the parameters that were written since the outermost region was entered.
        self._written: set[int] = set()
        #: Identities of modules whose weights were cast in this region while gradients were off.
        self._cast_detached: set[int] = set()
        #: Those of low precision, and who trains them.
        self.births = Births(recording)

    # Weights that the cache of a region holds casts of.

    @listens
    def written(self, target: Any) -> None:
        """A parameter, or all of a module's, have been given new values."""
        if self.regions and not self.recording.backwards:
            params = list(target.parameters()) if isinstance(target, torch.nn.Module) else [target]
            if any(self.is_weight(p) for p in params):
                self.note_written(params)

    def is_weight(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is a parameter, or an optimizer's."""
        return isinstance(tensor, torch.nn.Parameter) or id(tensor) in self.registry.owners

    def note_written(self, params: Iterable[torch.Tensor]) -> None:
        """The program writes parameters, in a region."""
        self._written.update(id(p) for p in params)
        site = self.sites.here()
        self.recording.emit(e.PARAM_WRITE, site, names={"call": SourceText(site)})
        self.watch_forwards()

    def note_stepped(self, params: Iterable[torch.Tensor]) -> None:
        """An optimizer has stepped parameters."""
        if self.regions:
            self._written.update(id(p) for p in params)
            self.watch_forwards()

    def watch_forwards(self) -> None:
        # The compiler enters regions as it traces them. It would take the hook for a part of what it compiles.
        if self._hook is None and self.regions and torch._guards.TracingContext.try_get() is None:
            self._hook = torch.nn.modules.module.register_module_forward_pre_hook(self._forward)

    def unwatch_forwards(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def forget(self) -> None:
        """No region is open any more: the cache is empty."""
        self.unwatch_forwards()
        self._written.clear()
        self._cast_detached.clear()

    def _forward(self, module: torch.nn.Module, args: Any) -> None:
        if active.is_active(self.recording):
            self._forward_seen(module)

    @listens
    def _forward_seen(self, module: torch.nn.Module) -> None:
        if self.recording.backwards:
            return
        dynamo = sys.modules.get("torch._dynamo")
        if dynamo is not None and isinstance(module, dynamo.OptimizedModule):
            # A compiled forward casts its weights anew; the module in it would be seen as well.
            self.unwatch_forwards()
            self._written.clear()
            return
        if KEEPS_DETACHED:
            self._find_detached(module)
        if not any(id(p) in self._written for p in module.parameters()):
            return
        self.unwatch_forwards()
        site = self.sites.here()
        self.recording.emit(e.FORWARD, site, cached=True, names={"module": SourceText(site)})

    def _find_detached(self, module: torch.nn.Module) -> None:
        """Find a module whose weights were cast in this region while gradients were off, and are used with them now."""
        if not torch.is_grad_enabled():
            self._cast_detached.add(id(module))
        elif id(module) in self._cast_detached and any(p.requires_grad for p in module.parameters()):
            self._cast_detached.clear()
            site = self.sites.here()
            self.recording.emit(e.FORWARD, site, cached=False, poisoned=True, names={"module": SourceText(site)})
