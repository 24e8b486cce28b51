"""Shared parts of the assertions that replay steps: the replay itself, tolerances, and texts."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ...protocol.torch_api import DEFAULT_AUTOCAST_DTYPE
from .replay import Replay, ReplayWatch


class UnavailableError(Exception):
    """An error for an assertion that this machine cannot decide. The message names the missing part."""


UNREPEATABLE = (
    "the same steps from the same state gave other losses when they ran again, so nothing can be compared: "
    "pass what is missing in state=[...], seed generators of your own, and pass data as batches; on a GPU, "
    "torch.use_deterministic_algorithms(True) makes kernels repeat themselves"
)


def check_tolerance(rtol: float, atol: float = 0.0, updates: float = 0.0) -> None:
    for name, value in (("rtol", rtol), ("atol", atol), ("updates", updates)):
        if not is_number(value) or not 0 <= value < math.inf:
            raise ValueError(f"{name} is {value!r}: pass a number that is not negative, such as 0.01")


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def play_steps(replay: Replay, *, gradients: bool = False) -> ReplayWatch:
    """Run all steps from the present state under a watch, and return the watch."""
    watch = ReplayWatch(replay, gradients=gradients)
    with watch.observe():
        watch.play_calls(range(replay.steps))
    return watch


def copy_parameters(replay: Replay) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in replay.find_state().parameters().items()}


@contextlib.contextmanager
def autocast_off() -> Iterator[None]:
    """Open a region in which every autocast region, created before or inside, acts as with ``enabled=False``."""
    kind: Any = torch.amp.autocast_mode.autocast
    original = kind.__enter__

    def enter(region: Any) -> Any:
        enabled, region._enabled = region._enabled, False
        try:
            return original(region)
        finally:
            region._enabled = enabled

    with contextlib.ExitStack() as stack:
        stack.callback(setattr, kind, "__enter__", original)
        kind.__enter__ = enter
        for device in DEFAULT_AUTOCAST_DTYPE:
            if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


def format_percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def format_count(number: int, what: str) -> str:
    plural = "es" if what.endswith("ch") else "s"
    return f"{number} {what}{'' if number == 1 else plural}"


def format_names(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
