"""Ops that a program calls outside of modules, as for its loss, seen by a mode of torch's functions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .function_modes import pop_if_alone, push_mode, remove_mode
from .tape import TapedCall, user_frame

#: Ops that are seen between two calls of modules or backward passes, which bounds what seeing them costs.
MOST = 64
#: Attributes of a tensor that are ops.
VIEWS = frozenset({"T", "mT", "H", "mH", "real", "imag"})

#: Told of an op that is about to run; what it gives, unless that is None, is handed to who is told of its result.
Seen = Callable[[Any, tuple[Any, ...], dict[str, Any], FrameType | None], TapedCall | None]
Ended = Callable[[TapedCall, Any], None]


class LooseOps(TorchFunctionMode):
    """Tells of the ops while it stands on torch's stack of modes.

    Nothing is seen while a module runs, or a backward pass.
    """

    def __init__(self, on_op: Seen, on_result: Ended) -> None:
        super().__init__()
        self._on_op = on_op
        self._on_result = on_result
        self._remaining_ops = 0
        #: How many ops it is telling of: torch has taken it off the stack meanwhile, and will put it back.
        self._running_ops = 0
        #: Whether it is meant to stand on the stack, and whether a listener has taken it off for a while.
        self.is_on = self._is_paused = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if self._remaining_ops <= 0 or name == "__set__":
            return self._call_op(func, args, kwargs)
        reads = name == "__get__"
        if reads and getattr(func.__self__, "__name__", "") not in VIEWS:
            return self._call_op(func, args, kwargs)
        self._remaining_ops -= 1
        call = self._on_op(func, args, kwargs, user_frame(sys._getframe(1)))
        result = self._call_op(func, args, kwargs)
        if call is not None:
            changed = args[0] if name == "__setitem__" else result
            if isinstance(changed, (torch.Tensor, tuple, list)):
                self._on_result(call, changed)
        return result

    def _call_op(self, func: Any, args: Any, kwargs: Any) -> Any:
        self._running_ops += 1
        try:
            return func(*args, **kwargs)
        finally:
            self._running_ops -= 1

    def may_report(self) -> bool:
        """Whether one more op may be told of, by somebody who knows of it while this mode is aside."""
        self._remaining_ops -= 1
        return self._remaining_ops >= 0

    def start_watching(self) -> None:
        """Tell of ops from now on, in this thread."""
        self._remaining_ops = MOST
        self.is_on = True
        if not self._running_ops and not self._is_paused:
            push_mode(self)

    def stop_watching(self) -> None:
        """Tell of no more. From within an op, it stays on the stack until it is told to end once more."""
        self._remaining_ops = 0
        self.is_on = False
        if not self._running_ops and not self._is_paused:
            remove_mode(self)

    def try_pause(self) -> bool:
        """Leave the stack if nothing else is there, until :meth:`comes_back`: torch asks a mode about each attribute.

        What begins or ends meanwhile does so then.
        """
        if self._is_paused or not pop_if_alone(self):
            return False
        self._is_paused = True
        return True

    def resume(self) -> None:
        self._is_paused = False
        if self.is_on:
            push_mode(self)
