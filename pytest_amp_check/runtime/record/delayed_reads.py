"""Results of a backward pass on a device, read one step later, so that no step waits for its own work.

Until then the weights of the pass are kept: its step changes the weights, and a replay of the pass needs them.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch

#: Weights may use at most 1/SHARE of the device's free memory.
SHARE = 8

Weights = list[tuple[torch.Tensor, torch.Tensor]]


class DeviceTransfer:
    """Numbers in transfer from a device."""

    def __init__(self, numbers: torch.Tensor) -> None:
        self._done_event: Any = None
        self._numbers: list[float] | None = None
        if numbers.device.type == "cuda":
            self._host_copy = torch.empty(numbers.shape, dtype=numbers.dtype, device="cpu", pin_memory=True)
            self._host_copy.copy_(numbers, non_blocking=True)
            self._done_event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._done_event.record()
        else:
            self._host_copy = numbers

    @property
    def is_ready(self) -> bool:
        return self._done_event is None or bool(self._done_event.query())

    def wait_for_numbers(self) -> list[float]:
        """Wait for the transfer and return the numbers."""
        if self._numbers is None:
            if self._done_event is not None and not self.is_ready:
                self._done_event.synchronize()
            self._numbers = self._host_copy.tolist()
        return self._numbers


class PreviousWeights:
    """Copies of optimizers' parameters before their latest steps, if memory permits."""

    def __init__(self) -> None:
        self._by_optimizer: weakref.WeakKeyDictionary[torch.optim.Optimizer, tuple[int, Weights]] = (
            weakref.WeakKeyDictionary()
        )

    def save_weights(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Copy the parameters of an optimizer that is about to make step number ``step``."""
        params = [p for group in optimizer.param_groups for p in group["params"]]
        entry = self._by_optimizer.get(optimizer)
        weights = entry[1] if entry is not None else []
        if len(weights) != len(params):
            weights = []
            if all(type(p.data) is torch.Tensor for p in params) and _has_room(params):
                weights = [(p, torch.empty_like(p)) for p in params]
        if weights:
            with torch.no_grad():
                torch._foreach_copy_([copy for _, copy in weights], [p.detach() for p, _ in weights])
        self._by_optimizer[optimizer] = step, weights

    def weights_before(self, step: int) -> Weights:
        """Return (parameter, old value) for the parameters that have changed since the backward pass before a step."""
        return [pair for number, weights in list(self._by_optimizer.values()) if number >= step for pair in weights]

    def clear(self) -> None:
        self._by_optimizer.clear()


def _has_room(params: Sequence[torch.Tensor]) -> bool:
    needed: dict[torch.device, int] = {}
    for device, size in _device_sizes(params):
        needed[device] = needed.get(device, 0) + size
    return all(
        device.type != "cuda" or size * SHARE <= torch.cuda.mem_get_info(device)[0] for device, size in needed.items()
    )


def _device_sizes(params: Sequence[torch.Tensor]) -> Iterator[tuple[torch.device, int]]:
    for p in params:
        yield p.untyped_storage().device, p.numel() * p.element_size()
