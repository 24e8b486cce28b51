"""Tensors: under which regions they are computed, and from what."""

from __future__ import annotations

from collections.abc import Iterable

from ...protocol.surface import BFLOAT16_OR_FLOAT32, DTYPES, WIDE
from .dtypes import is_low, is_wide
from .interpreter import Interpreter
from .state import Open
from .values import EMPTY, NO_PAST, Named, Opaque, Past, Tensor, Value, where


def in_region(at: Interpreter) -> bool:
    """Whether an autocast region may be enabled where this is read."""
    return any(region.enabled is not False for region in at.state.open)


def mark_region(at: Interpreter, made: Tensor) -> None:
    """Record under which regions a tensor was computed."""
    here, dtypes = _here(at)
    if here != "out":
        made.autocast = here
        made.dtypes |= dtypes
    if here == "in":
        # A region of float32 keeps in it what one around would cast.
        dtype = at.state.open[-1].dtype
        made.low = "" if dtype in WIDE else dtype or "?"


def _here(at: Interpreter) -> tuple[str, frozenset[str]]:
    """Where what is read runs, "in", "out" or "unknown", and the dtype of its region."""
    region = at.state.open[-1] if at.state.open else None
    if region is not None and region.enabled is not False:
        return "in", frozenset((_dtype_in(region),))
    return ("unknown", frozenset("?")) if at.state.maybe_open else ("out", EMPTY)


def _dtype_in(region: Open) -> str:
    """The dtype of what is computed in a region: "?" where it may be float32 as well, unless that makes no odds."""
    if region.enabled is True or region.dtype == "bfloat16":
        return (region.dtype or "?") if region.enabled is True else BFLOAT16_OR_FLOAT32
    return "?"


def computed(at: Interpreter, parts: list[Tensor]) -> Tensor:
    made = Tensor.merge(parts)
    made.divisors, made.factors = frozenset(), frozenset()
    made.loops |= at.turning()
    made.in_region = in_region(at)
    return made


def low_result(at: Interpreter, op: str, operands: list[Value]) -> Tensor:
    """What an op gives that autocast runs in low precision, on some devices at least."""
    tensors = [tensor for value in operands for tensor in value.tensors()]
    made = computed(at, tensors) if tensors else foreign_tensor(None)
    made.matmul = is_low(op, region_device(at))
    if made.matmul and in_region(at):
        mark_region(at, made)
    return made


def widened(at: Interpreter, made: Tensor, op: str, given: Iterable[Value]) -> None:
    """Note of what an op gives whether autocast has it computed in float32."""
    if is_wide(op, region_device(at)) and not any(isinstance(v, Named) and v.name in DTYPES for v in given):
        made.matmul = False
        if made.in_region:
            made.low = ""


def region_device(at: Interpreter) -> str:
    """The type of device of the innermost region, "" where there is none, or it is not known."""
    return at.state.open[-1].device if at.state.open else ""


def foreign_tensor(value: Value | None) -> Tensor:
    """A loss of which only the name is known."""
    made = Tensor(value.loops if value is not None else frozenset())
    made.opaque = isinstance(value, Opaque) and value.parameter
    # What is called so may be scaled where it comes from.
    made.graded = isinstance(value, Opaque) and (value.graded or (value.parameter and "scale" in value.text))
    made.vague = value is None or not value.compares
    made.divided = value is not None and value.divided
    if isinstance(value, Opaque):
        made.divisors, made.factors, made.summed = value.divisors, value.factors, value.summed
    past = value.past if value is not None else NO_PAST
    made.autocast, made.callees, made.dtypes = past.autocast or "?", past.callees, past.dtypes
    return made


def ran_here(at: Interpreter, earlier: Past, *callees: str) -> Past:
    """What something that may be a model leaves that runs here, given what came from earlier."""
    here, dtypes = _here(at)
    return Past(where({here, earlier.autocast}), earlier.callees.union(callees), earlier.dtypes | dtypes)
