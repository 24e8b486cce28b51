"""Bounds of gradients in a backward pass: a hook of a tensor, or a Function of the program, clamps what it is given."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .function_modes import push_mode, remove_mode
from .graph import FAR, is_number, iter_nodes, plain_number
from .tape import user_frame

#: Names of ops that bound a tensor by numbers, and of those that replace its infinities.
_BOUNDS = frozenset({"clamp", "clamp_", "clip", "clip_", "clamp_min", "clamp_min_", "clamp_max", "clamp_max_"})
_REPLACEMENTS = frozenset({"nan_to_num", "nan_to_num_"})
#: Files of torch whose functions the autograd engine calls, and which call the code of the program.
_ENGINE_FILES = ("autograd/graph.py", "autograd/function.py", "amp/autocast_mode.py")

#: Called where the program bounds a gradient.
Seen = Callable[[], None]


class GradientBounds(TorchFunctionMode):
    """A function mode that reports bounds of gradients while the mode is on torch's stack of modes."""

    def __init__(self, on_bound: Seen) -> None:
        super().__init__()
        self._on_bound = on_bound

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", None)
        if (name in _BOUNDS and _has_bound((*args[1:], *kwargs.values()))) or name in _REPLACEMENTS:
            frame = user_frame(sys._getframe(1))
            if args and frame is not None and _is_gradient(args[0], frame):
                self._on_bound()
        return func(*args, **kwargs)

    def start(self) -> None:
        push_mode(self)

    def stop(self) -> None:
        remove_mode(self)


def _has_bound(bounds: Sequence[Any]) -> bool:
    """Return True if one of the bounds of a clamp is a number other than zero and infinity."""
    numbers = [plain_number(bound) for bound in bounds if type(bound) is not torch.Tensor and is_number(bound)]
    return any(number and math.isfinite(number) for number in numbers)


def _is_gradient(tensor: Any, frame: FrameType) -> bool:
    """Return True if autograd's engine called the frame's function with a tensor, as it calls hooks of gradients."""
    code, caller = frame.f_code, frame.f_back
    if caller is None or not caller.f_code.co_filename.replace("\\", "/").endswith(_ENGINE_FILES):
        return False
    return any(frame.f_locals.get(name) is tensor for name in code.co_varnames[: code.co_argcount])


def has_own_function(roots: Sequence[torch.Tensor]) -> bool:
    """Return True if a graph has a Function of the program."""
    return any(
        (function := getattr(node, "_forward_cls", None)) is not None and not function.__module__.startswith("torch.")
        for node in iter_nodes(roots, FAR)
    )
