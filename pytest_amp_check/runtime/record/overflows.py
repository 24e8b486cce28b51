"""A dispatch mode that finds float16 overflows whose infinities end in a division, so that no loss shows them."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ...protocol.sites import Site
from .sites import is_inner

#: Ops that map infinite operands to zero: the position of such an operand.
_DIVISIONS = {"div": 1, "div_": 1, "reciprocal": 0, "reciprocal_": 0, "rsqrt": 0, "rsqrt_": 0}
#: Ops whose infinity is right whatever the precision, because the true value is beyond any use.
_STEEP = frozenset({"exp", "exp_", "exp2", "expm1"})
#: Dtypes whose extrema torch computes on each device, unlike those of float8.
_WATCHED = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
#: Largest number of watched ops of one forward pass, and of the calls that lead to an op.
MOST, DEPTH = 4096, 12

Position = tuple[CodeType, int]


class Overflow(NamedTuple):
    """An op that overflowed, and the location of the division by its infinities."""

    op: str
    site: Site
    division_site: Site


class _WatchedOp(NamedTuple):
    """An op: its operands and result by storage, and the calls that lead to it, innermost first.

    ``divisor`` is the operand by which the op divides, or None. An operand from outside is an op without a name.
    """

    name: str
    operands: tuple[int, ...]
    divisor: int | None
    result: int
    is_float16: bool
    positions: Sequence[Position]


class OverflowMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that records for each op if its result is finite. Nothing waits for a device until the end."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ops: list[_WatchedOp] = []
        #: For each op the least and the greatest element of the result, or NaN if an element is NaN: one pass over the
        #: result, which on a GPU takes a quarter of the time of two tests of each element.
        self._bounds: list[torch.Tensor] = []
        self._known: set[int] = set()
        #: The error of the watch itself, or None.
        self.failure: Exception | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if type(result) is torch.Tensor and self.failure is None and len(self._ops) < MOST:
            try:
                self._record_op(func._schema.name.partition("::")[2], args, result)
            except Exception as error:  # noqa: BLE001 - the training goes on, and it is reported at the end
                self.failure = error
        return result

    def _record_op(self, name: str, args: tuple[Any, ...], result: torch.Tensor) -> None:
        if not _is_watched(result):
            return
        operands = [tensor for tensor in _tensors_in(args) if _is_watched(tensor)]
        if not operands:
            self._known.discard(_storage_of(result))
            return
        for tensor in operands:
            if tensor is not result and _storage_of(tensor) not in self._known:
                self._append(_WatchedOp("", (), None, _storage_of(tensor), is_float16=False, positions=()), tensor)
        position = _DIVISIONS.get(name)
        divisor = args[position] if position is not None and len(args) > position else None
        op = _WatchedOp(
            name,
            tuple(map(_storage_of, operands)),
            _storage_of(divisor) if isinstance(divisor, torch.Tensor) else None,
            _storage_of(result),
            result.dtype is torch.float16,
            _user_positions(sys._getframe(2)),
        )
        self._append(op, result)

    def _append(self, op: _WatchedOp, tensor: torch.Tensor) -> None:
        values = tensor.detach()
        self._ops.append(op)
        self._bounds += [bound.double() for bound in torch.aminmax(values)]
        self._known.add(op.result)

    def find_hidden(self, locate: Callable[[Sequence[Position]], Site]) -> list[Overflow]:
        """Return the overflows that divisions have hidden. Wait once for the device."""
        if len({bound.device for bound in self._bounds}) != 1:
            return []
        bounds: list[float] = torch.stack(self._bounds).tolist()
        hidden: list[Overflow] = []
        #: Storage to the op that produced the infinities in it, or None if an operand from outside holds them.
        infinite: dict[int, _WatchedOp | None] = {}
        for op, least, greatest in zip(self._ops, bounds[::2], bounds[1::2], strict=True):
            sources = [infinite[key] for key in op.operands if key in infinite]
            if math.isfinite(least) and math.isfinite(greatest):
                origin = infinite.get(op.divisor) if op.divisor is not None else None
                if origin is not None:
                    hidden.append(Overflow(origin.name, locate(origin.positions), locate(op.positions)))
                infinite.pop(op.result, None)
            elif sources:
                infinite[op.result] = sources[0]
            else:
                # Masks are filled with -inf alone.
                overflows = op.is_float16 and greatest == math.inf and op.name not in _STEEP
                infinite[op.result] = op if overflows else None
        return hidden


def _is_watched(tensor: torch.Tensor) -> bool:
    return tensor.dtype in _WATCHED and not tensor.is_meta and tensor.layout is torch.strided and tensor.numel() > 0


def _tensors_in(args: tuple[Any, ...]) -> Iterator[torch.Tensor]:
    for arg in args:
        for each in arg if isinstance(arg, (list, tuple)) else (arg,):
            if isinstance(each, torch.Tensor):
                yield each


def _storage_of(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _user_positions(frame: FrameType | None) -> list[Position]:
    """Return the calls of the program that lead to a frame, innermost first."""
    positions: list[Position] = []
    while frame is not None and len(positions) < DEPTH:
        if not is_inner(frame.f_code.co_filename):
            positions.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return positions
