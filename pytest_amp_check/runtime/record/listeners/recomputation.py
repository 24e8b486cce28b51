"""Reentrant activation checkpoints that cut the parameters inside them off from the loss."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ....protocol import events as e
from ....protocol.events import Event
from ..recording import Recording
from ..source.call_texts import SiteText
from ..tracked import TrackedOptimizer
from .listener import Listener, listener_method


class RecomputationListener(Listener):
    """A listener for calls of reentrant checkpoints whose inputs require no gradients.

    The results of such a call require no gradients either, whatever the parameters inside require.
    """

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        #: Events of such calls that are not reported yet, with the ids of the parameters inside.
        self._cuts: list[tuple[Event, frozenset[int]]] = []
        self._seen_site_ids: set[int] = set()
        #: Ids of the parameters that reported calls have cut off.
        self._reported_ids: set[int] = set()

    @listener_method
    def record_call(self, function: Any, args: tuple[Any, ...]) -> None:
        if self.recording.backward_depth or not torch.is_grad_enabled():
            return
        if any(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args):
            return
        site = self.sites.current_site()
        if id(site) in self._seen_site_ids:
            return
        self._seen_site_ids.add(id(site))
        ids = frozenset(id(p) for module in _modules_of(function) for p in module.parameters() if p.requires_grad)
        if ids:
            event = e.Recomputation(site, names={"call": SiteText(site)})
            self._cuts.append((event, ids))

    def report_cuts(self, tracked: TrackedOptimizer) -> None:
        """Report the calls that keep gradients from parameters of an optimizer that is about to step."""
        for cut in self._cuts[:]:
            event, ids = cut
            untrained = [p for p in tracked.params if id(p) in ids and p._grad is None]
            if untrained:
                self._cuts.remove(cut)
                self._reported_ids |= ids
                self.recording.run_checker.add_event(event)

    def has_cut(self, tracked: TrackedOptimizer) -> bool:
        """Return True if a reported call keeps gradients from a parameter of an optimizer."""
        return tracked.holds_any(frozenset(self._reported_ids))


def _modules_of(function: Any) -> Iterator[torch.nn.Module]:
    """Yield the modules that a checkpointed function is, or refers to."""
    if isinstance(function, torch.nn.Module):
        yield function
    elif isinstance(function, functools.partial):
        for value in (function.func, *function.args, *function.keywords.values()):
            yield from _modules_of(value)
    elif isinstance(function, types.MethodType):
        if isinstance(function.__self__, torch.nn.Module):
            yield from _used_modules(function.__self__, function.__func__)
    elif isinstance(function, types.FunctionType):
        used_globals = [function.__globals__.get(name) for name in function.__code__.co_names]
        # An empty cell has no contents.
        used_cells = [getattr(cell, "cell_contents", None) for cell in function.__closure__ or ()]
        for value in (*used_globals, *used_cells):
            if isinstance(value, torch.nn.Module):
                yield from _used_modules(value, function)


def _used_modules(owner: torch.nn.Module, function: Callable[..., Any]) -> Iterator[torch.nn.Module]:
    """Yield the submodules that a function names as attributes, or the module itself if it names none."""
    code = inspect.unwrap(function).__code__
    children = [owner._modules[name] for name in code.co_names if name in owner._modules]
    yield from (child for child in children or [owner] if child is not None)
