"""The devices on which the parts run: CUDA, and the CPU under emulation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from pytest_amp_check import emulate_cuda


@contextlib.contextmanager
def on(place: str) -> Iterator[None]:
    """Run programs for CUDA in this context: on "cuda" of this machine, or "emulated"."""
    with emulate_cuda() if place == "emulated" else contextlib.nullcontext():
        yield
        if place == "cuda":
            torch.cuda.synchronize()


def measured_place(*, dry: bool) -> str:
    """Return the device that the emulation is compared with: CUDA, or in a dry run the emulation itself."""
    return "emulated" if dry else "cuda"
