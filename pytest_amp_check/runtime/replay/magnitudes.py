"""What the values of a tensor are like, in a few numbers: what is not finite, and how large the others are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

#: How deep the arguments of an op hold tensors.
DEEP = 3


class Magnitudes(NamedTuple):
    """``least`` and ``greatest`` are finite magnitudes, of those that are not zero; None where there are none."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    least: float | None
    greatest: float | None
    lowest: float | None
    zeros: bool
    nan: bool
    above: bool
    below: bool

    @property
    def finite(self) -> bool:
        return not (self.nan or self.above or self.below)

    @property
    def only_below(self) -> bool:
        """Whether all that is not finite is -inf, as in masks."""
        return self.below and not (self.nan or self.above)

    def __str__(self) -> str:
        parts = [word for word, there in (("NaN", self.nan), ("inf", self.above), ("-inf", self.below)) if there]
        if self.greatest is not None:
            parts.insert(0, f"{self.least:.2g} to {self.greatest:.2g}")
        elif not parts:
            parts.append("all zero" if self.zeros else "empty")
        if self.zeros and self.greatest is not None:
            parts.append("zero")
        return f"{str(self.dtype).removeprefix('torch.')} {' and '.join(parts)}"


def magnitudes(tensor: torch.Tensor) -> Magnitudes:
    """Reads a tensor. This waits for its device."""
    values = tensor.detach()
    if values.layout is not torch.strided:
        values = values.coalesce().values() if values.layout is torch.sparse_coo else values.to_dense()
    shape = tuple(tensor.shape)
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj())
    values = values.reshape(-1).double()
    finite = values[values.isfinite()]
    sizes = finite.abs()
    sizes = sizes[sizes > 0]
    return Magnitudes(
        tensor.dtype,
        shape,
        float(sizes.min()) if sizes.numel() else None,
        float(sizes.max()) if sizes.numel() else None,
        float(finite.min()) if finite.numel() else None,
        zeros=sizes.numel() < finite.numel(),
        nan=bool(values.isnan().any()),
        above=bool(values.isposinf().any()),
        below=bool(values.isneginf().any()),
    )


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds no NaN and no infinity."""
    values = tensor.detach()
    if values.layout is not torch.strided:
        values = values.coalesce().values() if values.layout is torch.sparse_coo else values.to_dense()
    return bool(torch.isfinite(values).all())


def floats_in(value: Any, deep: int = DEEP) -> Iterator[torch.Tensor]:
    """The tensors among arguments or results that can hold what is not finite."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point() or value.is_complex():
            yield value
    elif deep and isinstance(value, (tuple, list)):
        for item in value:
            yield from floats_in(item, deep - 1)
