"""What a device has to say of a backward pass, read one step later, so that no step waits for the work of its own.

Until then the weights are kept that the pass ran with: its step changes them, and it is to be played again with them.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch

#: The share of the device's free memory that weights are kept in at most.
SHARE = 8

Weights = list[tuple[torch.Tensor, torch.Tensor]]


class DeviceTransfer:
    """Numbers on their way from a device."""

    def __init__(self, numbers: torch.Tensor) -> None:
        self._done_event: Any = None
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
        """The numbers, waited for where they are not there."""
        if self._done_event is not None:
            self._done_event.synchronize()
        numbers: list[float] = self._host_copy.tolist()
        return numbers


class PreviousWeights:
    """The parameters of optimizers as they were before their latest steps, where there is room for that."""

    def __init__(self) -> None:
        self._by_optimizer: weakref.WeakKeyDictionary[torch.optim.Optimizer, tuple[int, Weights]] = (
            weakref.WeakKeyDictionary()
        )

    def save_weights(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """An optimizer is about to make a step of that number."""
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
        """Parameters that have changed since a backward pass before a step, with what they were."""
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
