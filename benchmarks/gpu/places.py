"""Where the parts run what they compare: on CUDA, and on the CPU under emulation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from pytest_amp_check import emulate_cuda


@contextlib.contextmanager
def on(place: str) -> Iterator[None]:
    """Programs for CUDA run in it: on the "cuda" of this machine, or "emulated"."""
    with emulate_cuda() if place == "emulated" else contextlib.nullcontext():
        yield
        if place == "cuda":
            torch.cuda.synchronize()


def measured_place(*, dry: bool) -> str:
    """The place beside which the emulation is held: CUDA, or in a dry run the emulation once more."""
    return "emulated" if dry else "cuda"
