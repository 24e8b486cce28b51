"""A dispatch mode that finds float16 overflows whose infinities end in a division, so that no loss shows them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ...protocol.events import Site

#: Ops that map infinite operands to zero: the position of such an operand.
_DIVISIONS = {"div": 1, "div_": 1, "reciprocal": 0, "reciprocal_": 0, "rsqrt": 0, "rsqrt_": 0}
#: Ops whose infinity is right whatever the precision, because the true value is beyond any use.
_STEEP = frozenset({"exp", "exp_", "exp2", "expm1"})


class Overflow(NamedTuple):
    """An op that overflowed, and the location of the division by its infinities."""

    op: str
    site: Site
    division_site: Site


class _Infinity(NamedTuple):
    """A tensor with infinities from finite operands, and the op that produced the first of them.

    The tensor is kept, so that its memory is not reused.
    """

    tensor: torch.Tensor
    op: str
    site: Site


class OverflowMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that follows the infinities of float16 ops to divisions."""

    def __init__(self, site_from: Callable[[FrameType], Site]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._site_from = site_from
        self._infinities: dict[int, _Infinity] = {}
        #: The overflows that divisions have hidden.
        self.hidden: list[Overflow] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if type(result) is torch.Tensor and result.is_floating_point() and not result.is_meta:
            self._record_result(func._schema.name.partition("::")[2], args, result)
        return result

    def _record_result(self, name: str, args: tuple[Any, ...], result: torch.Tensor) -> None:
        known = [each for tensor in _tensors_in(args) if (each := self._infinities.get(_storage_of(tensor)))]
        if not known:
            if result.dtype is torch.float16 and name not in _STEEP and _has_overflowed(args, result):
                site = self._site_from(sys._getframe(2))
                self._infinities[_storage_of(result)] = _Infinity(result, name, site)
        elif not torch.isfinite(result).all():
            self._infinities[_storage_of(result)] = known[0]._replace(tensor=result)
        else:
            # An op in place, such as a clamp, may have removed the infinities.
            self._infinities.pop(_storage_of(result), None)
            position = _DIVISIONS.get(name)
            divisor = args[position] if position is not None and len(args) > position else None
            if isinstance(divisor, torch.Tensor) and (origin := self._infinities.get(_storage_of(divisor))) is not None:
                self.hidden.append(Overflow(origin.op, origin.site, self._site_from(sys._getframe(2))))


def _tensors_in(args: tuple[Any, ...]) -> Iterator[torch.Tensor]:
    for arg in args:
        for each in arg if isinstance(arg, (list, tuple)) else (arg,):
            if isinstance(each, torch.Tensor):
                yield each


def _has_overflowed(args: tuple[Any, ...], result: torch.Tensor) -> bool:
    """Return True if a result has infinities, and the operands have none. Masks are filled with -inf alone."""
    if torch.isfinite(result).all() or not torch.isposinf(result).any():
        return False
    operands = [tensor for tensor in _tensors_in(args) if tensor.is_floating_point()]
    return bool(operands) and all(bool(torch.isfinite(tensor).all()) for tensor in operands)


def _storage_of(tensor: torch.Tensor) -> int:
    return id(tensor) if tensor.layout is not torch.strided else int(tensor.untyped_storage()._cdata)
