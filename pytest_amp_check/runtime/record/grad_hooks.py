"""Hooks on gradients: what those of a parameter do to its gradient in a backward pass."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class HookedGradient:
    """The gradient of a parameter before and after the hooks that the program has registered on the parameter."""

    __slots__ = ("_handles", "after", "before", "hook", "version")

    def __init__(self, param: torch.Tensor) -> None:
        hooks: Any = param._backward_hooks
        #: The first of them.
        self.hook: Callable[..., object] = next(iter(hooks.values()))
        self.before: torch.Tensor | None = None
        self.after: torch.Tensor | None = None
        self.version = 0
        register: Any = param.register_hook
        others = list(hooks.items())
        # torch calls them in the order in which they came into the dict, whatever order that has by now.
        hooks.clear()
        first = register(functools.partial(_see, self, "before"))
        hooks.update(others)
        self._handles = [first, register(functools.partial(_see, self, "after"))]

    def leave(self) -> bool:
        """The pass has ended; gives whether a hook has put another gradient in the place of the one that it got."""
        for handle in self._handles:
            handle.remove()
        before, after = self.before, self.after
        return before is not None and after is not None and before is not after and before._version == self.version


def _see(hooked: HookedGradient, when: str, grad: torch.Tensor) -> None:
    if when == "before":
        hooked.version = grad._version
    setattr(hooked, when, grad)


def hooked(params: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Those of some parameters on which hooks of the program are registered, and that are not watched yet."""
    return list(
        {id(p): p for p in params if p._backward_hooks and not any(map(_is_ours, p._backward_hooks.values()))}.values()
    )


def _is_ours(hook: object) -> bool:
    return isinstance(hook, functools.partial) and hook.func is _see
