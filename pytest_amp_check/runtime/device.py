"""The GPU that a process trains on, chosen by name."""

from __future__ import annotations

import torch


def choose(device: str) -> bool:
    """Make ``cuda`` or ``cuda:1`` the current device; False where there is none."""
    index = torch.device(device).index or 0
    if index >= torch.cuda.device_count():
        return False
    torch.cuda.set_device(index)
    return True
