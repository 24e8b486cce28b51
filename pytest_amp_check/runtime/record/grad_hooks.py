"""Hooks on gradients: what those of a parameter do to its gradient in a backward pass."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class HookedGradient:
    """The gradient of a parameter before and after the hooks that the program has registered on the parameter.

    ``writing`` are ids of parameters whose hooks write to the gradient that they get, which has to be copied for them.
    """

    __slots__ = ("_handles", "_id", "_writing", "after", "before", "hook", "kept", "version")

    def __init__(self, param: torch.Tensor, writing: set[int]) -> None:
        hooks: Any = param._backward_hooks
        #: The first of them.
        self.hook: Callable[..., object] = next(iter(hooks.values()))
        self._id, self._writing = id(param), writing
        self.before: torch.Tensor | None = None
        self.after: torch.Tensor | None = None
        #: What the gradient was before them, where one of them writes to it.
        self.kept: torch.Tensor | None = None
        self.version = 0
        register: Any = param.register_hook
        others = list(hooks.items())
        # torch calls them in the order in which they came into the dict, whatever order that has by now.
        hooks.clear()
        first = register(functools.partial(_see, self, "before"))
        hooks.update(others)
        self._handles = [first, register(functools.partial(_see, self, "after"))]

    def leave(self) -> bool:
        """The pass has ended; gives whether a hook has changed the gradient, or put another one in its place."""
        for handle in self._handles:
            handle.remove()
        before, after = self.before, self.after
        if before is None or after is None:
            return False
        if before._version == self.version:
            return before is not after
        self._writing.add(self._id)
        self.before = self.kept
        return self.kept is not None

    def see(self, grad: torch.Tensor) -> None:
        """The gradient comes to the hooks."""
        self.before, self.version = grad, grad._version
        if self._id in self._writing:
            self.kept = grad.detach().clone()


def _see(hooked: HookedGradient, when: str, grad: torch.Tensor) -> None:
    if when == "before":
        hooked.see(grad)
    else:
        hooked.after = grad


def hooked(params: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Those of some parameters on which hooks of the program are registered, and that are not watched yet."""
    return list(
        {id(p): p for p in params if p._backward_hooks and not any(map(_is_ours, p._backward_hooks.values()))}.values()
    )


def _is_ours(hook: object) -> bool:
    return isinstance(hook, functools.partial) and hook.func is _see
