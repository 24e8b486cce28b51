"""The memory of one storage and its category."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import weakref

    import torch


class Block:
    """The memory of one storage.

    ``is_summed_up``: the allocation is already summed up, so a new category is an event. ``least_size``: bytes that
    the storage has on the target device, if fake tensors need fewer.
    """

    __slots__ = ("category", "is_summed_up", "least_size", "name", "reference", "size", "step_number")

    def __init__(self, size: int, category: str, name: str, step_number: int) -> None:
        self.size = size
        self.category = category
        self.name = name
        self.step_number = step_number
        self.is_summed_up = False
        self.least_size = 0
        self.reference: weakref.ref[torch.UntypedStorage] | None = None
