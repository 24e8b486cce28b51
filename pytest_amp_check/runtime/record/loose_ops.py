"""Ops that a program calls outside of modules, for example for its loss, seen by a function mode."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .function_modes import pop_if_alone, push_mode, remove_mode
from .tape import TapedCall, user_frame

#: Largest number of observed ops between two module calls or backward passes, to bound the cost.
MOST = 64
#: Attributes of a tensor that are ops.
VIEWS = frozenset({"T", "mT", "H", "mH", "real", "imag"})

#: Callback before an op. A result other than None is passed to the callback for the op's result.
Seen = Callable[[Any, tuple[Any, ...], dict[str, Any], FrameType | None], TapedCall | None]
Ended = Callable[[TapedCall, Any], None]


class LooseOps(TorchFunctionMode):
    """A function mode that reports ops while the mode is on torch's stack of modes.

    Nothing is reported while a module or a backward pass runs.
    """

    def __init__(
        self, on_op: Seen, on_result: Ended, on_overwritten: Callable[[Iterable[torch.Tensor]], object]
    ) -> None:
        super().__init__()
        self._on_overwritten = on_overwritten
        self._on_op = on_op
        self._on_result = on_result
        self._remaining_ops = 0
        #: Number of running ops. During an op torch has removed the mode from its stack, and restores it afterwards.
        self._running_ops = 0
        #: True if the mode should be on the stack; True if a listener has temporarily removed the mode.
        self.is_on = self._is_paused = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():
            return func(*args, **kwargs)
        name = getattr(func, "__name__", None)
        reads = name == "__get__" and getattr(func.__self__, "__name__", None) not in VIEWS
        if reads or name == "__set__" or not self.may_report():
            return self._call_op(func, args, kwargs)
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
            result = func(*args, **kwargs)
        finally:
            self._running_ops -= 1
        out = kwargs.get("out")
        if out is not None:
            self._on_overwritten((out,) if isinstance(out, torch.Tensor) else out)
        return result

    def may_report(self) -> bool:
        """Count one more op, and return True if the op may be reported. Also for callers that replace the mode."""
        self._remaining_ops -= 1
        return self._remaining_ops >= 0

    def start_watching(self) -> None:
        """Report ops of this thread from now on."""
        self._remaining_ops = MOST
        self.is_on = True
        if not self._running_ops and not self._is_paused:
            push_mode(self)

    def stop_watching(self) -> None:
        """Stop the reports. If called within an op, the mode stays on the stack until the next stop."""
        self._remaining_ops = 0
        self.is_on = False
        if not self._running_ops and not self._is_paused:
            remove_mode(self)

    def try_pause(self) -> bool:
        """Leave the stack until :meth:`resume` if no other mode is on it. torch calls a mode for each attribute access.

        A start or stop during the pause takes effect at its end. Return True if the mode was paused.
        """
        if self._is_paused or not pop_if_alone(self):
            return False
        self._is_paused = True
        return True

    def resume(self) -> None:
        self._is_paused = False
        if self.is_on:
            push_mode(self)
