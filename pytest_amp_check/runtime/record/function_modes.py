"""The position of our modes on torch's stack of function modes.

They are below the modes of the program, because leaving a region removes the top mode.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._device import DeviceContext

_STACK: Any = torch.overrides
_len: Any = torch._C._len_torch_function_stack
_at: Any = torch._C._get_function_stack_at


def push_mode(mode: Any) -> None:
    """Put a mode on the stack, once, at the bottom. Only the mode of a default device is below, as torch expects."""
    modes = _pop_all_but(mode)
    lowest = 1 if modes and isinstance(modes[0], DeviceContext) else 0
    for each in (*modes[:lowest], mode, *modes[lowest:]):
        _STACK._push_mode(each)


def remove_mode(mode: Any) -> None:
    """Remove a mode from the stack at any position, if present."""
    for each in _pop_all_but(mode):
        _STACK._push_mode(each)


def pop_if_alone(mode: Any) -> bool:
    """Remove a mode from the stack if no other mode is on it. Return True if the mode was removed."""
    is_alone = bool(_len() == 1 and _at(0) is mode)
    if is_alone:
        _STACK._pop_mode()
    return is_alone


def _pop_all_but(mode: Any) -> list[Any]:
    """Empty the stack and return all modes except ``mode``, lowest first."""
    modes = [_STACK._pop_mode() for _ in range(_len())]
    return [each for each in reversed(modes) if each is not mode]
