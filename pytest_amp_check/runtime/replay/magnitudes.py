"""A summary of a tensor's values in a few numbers: non-finite values, and the magnitudes of the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

#: Largest depth to which the arguments of an op are searched for tensors.
DEEP = 3


class Magnitudes(NamedTuple):
    """The value range of a tensor.

    ``smallest`` and ``largest`` are the extreme finite non-zero magnitudes, and ``minimum`` the lowest finite value
    with its sign. Each is None without such values.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    smallest: float | None
    largest: float | None
    minimum: float | None
    has_zeros: bool
    has_nan: bool
    has_inf: bool
    has_negative_inf: bool

    @property
    def is_finite(self) -> bool:
        return not (self.has_nan or self.has_inf or self.has_negative_inf)

    @property
    def is_only_negative_inf(self) -> bool:
        """True if all non-finite values are -inf, as in masks."""
        return self.has_negative_inf and not (self.has_nan or self.has_inf)

    def __str__(self) -> str:
        parts = [
            word
            for word, there in (("NaN", self.has_nan), ("inf", self.has_inf), ("-inf", self.has_negative_inf))
            if there
        ]
        if self.largest is not None:
            parts.insert(0, f"{self.smallest:.2g} to {self.largest:.2g}")
        elif not parts:
            parts.append("all zero" if self.has_zeros else "empty")
        if self.has_zeros and self.largest is not None:
            parts.append("zero")
        return f"{str(self.dtype).removeprefix('torch.')} {' and '.join(parts)}"


def measure_magnitudes(tensor: torch.Tensor) -> Magnitudes:
    """Summarize the values of a tensor. Waits for the tensor's device."""
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
        has_zeros=sizes.numel() < finite.numel(),
        has_nan=bool(values.isnan().any()),
        has_inf=bool(values.isposinf().any()),
        has_negative_inf=bool(values.isneginf().any()),
    )


def is_finite(tensor: torch.Tensor) -> bool:
    """Return True if a tensor holds no NaN and no infinity."""
    values = tensor.detach()
    if values.layout is not torch.strided:
        values = values.coalesce().values() if values.layout is torch.sparse_coo else values.to_dense()
    return bool(torch.isfinite(values).all())


def floats_in(value: Any, depth: int = DEEP) -> Iterator[torch.Tensor]:
    """Yield the floating-point and complex tensors among nested arguments or results."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point() or value.is_complex():
            yield value
    elif depth and isinstance(value, (tuple, list)):
        for item in value:
            yield from floats_in(item, depth - 1)
