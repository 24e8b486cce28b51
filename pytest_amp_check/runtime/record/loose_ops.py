"""Ops that a program calls outside of modules, as for its loss, seen by a mode of torch's functions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .function_modes import lift, lower, popped
from .tape import Call, user_frame

#: Ops that are seen between two calls of modules or backward passes, which bounds what seeing them costs.
MOST = 64
#: Attributes of a tensor that are ops.
VIEWS = frozenset({"T", "mT", "H", "mH", "real", "imag"})

#: Told of an op that is about to run; what it gives, unless that is None, is handed to who is told of its result.
Seen = Callable[[Any, tuple[Any, ...], dict[str, Any], FrameType | None], Call | None]
Ended = Callable[[Call, Any], None]


class LooseOps(TorchFunctionMode):
    """Tells of the ops while it stands on torch's stack of modes.

    Nothing is seen while a module runs, or a backward pass.
    """

    def __init__(self, seen: Seen, ended: Ended) -> None:
        super().__init__()
        self._seen = seen
        self._ended = ended
        self._left = 0
        #: How many ops it is telling of: torch has taken it off the stack meanwhile, and will put it back.
        self._inside = 0
        #: Whether it is meant to stand on the stack, and whether a listener has taken it off for a while.
        self.is_on = self._aside = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if self._left <= 0 or name == "__set__":
            return self._call(func, args, kwargs)
        reads = name == "__get__"
        if reads and getattr(func.__self__, "__name__", "") not in VIEWS:
            return self._call(func, args, kwargs)
        self._left -= 1
        call = self._seen(func, args, kwargs, user_frame(sys._getframe(1)))
        result = self._call(func, args, kwargs)
        if call is not None:
            made = args[0] if name == "__setitem__" else result
            if isinstance(made, (torch.Tensor, tuple, list)):
                self._ended(call, made)
        return result

    def _call(self, func: Any, args: Any, kwargs: Any) -> Any:
        self._inside += 1
        try:
            return func(*args, **kwargs)
        finally:
            self._inside -= 1

    def may_tell(self) -> bool:
        """Whether one more op may be told of, by somebody who knows of it while this mode is aside."""
        self._left -= 1
        return self._left >= 0

    def begin(self) -> None:
        """Tell of ops from now on, in this thread."""
        self._left = MOST
        self.is_on = True
        if not self._inside and not self._aside:
            lift(self)

    def end(self) -> None:
        """Tell of no more. From within an op, it stays on the stack until it is told to end once more."""
        self._left = 0
        self.is_on = False
        if not self._inside and not self._aside:
            lower(self)

    def steps_aside(self) -> bool:
        """Leave the stack if nothing else is there, until :meth:`comes_back`: torch asks a mode about each attribute.

        What begins or ends meanwhile does so then.
        """
        if self._aside or not popped(self):
            return False
        self._aside = True
        return True

    def comes_back(self) -> None:
        self._aside = False
        if self.is_on:
            lift(self)
