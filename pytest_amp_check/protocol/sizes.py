"""Sizes of matrix products that are slow on Tensor Cores, shared by the analyzer and the recorder."""

from __future__ import annotations

from collections.abc import Sequence

#: Elements of two bytes that Tensor Cores process at once: 16 bytes.
STEP = 8
#: Minimum side of a product that is limited by arithmetic and not by memory (NVIDIA, for a V100).
LEAST = 128


def find_odd_sides(sides: Sequence[int]) -> list[int]:
    """Return the sides of a product that are no multiple of 8, or an empty list if a side is below ``LEAST``."""
    return [side for side in sides if side % STEP] if min(sides, default=0) >= LEAST else []


def describe_sizes(sides: Sequence[int]) -> dict[str, object]:
    """Return the message texts for odd sides and for the recommended sides."""
    better = [side + -side % STEP for side in sides]
    return {"sizes": " and ".join(map(str, sides)), "better": " and ".join(map(str, better))}
