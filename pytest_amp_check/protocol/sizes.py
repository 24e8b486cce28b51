"""Sizes of matrix products, and which of them Tensor Cores take less well: what both readers ask of them."""

from __future__ import annotations

from collections.abc import Sequence

#: Elements of two bytes that Tensor Cores take at once: 16 bytes.
STEP = 8
#: The least side of a product that its arithmetic keeps waiting, and not its memory (NVIDIA, of a V100).
LEAST = 128


def find_odd_sides(sides: Sequence[int]) -> list[int]:
    """The sides of a product that are no multiple of 8; none where a side is so short that it does not matter."""
    return [side for side in sides if side % STEP] if min(sides, default=0) >= LEAST else []


def describe_sizes(sides: Sequence[int]) -> dict[str, object]:
    """The words of a message for such sides, and for what they had better be."""
    better = [side + -side % STEP for side in sides]
    return {"sizes": " and ".join(map(str, sides)), "better": " and ".join(map(str, better))}
