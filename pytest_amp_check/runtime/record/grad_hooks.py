"""The effect of a parameter's hooks on its gradient in a backward pass."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from types import CodeType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class HookedGradient:
    """The gradient of a parameter before and after the program's hooks on the parameter.

    ``writing_param_ids`` are ids of parameters whose hooks write to the gradient in place; such a gradient must be
    copied first.
    """

    __slots__ = (
        "_handles",
        "_param_id",
        "_writing_param_ids",
        "first_hook",
        "grad_after",
        "grad_before",
        "grad_copy",
        "version_before",
    )

    def __init__(self, param: torch.Tensor, writing_param_ids: set[int]) -> None:
        hooks: Any = param._backward_hooks
        #: The first hook of the program.
        self.first_hook: Callable[..., object] = next(iter(hooks.values()))
        self._param_id, self._writing_param_ids = id(param), writing_param_ids
        self.grad_before: torch.Tensor | None = None
        self.grad_after: torch.Tensor | None = None
        #: Copy of the gradient before the hooks, if a hook writes to the gradient.
        self.grad_copy: torch.Tensor | None = None
        self.version_before = 0
        register: Any = param.register_hook
        others = list(hooks.items())
        # torch calls hooks in the insertion order of the dict, so ours are inserted first and last.
        hooks.clear()
        first = register(functools.partial(_record_gradient, self, "before"))
        hooks.update(others)
        self._handles = [first, register(functools.partial(_record_gradient, self, "after"))]

    def finish_pass(self) -> bool:
        """Remove the hooks after the pass. Return True if a hook changed or replaced the gradient."""
        for handle in self._handles:
            handle.remove()
        before, after = self.grad_before, self.grad_after
        if before is None or after is None:
            return False
        if before._version == self.version_before:
            return before is not after
        self._writing_param_ids.add(self._param_id)
        self.grad_before = self.grad_copy
        return self.grad_copy is not None

    def record_before(self, grad: torch.Tensor) -> None:
        """Store the gradient before the program's hooks."""
        self.grad_before, self.version_before = grad, grad._version
        if self._param_id in self._writing_param_ids:
            self.grad_copy = grad.detach().clone()


def _record_gradient(gradient: HookedGradient, when: str, grad: torch.Tensor) -> None:
    if when == "before":
        gradient.record_before(grad)
    else:
        gradient.grad_after = grad


def find_hooked_params(params: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return the parameters with hooks of the program that are not watched yet."""
    return list(
        {id(p): p for p in params if p._backward_hooks and not any(map(_is_ours, p._backward_hooks.values()))}.values()
    )


def _is_ours(hook: object) -> bool:
    return isinstance(hook, functools.partial) and hook.func is _record_gradient


def hook_codes(param: torch.Tensor) -> Iterator[CodeType]:
    """Yield the code objects of the program's hooks on a parameter."""
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        for hook in (getattr(param, name, None) or {}).values():
            code = getattr(inspect.unwrap(hook), "__code__", None)
            if isinstance(code, CodeType):
                yield code
