"""Where on torch's stack of function modes ours stand: below those of the program, whose regions take the top one."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._device import DeviceContext

_STACK: Any = torch.overrides


def lift(mode: Any) -> None:
    """Put a mode on the stack, once. Only the mode of a default device stands below, where torch expects that."""
    modes = _others(mode)
    lowest = 1 if modes and isinstance(modes[0], DeviceContext) else 0
    for each in (*modes[:lowest], mode, *modes[lowest:]):
        _STACK._push_mode(each)


def lower(mode: Any) -> None:
    """Take a mode from the stack, wherever it is."""
    for each in _others(mode):
        _STACK._push_mode(each)


def _others(mode: Any) -> list[Any]:
    """All other modes of the stack, which is empty then, the lowest first."""
    modes = [_STACK._pop_mode() for _ in range(_STACK._len_torch_function_stack())]
    return [each for each in reversed(modes) if each is not mode]
